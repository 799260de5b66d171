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
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.stats

from experiments.lab.exhibits import Exhibit, Outcome, Statement
from experiments.lab.statistics import LEVEL, equivalent, larger, throughout
from experiments.lab.study import EARLY, Results, early_share, held_out
from experiments.packing_paper.curves import pictures as learning_pictures
from experiments.packing_paper.curves.tables import (
  NAMES,
  Found,
  accuracy,
  mean_difference,
  named,
  table,
  unigram,
)

SPREAD_MARGIN = 0.05  # of the standard deviation of the sequences of a step
TARGET = 3  # times the accuracy of always saying the commonest token


def same_batch(found: Found, folder: pathlib.Path, command: str) -> Exhibit:
  """Packed and unpacked training with as many sequences a step.

  Args:
    found: the results of each arm.
    folder: for the picture.
    command: that makes it.
  """
  packed, unpacked = found["packed"], found["unpacked"]
  sequences = packed[0]["curve"][-1]["sequences"]
  finding = (
    f"After {sequences:,} sequences unpacked training is "
    f"{mean_difference(unpacked, packed):+.4f} nats from packed training on held-out text."
  )
  learning_pictures.curves(
    folder / "same_batch.png", named(found, "packed", "unpacked"), title=finding
  )
  control = held_out(found["no_mask"])
  shares = [x["sequences"] / sequences for x in packed[0]["evaluations"]]
  return Exhibit(
    "Figure 3 left, Figure 15",
    "packed and unpacked with the same effective batch size",
    "in shape",
    finding,
    command,
    statements=[
      long_enough(packed),
      equivalent(
        "With the same sequences each step, packed and unpacked training come to the same",
        held_out(packed),
        held_out(unpacked),
        power=control,
      ),
      throughout(
        "They do at every evaluation of the second half",
        [
          equivalent(
            f"evaluation {number + 1} of {len(shares)}",
            held_out(packed, at=number),
            held_out(unpacked, at=number),
            power=held_out(found["no_mask"], at=number),
          )
          for number, share in enumerate(shares)
          if share >= 0.5
        ],
      ),
    ],
    pictures=["same_batch.png"],
    text=table(found, ["packed", "unpacked"])
    + "\n\nEach step has the same sequences, so that but for rounding the arithmetic is "
    "the same, which tests of the model show one step at a time: the claims hold unless "
    "something is wrong. The paper's unpacked steps have a constant number of sequences; "
    "so have those on WikiText-2 and of both phases, below.",
  )


def long_enough(runs: Results, what: str = "packed training") -> Statement:
  """Whether runs came to what makes differences worth a test.

  Args:
    runs: of one arm.
    what: it is called.
  """
  reached = [x / y for x, y in zip(accuracy(runs), unigram(runs), strict=True)]
  return larger(
    f"The runs are long enough: {what} is {TARGET} times as accurate as always saying the "
    "commonest token",
    reached,
    [TARGET] * len(reached),
    margin=0.1,
    unit="times",
  )


def heuristics(found: Found, folder: pathlib.Path, command: str) -> Exhibit:
  """Twice the sequences a step, and what is done about it.

  Args:
    found: the results of each arm.
    folder: for the picture.
    command: that makes it.
  """
  twice = ["twice", "twice_rate", "twice_betas"]
  names = ["unpacked", "packed", *twice, "constant_twice_betas"]
  finals = {name: float(np.mean(held_out(found[name]))) for name in twice}
  best, worst = min(finals, key=finals.__getitem__), max(finals, key=finals.__getitem__)
  base = float(np.mean(held_out(found["unpacked"])))
  finding = (
    f"With twice the batch, '{NAMES[best]}' ends with the lowest held-out loss "
    f"({finals[best] - base:+.4f} nats from unpacked training at the single batch), "
    f"'{NAMES[worst]}' with the highest ({finals[worst] - base:+.4f})."
  )
  learning_pictures.curves(folder / "heuristics.png", named(found, *names), title=finding)

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
        f"A larger batch, with adjusted betas, converges more slowly early on ({part})",
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
        held_out(found["unpacked"]),
        power=held_out(found["no_mask"]),
      ),
      larger(
        "Unpacked training at twice the batch with adjusted betas is slowed more than "
        f"packed training ({part})",
        early("constant_twice_betas"),
        early("twice_betas"),
      ),
    ],
    pictures=["heuristics.png"],
    text=table(found, names)
    + "\n\nHere a pack computes exactly what its sequences compute one a row, so that "
    "unpacked training with as many sequences a step is the same training but for how "
    "they are cut into steps. The last claim cannot hold but by that: where it does, by "
    "less than the margin, the paper's effect is not seen.",
  )


def by_time(found: Found, speed: Results, folder: pathlib.Path, command: str) -> Exhibit:
  """The optimised setups over the time they take.

  Args:
    found: the results of each arm.
    speed: of `experiments.speed`, measured as often as there are seeds.
    folder: for the picture.
    command: that makes it.
  """
  packed, unpacked = found["twice_betas"], found["unpacked"]
  ways = ("packed_sequences_per_second", "unpacked_sequences_per_second")
  gains, of_steps = [], []
  for a, b, clock in zip(packed, unpacked, speed, strict=True):
    target = max(_losses(x)[-1] for x in (a, b))  # what both reach
    needed = [_sequences_to(x, target) for x in (a, b)]
    gains.append(needed[1] / clock[ways[1]] / (needed[0] / clock[ways[0]]))
    a_step = [x["sequences_a_step"]["mean"] for x in (a, b)]
    of_steps.append(needed[0] / a_step[0] / (needed[1] / a_step[1]))
  rates = [float(np.mean([clock[way] for clock in speed])) for way in ways]
  factor = speed[0]["packing_factor"]
  realised = float(np.mean([clock["speedup_measured"] for clock in speed]))
  low, high = min(x["speedup_low"] for x in speed), max(x["speedup_high"] for x in speed)
  finding = (
    f"Packed training comes to the loss that both reach {np.mean(gains):.2f} times as "
    f"soon, in {np.mean(of_steps):.2f} of the steps; it sees {realised:.2f} times the "
    f"sequences a second (packing factor {factor:.3f})."
  )
  learning_pictures.by_time(
    folder / "by_time.png",
    named(found, "twice_betas", "unpacked"),
    sequences_per_second=dict(
      zip((NAMES["twice_betas"], NAMES["unpacked"]), rates, strict=True)
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
        "It does so sooner than the packing factor says, with one learning rate for all "
        "arms (the paper, each at its best: by more than 2)",
        gains,
        [factor] * len(gains),
        margin=0.05,
        unit="times",
      ),
    ],
    pictures=["by_time.png"],
    text=table(found, ["twice_betas", "unpacked"])
    + f"\n\nSteps were timed alone, in turns: {rates[0]:,.0f} sequences a second packed, "
    f"{rates[1]:,.0f} unpacked; quartiles of the ratio {low:.2f} to {high:.2f} in "
    f"{len(speed)} measurements, one a seed. The time of a run is its sequences over "
    "that. All arms have the rate that was chosen for packed training at the single batch "
    "(LOG.md): neither setup is optimised for itself. One program runs both kinds of rows "
    "and the batches are on the device before the clock starts: what mask and losses of "
    "packs cost is in Table 1's exhibit, and what packing saves in transfers, to which the "
    "paper puts down some of its gain, is not in the ratio.",
  )


def spread(found: Found, folder: pathlib.Path, command: str) -> Exhibit:
  """How the number of sequences differs from step to step.

  Args:
    found: the results of each arm.
    folder: for the picture.
    command: that makes it.
  """
  counts, lines, statements, found_here = {}, [], [], []
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
    found_here.append(
      f"{rows} packs {values.mean():.1f} ± {values.std(ddof=1):.1f} "
      f"({values.std(ddof=1) / values.mean():.0%})"
    )
  finding = f"Sequences of a step, mean and standard deviation: {', '.join(found_here)}."
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


def _losses(run: Mapping[str, Any]) -> list[float]:
  return [one["own"]["mlm_loss"] for one in run["evaluations"]]


def _sequences_to(run: Mapping[str, Any], loss: float) -> float:
  """After how many sequences a run had a loss, on lines between its evaluations."""
  counts = [one["sequences"] for one in run["evaluations"]]
  losses = _losses(run)
  if losses[0] <= loss:
    return counts[0]
  for (n, x), (m, y) in itertools.pairwise(zip(counts, losses, strict=True)):
    if y <= loss:
      return n + (x - loss) / (x - y) * (m - n)
  return counts[-1]


def _spread_statement(rows: int, values: np.ndarray, expected: float) -> Statement:
  """Whether the spread is that of packs drawn at random, within `SPREAD_MARGIN`."""
  freedom, found = len(values) - 1, float(np.std(values, ddof=1))
  low, high = (
    found * math.sqrt(freedom / float(scipy.stats.chi2.ppf(q, freedom)))
    for q in (1 - LEVEL / 2, LEVEL / 2)
  )
  least, most = ((1 + sign * SPREAD_MARGIN) * expected for sign in (-1, 1))
  outcome: Outcome = "no power"
  if least <= low and high <= most:
    outcome = "holds"
  elif high < least or low > most:
    outcome = "fails"
  return Statement(
    f"The sequences of {rows} packs spread as those of packs drawn at random do, within "
    f"{SPREAD_MARGIN:.0%}",
    outcome,
    f"sd {found:.3f}, 95 % interval {low:.3f} to {high:.3f} (chi-squared, {len(values):,} "
    f"steps); of packs drawn at random {expected:.3f}",
  )
