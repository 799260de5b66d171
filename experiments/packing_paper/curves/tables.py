"""Arms of the learning curves: names in words, and exhibits that compare arms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.packing_paper.curves import pictures
from lab import report
from lab.exhibits import Exhibit, Part
from lab.statistics import mean_and_sd
from lab.studies.paired_run import held_out
from lab.studies.study import ByArm, Results
from launch.parts import ADJUSTMENTS
from launch.sweep.pairs import paired_difference

_BY_LENGTH = "mlm_accuracy_by_length"
NAMES = {
  "packed": "packed",
  "unpacked": "unpacked, the same sequences each step",
  "twice": "packed, twice the batch",
  "twice_rate": "packed, twice the batch, rate * p",
  "twice_betas": "packed, twice the batch, betas ** p",
  "constant_twice_betas": "unpacked, twice the batch, betas ** p",
  "no_mask": "no attention mask",
  "no_position_reset": "no position reset",
  "loss_of_packs": "loss averaged over packs",
  "constant": "unpacked, a constant number of sequences",
  "sorted": "unpacked, batches sorted by length",
  "token_type": "sentence A and B apart",
  "doc_sentences": "whole sentences of one document, packed",
  "full_sentences": "whole sentences across documents",
  "isolated": "packed and isolated",
  "one_a_row": "one document a row",
  "pieces": "concatenated, with a mask",
  "concatenated": "concatenated, no mask",
  **{f"{name}_{p}": name for p in (2, 4) for name in ADJUSTMENTS},
}


def named(results: ByArm, names: Sequence[str]) -> dict[str, Results]:
  """The results of some arms, by their names in words."""
  return {NAMES[name]: results[name] for name in names}


def comparison(
  part: Part,
  results: ByArm,
  names: Sequence[str],
  number: str,
  title: str,
  finding: str,
  *,
  picture: str,
  before: str = "",
  after: str = "",
  **fields,
) -> Exhibit:
  """An exhibit of some arms: their learning curves, and their table between two texts.

  All arms are compared with the first; `picture` is the name of a file.
  """
  pictures.curves(part.folder / picture, named(results, names), title=finding)
  texts = filter(None, (before, table(results, names), after))
  fields = {"pictures": [picture], "text": "\n\n".join(texts), **fields}
  return part.exhibit(number, title, finding, **fields)


def mean_difference(a: Results, b: Results, *, way: str = "own") -> float:
  """The mean held-out loss of `a` minus that of `b`; `way` as of `held_out`."""
  return float(np.mean(np.subtract(held_out(a, way=way), held_out(b, way=way))))


def table(results: ByArm, names: Sequence[str]) -> str:
  """The results of some arms; all are compared with the first."""
  base = held_out(results[names[0]])
  header = ["arm", "sequences a step", "steps", "held-out masked-token loss", "alone"]
  header += ["accuracy", "times unigram", "loss minus the first arm's"]
  rows = []
  for name in names:
    runs, loss = results[name], held_out(results[name])
    accuracy = np.mean(held_out(runs, "mlm_accuracy"))
    row = [
      NAMES[name],
      f"{np.mean([x['sequences_a_step']['mean'] for x in runs]):.1f}",
      f"{runs[0]['recipe']['steps']:,}",
      mean_and_sd(loss),
      mean_and_sd(held_out(runs, way="alone")),
      f"{accuracy:.2%}",
      f"{accuracy / np.mean(held_out(runs, 'unigram_mlm_accuracy')):.2f}",
      "" if name == names[0] else paired_difference(loss, base),
    ]
    rows.append(row)
  return report.table(header, rows)


def losses_by_length(runs: Results) -> np.ndarray:
  """float[seeds, groups]: the held-out loss of sequences, by groups of lengths."""
  groups = held_out(runs, _BY_LENGTH)
  return np.array([[x["mlm_loss"] for x in of_run] for of_run in groups])


def length_groups(runs: Results) -> list[str]:
  """The groups of lengths, such as "1 to 64" tokens."""
  return [f"{x['from']} to {x['to']}" for x in held_out(runs, _BY_LENGTH)[0]]


def length_table(results: ByArm, names: Sequence[str]) -> str:
  """The held-out loss of some arms by length, as the mean over seeds."""
  losses = [losses_by_length(results[name]).mean(0) for name in names]
  rows = [
    [group, *(f"{x:.3f}" for x in of_group)]
    for group, *of_group in zip(length_groups(results[names[0]]), *losses, strict=True)
  ]
  return report.table(["tokens", *(NAMES[name] for name in names)], rows)
