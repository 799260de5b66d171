"""The learning curves of section 4.2, as exhibits: pictures, claims, tables.

Each function takes the results of all arms, draws into a folder and says what was found.

References:
  Krell et al., https://arxiv.org/abs/2107.02027, sections 3.2.3, 3.3, 4.2 and 4.2.1.
"""

from __future__ import annotations

import collections
import itertools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.stats

from experiments import learning_pictures
from experiments.exhibits import Exhibit, Statement
from experiments.statistics import LEVEL, equivalent, larger, paired
from experiments.study import EARLY, Results, early_share, held_out, in_training

Found = Mapping[str, Results]

# By the arm's name: what it is called.
NAMES = {
  "packed": "packed",
  "unpacked": "unpacked, the same sequences each step",
  "even": "unpacked, as many sequences each step",
  "twice": "packed, twice the batch",
  "twice_rate": "packed, twice the batch, rate × p",
  "twice_betas": "packed, twice the batch, betas ** p",
  "even_twice_betas": "unpacked, twice the batch, betas ** p",
  "no_mask": "no attention mask",
  "no_position_reset": "no position reset",
  "neither": "neither mask nor reset",
  "loss_of_packs": "loss averaged over packs",
}
TARGET = 3  # times the accuracy of always saying the commonest token


def same_batch(found: Found, folder: pathlib.Path, command: str) -> Exhibit:
  """Packed and unpacked training with as many sequences a step.

  Args:
    found: the results of each arm.
    folder: for the picture.
    command: that makes it.
  """
  packed, unpacked, even = (found[x] for x in ("packed", "unpacked", "even"))
  sequences = packed[0]["curve"][-1]["sequences"]
  apart, apart_even = (_mean_difference(x, packed) for x in (unpacked, even))
  finding = (
    f"After {sequences:,} sequences unpacked training is {apart:+.4f} nats from packed "
    f"training on held-out text where each step has the same sequences, and "
    f"{apart_even:+.4f} where it has as many each step."
  )
  learning_pictures.curves(
    folder / "same_batch.png", _named(found, "packed", "unpacked", "even"), title=finding
  )
  reached = [x / y for x, y in zip(_accuracy(packed), _unigram(packed), strict=True)]
  control = held_out(found["no_mask"])
  return Exhibit(
    "Figure 3 left, Figure 15",
    "packed and unpacked with the same effective batch size",
    "in shape",
    finding,
    command,
    statements=[
      larger(
        f"The runs are long enough: packed training is {TARGET} times as accurate as always "
        "saying the commonest token",
        reached,
        [TARGET] * len(reached),
        margin=0.1,
        unit="times",
      ),
      equivalent(
        "With the same sequences each step, packed and unpacked training come to the same",
        held_out(packed),
        held_out(unpacked),
        power=control,
      ),
      equivalent(
        "They do where unpacked steps have an even number of sequences, as in the paper",
        held_out(packed),
        held_out(even),
        power=control,
      ),
    ],
    pictures=["same_batch.png"],
    text=_table(found, ["packed", "unpacked", "even"]),
  )


def heuristics(found: Found, folder: pathlib.Path, command: str) -> Exhibit:
  """Twice the sequences a step, and what is done about it.

  Args:
    found: the results of each arm.
    folder: for the picture.
    command: that makes it.
  """
  names = ["even", "packed", "twice", "twice_rate", "twice_betas", "even_twice_betas"]
  finals = {name: float(np.mean(held_out(found[name]))) for name in names[2:5]}
  best, worst = min(finals, key=finals.__getitem__), max(finals, key=finals.__getitem__)
  base = float(np.mean(held_out(found["even"])))
  finding = (
    f"Of the adjustments for twice the batch '{NAMES[best]}' ends nearest to the lowest "
    f"held-out loss ({finals[best] - base:+.4f} nats from unpacked training), "
    f"'{NAMES[worst]}' farthest ({finals[worst] - base:+.4f})."
  )
  learning_pictures.curves(folder / "heuristics.png", _named(found, *names), title=finding)

  def early(name: str) -> list[float]:
    return held_out(found[name], at=EARLY)

  part = f"after {early_share():.0%} of the sequences"
  return Exhibit(
    "Figure 3 middle, Figure 16",
    "heuristics for the larger effective batch",
    "in shape",
    finding,
    command,
    statements=[
      larger(
        f"A larger batch converges more slowly early on ({part})",
        early("twice_betas"),
        early("packed"),
      ),
      larger(
        "Raising the learning rate with the batch makes the result worse",
        held_out(found["twice_rate"]),
        held_out(found["twice"]),
      ),
      equivalent(
        "With the betas adjusted, packed training matches unpacked training in the end",
        held_out(found["twice_betas"]),
        held_out(found["even"]),
        power=held_out(found["no_mask"]),
      ),
      larger(
        "Unpacked training at twice the batch with adjusted betas is slowed more than "
        f"packed training ({part})",
        early("even_twice_betas"),
        early("twice_betas"),
      ),
    ],
    pictures=["heuristics.png"],
    text=_table(found, names)
    + "\n\nHere a pack computes exactly what its sequences compute one a row, so that "
    "unpacked training with as many sequences a step is the same training but for how "
    "they are cut into steps. The last statement cannot hold but by that.",
  )


def by_time(
  found: Found, speed: Mapping[str, Any], folder: pathlib.Path, command: str
) -> Exhibit:
  """The optimised setups over the time they take.

  Args:
    found: the results of each arm.
    speed: of `experiments.speed`.
    folder: for the picture.
    command: that makes it.
  """
  packed, unpacked = found["twice_betas"], found["even"]
  rates = [speed[f"{way}_sequences_per_second"] for way in ("packed", "unpacked")]
  gains = []
  for a, b in zip(packed, unpacked, strict=True):
    target = max(_losses(x)[-1] for x in (a, b))  # what both reach
    needed = [_sequences_to(x, target) for x in (a, b)]
    gains.append(needed[1] / rates[1] / (needed[0] / rates[0]))
  factor, realised = speed["packing_factor"], speed["speedup_measured"]
  steps = [runs[0]["recipe"]["steps"] for runs in (packed, unpacked)]
  finding = (
    f"Packed training comes to the loss that both reach {np.mean(gains):.2f} times as "
    f"soon, in {steps[0] / steps[1]:.2f} of the steps; a step of packs has the sequences of "
    f"{realised:.2f} unpacked ones in its time (packing factor {factor:.3f})."
  )
  learning_pictures.by_time(
    folder / "by_time.png",
    _named(found, "twice_betas", "even"),
    sequences_per_second=dict(
      zip((NAMES["twice_betas"], NAMES["even"]), rates, strict=True)
    ),
    title=finding,
  )
  return Exhibit(
    "Figure 3 right, Figure 17",
    "optimised setups by the time of training",
    "in shape",
    finding,
    command,
    statements=[
      larger(
        "Packed training reaches the same loss in less time",
        gains,
        [1.0] * len(gains),
        margin=0.05,
        unit="times",
      ),
      larger(
        "It does so sooner than the packing factor says (the paper: by more than 2)",
        gains,
        [factor] * len(gains),
        margin=0.05,
        unit="times",
      ),
    ],
    pictures=["by_time.png"],
    text=_table(found, ["twice_betas", "even"])
    + f"\n\nSteps were timed alone, in turns: {rates[0]:,.0f} sequences a second packed, "
    f"{rates[1]:,.0f} unpacked; quartiles of the ratio {speed['speedup_low']:.2f} to "
    f"{speed['speedup_high']:.2f}. The time of a run is its sequences over that.",
  )


def spread(found: Found, folder: pathlib.Path, command: str) -> Exhibit:
  """How the number of sequences differs from step to step.

  Args:
    found: the results of each arm.
    folder: for the picture.
    command: that makes it.
  """
  counts, lines, statements = {}, [], []
  for arm in ("packed", "twice"):
    runs = found[arm]
    rows = runs[0]["recipe"]["rows"]
    steps: collections.Counter[int] = collections.Counter()
    for run in runs:
      steps.update({int(n): k for n, k in run["sequences_a_step"]["steps"].items()})
    counts[f"{rows} packs"] = steps
    values = np.repeat(list(steps), list(steps.values()))
    expected = math.sqrt(rows) * runs[0]["plan"]["sequences_a_pack_sd"]
    statements.append(_spread_statement(rows, values, expected))
    lines.append(
      f"| {rows} | {values.mean():.2f} | {values.std(ddof=1):.2f} | {expected:.2f} | "
      f"{values.min()} | {values.max()} | {values.std(ddof=1) / values.mean():.1%} |"
    )
  first, second = (np.repeat(list(x), list(x.values())) for x in counts.values())
  finding = (
    f"A step of {next(iter(counts))} has {first.mean():.1f} ± {first.std(ddof=1):.1f} "
    f"sequences ({first.std(ddof=1) / first.mean():.0%}), one of twice as many "
    f"{second.mean():.1f} ± {second.std(ddof=1):.1f} ({second.std(ddof=1) / second.mean():.0%})."
  )
  learning_pictures.spread(folder / "sequences_a_step.png", counts, title=finding)
  head = (
    "| packs a step | mean | sd | sd of packs drawn at random | least | most | sd / mean |"
  )
  return Exhibit(
    "Section 3.3",
    "the spread of the sequences of a step",
    "in shape",
    finding,
    command,
    statements=statements,
    pictures=["sequences_a_step.png"],
    text="\n".join([head, "|---:|---:|---:|---:|---:|---:|---:|", *lines]),
  )


def ablation(found: Found, folder: pathlib.Path, command: str) -> Exhibit:
  """Without the mask, without the reset of positions.

  Args:
    found: the results of each arm.
    folder: for the pictures.
    command: that makes it.
  """
  names = ["packed", "no_mask", "no_position_reset", "neither"]
  packed, no_mask, no_reset, _ = (found[name] for name in names)
  control = held_out(no_mask)
  apart = [_mean_difference(x, packed) for x in (no_mask, no_reset)]
  alone = [_mean_difference(x, packed, way="alone") for x in (no_mask, no_reset)]
  finding = (
    f"Without the mask the held-out loss ends {apart[0]:+.3f} nats from that with both "
    f"adjustments, without the reset of positions {apart[1]:+.3f}; on each sequence alone "
    f"{alone[0]:+.3f} and {alone[1]:+.3f}."
  )
  shown = _named(found, *names)
  learning_pictures.curves(folder / "ablation.png", shown, title=finding)
  learning_pictures.curves(
    folder / "ablation_alone.png",
    shown,
    title=f"Each held-out sequence alone: {alone[0]:+.3f} nats without the mask, "
    f"{alone[1]:+.3f} without the reset of positions",
    way="alone",
  )
  return Exhibit(
    "Figure 4, section 4.2.1",
    "with and without the adjustments of mask and positions",
    "in shape",
    finding,
    command,
    statements=[
      larger(
        "Without the mask the training loss is higher",
        in_training(no_mask),
        in_training(packed),
      ),
      larger(
        "Without the mask longer training does not make up for it: the held-out loss is "
        "higher at the end",
        control,
        held_out(packed),
      ),
      larger(
        "Without the mask the model is worse on each sequence alone",
        held_out(no_mask, way="alone"),
        held_out(packed, way="alone"),
      ),
      equivalent(
        "Without the reset of positions the loss almost matches",
        held_out(no_reset),
        held_out(packed),
        power=control,
      ),
      larger(
        "Without the reset of positions the accuracy stays a little lower",
        _accuracy(packed),
        _accuracy(no_reset),
        margin=0.003,  # the paper's 72.1 % and 71.8 %
        unit="(fraction)",
      ),
      larger("The mask matters more than the positions", control, held_out(no_reset)),
    ],
    pictures=["ablation.png", "ablation_alone.png"],
    text=_table(found, names),
  )


def loss_unit(found: Found, folder: pathlib.Path, command: str) -> Exhibit:
  """The loss averaged over packs in place of sequences.

  Args:
    found: the results of each arm.
    folder: for the picture.
    command: that makes it.
  """
  of_packs, packed = found["loss_of_packs"], found["packed"]
  groups = [f"{x['from']} to {x['to']}" for x in _groups(packed[0])]
  a, b = (
    np.array([[x["mlm_loss"] for x in _groups(run)] for run in runs])
    for runs in (of_packs, packed)
  )
  change = (a - b).mean(0)
  finding = (
    f"Averaged over packs, the loss of the shortest sequences ends {change[0]:+.3f} nats "
    f"from that with an average over sequences, of the longest {change[-1]:+.3f}."
  )
  learning_pictures.by_length(
    folder / "loss_unit.png",
    groups,
    a - b,
    label="held-out loss: of packs less of sequences, nats",
    title=finding,
  )
  rows = [
    f"| {name} | {x:.3f} | {y:.3f} | {x - y:+.3f} |"
    for name, x, y in zip(groups, a.mean(0), b.mean(0), strict=True)
  ]
  head = [
    "| tokens | loss of packs | loss of sequences | difference |",
    "|---|---:|---:|---:|",
  ]
  return Exhibit(
    "Section 3.2.3",
    "the loss of packs against that of sequences, by length",
    "in shape",
    finding,
    command,
    statements=[
      larger(
        "Averaged over packs, training comes to another optimum: the mean over sequences "
        "is higher",
        held_out(of_packs),
        held_out(packed),
      ),
      larger(
        "The shortest sequences, which share a pack with more others, are learned less well",
        a[:, 0].tolist(),
        b[:, 0].tolist(),
      ),
      larger("The longest are learned better", b[:, -1].tolist(), a[:, -1].tolist()),
    ],
    pictures=["loss_unit.png"],
    text="\n".join([*head, *rows]) + "\n\n" + _table(found, ["packed", "loss_of_packs"]),
  )


def _named(found: Found, *names: str) -> dict[str, Results]:
  return {NAMES[name]: found[name] for name in names}


def _mean_difference(a: Results, b: Results, **which: str) -> float:
  return float(np.mean(np.subtract(held_out(a, **which), held_out(b, **which))))


def _accuracy(runs: Results) -> list[float]:
  return held_out(runs, "mlm_accuracy")


def _unigram(runs: Results) -> list[float]:
  return held_out(runs, "unigram_mlm_accuracy")


def _groups(run: Mapping[str, Any]) -> list[dict[str, Any]]:
  return run["evaluations"][-1]["own"]["mlm_accuracy_by_length"]


def _losses(run: Mapping[str, Any]) -> list[float]:
  return [one["own"]["mlm_loss"] for one in run["evaluations"]]


def _sequences_to(run: Mapping[str, Any], loss: float) -> float:
  """After how many sequences a run had a loss, on lines between its evaluations."""
  counts = [one["sequences"] for one in run["evaluations"]]
  losses = _losses(run)
  for (n, x), (m, y) in itertools.pairwise(zip(counts, losses, strict=True)):
    if y <= loss:
      return m if x <= y or loss >= x else n + (x - loss) / (x - y) * (m - n)
  return counts[-1]


def _spread_statement(rows: int, values: Sequence[int], expected: float) -> Statement:
  """Whether the spread is that of packs drawn at random."""
  freedom, found = len(values) - 1, float(np.std(values, ddof=1))
  low, high = (
    found * math.sqrt(freedom / float(scipy.stats.chi2.ppf(q, freedom)))
    for q in (1 - LEVEL / 2, LEVEL / 2)
  )
  return Statement(
    f"The sequences of {rows} packs spread as those of packs drawn at random do",
    "holds" if low <= expected <= high else "fails",
    f"sd {found:.3f}, 95 % interval {low:.3f} to {high:.3f} (chi-squared, {len(values):,} "
    f"steps); of packs drawn at random {expected:.3f}",
  )


def _table(found: Found, names: Sequence[str]) -> str:
  """What the arms came to, the first being the base."""
  base = held_out(found[names[0]])
  rows = [
    "| arm | sequences a step | steps | held-out loss | alone | accuracy | × unigram | "
    "loss less that of the first |",
    "|---|---:|---:|---:|---:|---:|---:|---:|",
  ]
  for name in names:
    runs = found[name]
    accuracy, loss = _accuracy(runs), held_out(runs)
    ratio = np.mean(accuracy) / np.mean(_unigram(runs))
    apart = ""
    if name != names[0]:
      apart = f"{np.mean(np.subtract(loss, base)):+.4f}"
      if len(loss) > 1:
        low, high = paired(loss, base).interval()
        apart += f" ({low:+.4f} to {high:+.4f})"
    rows.append(
      f"| {NAMES[name]} | {np.mean([x['sequences_a_step']['mean'] for x in runs]):.1f} | "
      f"{runs[0]['recipe']['steps']:,} | {_with_sd(loss)} | "
      f"{_with_sd(held_out(runs, way='alone'))} | {np.mean(accuracy):.2%} | {ratio:.2f} | "
      f"{apart} |"
    )
  return "\n".join(rows)


def _with_sd(values: Sequence[float]) -> str:
  sd = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
  return f"{np.mean(values):.4f}{sd}"
