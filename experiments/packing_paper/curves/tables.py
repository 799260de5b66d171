"""What the arms of the learning curves are called, and tables of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from experiments.lab.statistics import paired
from experiments.lab.study import Results, held_out

Found = Mapping[str, Results]

# By the arm's name: what it is called.
NAMES = {
  "packed": "packed",
  "unpacked": "unpacked, the same sequences each step",
  "constant": "unpacked, a constant number of sequences",
  "twice": "packed, twice the batch",
  "twice_rate": "packed, twice the batch, rate * p",
  "twice_betas": "packed, twice the batch, betas ** p",
  "constant_twice_betas": "unpacked, twice the batch, betas ** p",
  "no_mask": "no attention mask",
  "no_position_reset": "no position reset",
  "loss_of_packs": "loss averaged over packs",
}


def named(found: Found, *names: str) -> dict[str, Results]:
  """Some arms, by what they are called."""
  return {NAMES[name]: found[name] for name in names}


def mean_difference(a: Results, b: Results, *, way: str = "own") -> float:
  """Of the held-out loss, a - b; `way` as `study.held_out` takes it."""
  return float(np.mean(np.subtract(held_out(a, way=way), held_out(b, way=way))))


def accuracy(runs: Results) -> list[float]:
  """Of held-out masked tokens at the end, a fraction for each seed."""
  return held_out(runs, "mlm_accuracy")


def unigram(runs: Results) -> list[float]:
  """Of always saying the commonest token."""
  return held_out(runs, "unigram_mlm_accuracy")


def table(found: Found, names: Sequence[str]) -> str:
  """What arms came to, in Markdown.

  Args:
    found: the results of each arm.
    names: of the arms; the others are compared with the first.
  """
  base = held_out(found[names[0]])
  rows = [
    "| arm | sequences a step | steps | held-out masked-token loss | alone | accuracy | "
    "times unigram | loss minus the first arm's |",
    "|---|---:|---:|---:|---:|---:|---:|---:|",
  ]
  for name in names:
    runs = found[name]
    right, loss = np.mean(accuracy(runs)), held_out(runs)
    apart = ""
    if name != names[0]:
      apart = f"{np.mean(np.subtract(loss, base)):+.4f}"
      if len(loss) > 1:
        low, high = paired(loss, base).interval()
        apart += f" ({low:+.4f} to {high:+.4f})"
    rows.append(
      f"| {NAMES[name]} | {np.mean([x['sequences_a_step']['mean'] for x in runs]):.1f} | "
      f"{runs[0]['recipe']['steps']:,} | {_with_sd(loss)} | "
      f"{_with_sd(held_out(runs, way='alone'))} | {right:.2%} | "
      f"{right / np.mean(unigram(runs)):.2f} | "
      f"{apart} |"
    )
  return "\n".join(rows)


def _with_sd(values: Sequence[float]) -> str:
  sd = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
  return f"{np.mean(values):.4f}{sd}"
