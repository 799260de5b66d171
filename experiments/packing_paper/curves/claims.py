"""The learning curves of section 4.2 as exhibits: pictures, claims, tables.

References:
  Krell et al., https://arxiv.org/abs/2107.02027, sections 3.3, 4.2 and 4.2.1.
"""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.stats

from experiments.packing_paper.curves import pictures
from experiments.packing_paper.curves.tables import (
  NAMES,
  comparison,
  length_table,
  mean_difference,
  named,
  table,
)
from lab import report
from lab.exhibits import Exhibit, Part, Statement, judged
from lab.statistics import (
  LEVEL,
  equivalent,
  larger,
  reaches,
  throughout,
)
from lab.studies.paired_run import EARLY, EARLY_SHARE, held_out
from lab.studies.study import ByArm, Results
from launch.sweep.pairs import paired_difference

SPREAD_MARGIN = 0.05  # of the standard deviation of the sequences in a step
TARGET = 3  # times the accuracy of always predicting the most frequent token
RATES = ("twice_rate", "twice")  # twice the batch, with a raised learning rate and without


def same_batch(part: Part, results: ByArm) -> Exhibit:
  """The exhibit of packed and unpacked training with the same sequences each step."""
  names = ["packed", "unpacked"]
  packed, unpacked = (results[name] for name in names)
  sequences = packed[0]["curve"][-1]["sequences"]
  finding = (
    f"After {sequences:,} sequences the held-out loss of unpacked training differs from "
    f"that of packed training by {mean_difference(unpacked, packed):+.4f} nats."
  )
  evaluations = packed[0]["evaluations"]

  def equal(claim: str, at: int) -> Statement:
    losses = (held_out(runs, at=at) for runs in (packed, unpacked))
    return equivalent(claim, *losses, power=held_out(results["no_mask"], at=at))

  return comparison(
    part,
    results,
    names,
    "Figure 3 left, Figure 15",
    "Packed and unpacked training with the same effective batch size",
    finding,
    picture="same_batch.png",
    claim="With the same effective batch size, packed and unpacked training have the same "
    "learning curve.",
    statements=[
      long_enough(packed),
      equal(
        "With the same sequences each step, packed and unpacked training reach the same "
        "loss",
        -1,
      ),
      throughout(
        "They do so at every evaluation of the second half",
        [
          equal(f"evaluation {number + 1} of {len(evaluations)}", number)
          for number, one in enumerate(evaluations)
          if one["sequences"] >= sequences / 2
        ],
      ),
    ],
    after="The paper's unpacked steps have a constant number of sequences, as in "
    "Figures 18 and 19. Held-out loss by the length of the sequence:\n\n"
    + length_table(results, names),
  )


def long_enough(runs: Results, what: str = "packed training") -> Statement:
  """Tests whether runs have learned enough for their differences to mean something."""
  unigram = held_out(runs, "unigram_mlm_accuracy")
  reached = np.divide(held_out(runs, "mlm_accuracy"), unigram).tolist()
  claim = (
    f"{what} is {TARGET} times as accurate as always predicting the most frequent token"
  )
  return reaches(
    f"The runs are long enough: {claim}", reached, TARGET, margin=0.1, unit="times"
  )


def heuristics(part: Part, results: ByArm, more: ByArm) -> Exhibit:
  """The exhibit of twice the sequences a step, with each adjustment of the optimizer.

  `more` has the results of `RATES`, with more seeds.
  """
  twice = ["twice", "twice_rate", "twice_betas"]
  names = ["unpacked", "packed", *twice, "constant_twice_betas"]
  final = {name: held_out(results[name]) for name in names}
  early = {name: held_out(results[name], at=EARLY) for name in names}
  mean = {name: float(np.mean(final[name])) for name in ("unpacked", *twice)}
  best, worst = min(twice, key=mean.__getitem__), max(twice, key=mean.__getitem__)
  finding = (
    f"Of the packed arms with twice the batch, '{NAMES[best]}' ends with the lowest "
    f"held-out loss ({mean[best] - mean['unpacked']:+.4f} nats from unpacked training at "
    f"the single batch), '{NAMES[worst]}' with the highest "
    f"({mean[worst] - mean['unpacked']:+.4f})."
  )
  when = f"after {EARLY_SHARE:.0%} of the sequences"
  return comparison(
    part,
    results,
    names,
    "Figure 3 middle, Figure 16",
    "Adjustments for the larger effective batch",
    finding,
    picture="heuristics.png",
    claim="With the larger batch of packing, adjusted betas reach the unpacked loss in the "
    "end, and a higher learning rate makes it worse.",
    statements=[
      larger(
        f"A larger batch, with adjusted betas, converges more slowly early on ({when})",
        early["twice_betas"],
        early["packed"],
      ),
      larger(
        "Raising the learning rate with the batch makes the result worse",
        *(held_out(more[name]) for name in RATES),
      ),
      equivalent(
        "With the betas adjusted, packed training matches unpacked training in the end",
        final["twice_betas"],
        final["unpacked"],
        power=held_out(results["no_mask"]),
      ),
      larger(
        "Unpacked training at twice the batch with adjusted betas is slowed more than "
        f"packed training ({when})",
        early["constant_twice_betas"],
        early["twice_betas"],
      ),
    ],
    after=f"Arms have {len(results['twice'])} seeds here; the second claim has "
    f"{len(more['twice'])} of its two arms. The two arms of the last claim differ only in "
    "how sequences are divided into steps. Found afterwards, so no claim: from twice the "
    "batch without any adjustment, that with adjusted betas ends "
    f"{paired_difference(final['twice_betas'], final['twice'])} nats apart.",
  )


def by_time(part: Part, results: ByArm, speed: Results) -> Exhibit:
  """The exhibit of setups by training time; `speed` is from `lab.paired_speed`."""
  packed, unpacked = results["twice_betas"], results["unpacked"]
  ways = ("packed_sequences_per_second", "unpacked_sequences_per_second")
  gains, of_steps = [], []
  for a, b, clock in zip(packed, unpacked, speed, strict=True):
    target = max(*held_out([a, b]))  # both reach it
    needed = [_sequences_to(x, target) for x in (a, b)]
    gains.append(needed[1] / clock[ways[1]] / (needed[0] / clock[ways[0]]))
    a_step = [x["sequences_a_step"]["mean"] for x in (a, b)]
    of_steps.append(needed[0] / a_step[0] / (needed[1] / a_step[1]))
  rates = [float(np.mean([clock[way] for clock in speed])) for way in ways]
  factor = speed[0]["packing_factor"]
  realised = float(np.mean([clock["speedup_measured"] for clock in speed]))
  low, high = min(x["speedup_low"] for x in speed), max(x["speedup_high"] for x in speed)
  finding = (
    f"Packed training reaches the same loss {np.mean(gains):.2f} times as fast, in "
    f"{np.mean(of_steps):.2f} of the steps; it sees {realised:.2f} times the sequences a "
    f"second (packing factor {factor:.3f})."
  )
  more_times = functools.partial(larger, margin=0.05, unit="times")
  once = [1.0] * len(gains)
  names = ["twice_betas", "unpacked"]
  arms = named(results, names)
  per_second = dict(zip(arms, rates, strict=True))
  path = part.folder / "by_time.png"
  pictures.by_time(path, arms, sequences_per_second=per_second, title=finding)
  return part.exhibit(
    "Figure 3 right, Figure 17",
    "Optimised setups by the time of training",
    finding,
    claim="Packed training reaches the same accuracy in less than half of the time.",
    statements=[
      more_times("Packed training reaches the same loss in less time", gains, once),
      more_times(
        "It gains more than the packing factor, with one learning rate for all arms (the "
        "paper, each at its best: more than 2)",
        gains,
        [factor] * len(gains),
      ),
    ],
    pictures=["by_time.png"],
    text=f"{table(results, names)}\n\n"
    f"Steps were timed separately, in turns: {rates[0]:,.0f} sequences a second packed, "
    f"{rates[1]:,.0f} unpacked. {realised:.2f} is the mean of {len(speed)} measurements, "
    "one per seed, each the median of the ratios of its turns; their quartiles are "
    f"{low:.2f} to {high:.2f}. All arms have the same learning rate, so "
    "neither setup is optimised on its own. One program runs both kinds of rows, from "
    "batches on the device: the cost of the mask and of the losses is in Table 1's "
    "exhibit, and what packing saves in transfers is not measured.",
  )


def spread(part: Part, results: ByArm) -> Exhibit:
  """The exhibit of how the number of sequences varies from step to step."""
  counts, rows, statements, summary = {}, [], [], []
  for arm in ("packed", "twice"):
    runs = results[arm]
    packs = runs[0]["recipe"]["rows"]
    steps: collections.Counter[int] = collections.Counter()
    for run in runs:
      steps.update({int(n): k for n, k in run["sequences_a_step"]["steps"].items()})
    counts[f"{packs} packs"] = steps
    values = np.repeat(list(steps), list(steps.values()))
    mean, sd = values.mean(), values.std(ddof=1)
    expected = math.sqrt(packs) * runs[0]["plan"]["sequences_a_pack_sd"]
    statements.append(_spread_statement(packs, values, expected))
    numbers = [f"{packs}", *(f"{x:.2f}" for x in (mean, sd, expected))]
    rows.append([*numbers, f"{min(values)}", f"{max(values)}", f"{sd / mean:.1%}"])
    summary.append(f"{packs} packs {mean:.1f} ± {sd:.1f} ({sd / mean:.0%})")
  finding = f"Sequences of a step, mean and standard deviation: {', '.join(summary)}."
  pictures.spread(part.folder / "sequences_a_step.png", counts, title=finding)
  header = ["packs a step", "mean", "sd", "sd of packs drawn at random", "least", "most"]
  return part.exhibit(
    "Section 3.3",
    "The spread of the sequences of a step",
    finding,
    claim="With packing the number of sequences varies from step to step, but little.",
    statements=statements,
    pictures=["sequences_a_step.png"],
    text=report.table([*header, "sd / mean"], rows, left=()),
  )


def _sequences_to(run: Mapping[str, Any], loss: float) -> float:
  """After how many sequences a run reached a loss, interpolated between evaluations."""
  counts = [one["sequences"] for one in run["evaluations"]]
  losses = [one["own"]["mlm_loss"] for one in run["evaluations"]]
  reached = int(np.argmax(np.array(losses) <= loss))  # the first that is low enough
  around = slice(max(reached - 1, 0), reached + 1)
  return float(np.interp(-loss, np.negative(losses[around]), counts[around]))


def _spread_statement(packs: int, values: np.ndarray, expected: float) -> Statement:
  """Whether the spread is that of packs drawn at random, within `SPREAD_MARGIN`."""
  freedom, sd = len(values) - 1, float(np.std(values, ddof=1))
  low, high = (
    sd * math.sqrt(freedom / float(scipy.stats.chi2.ppf(q, freedom)))
    for q in (1 - LEVEL / 2, LEVEL / 2)
  )
  least, most = ((1 + sign * SPREAD_MARGIN) * expected for sign in (-1, 1))
  return judged(
    f"The sequences of {packs} packs vary as those of packs drawn at random, within "
    f"{SPREAD_MARGIN:.0%}",
    least <= low and high <= most,
    f"sd {sd:.3f}, 95 % interval {low:.3f} to {high:.3f} (chi-squared, {len(values):,} "
    f"steps); of packs drawn at random {expected:.3f}",
    fails=high < least or low > most,
  )
