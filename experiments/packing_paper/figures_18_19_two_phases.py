"""Two phases of pretraining, or one packed phase at full length; Figures 18 to 21.

A small model sees the same number of real tokens in both ways: in one phase with rows of
192 tokens, or in two, with nine of ten sequences in rows of 64 and then the rest in rows of
192. Both phases are also trained unpacked, and the second also without the mask.

References:
  Krell et al., *Packing: Towards 2x NLP BERT Acceleration*, section 5; and
  https://arxiv.org/abs/2107.02027, section 4.3 and appendix P.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from experiments.packing_paper.curves import arms as curves
from experiments.packing_paper.curves import pictures
from experiments.packing_paper.curves.arms import lasting, make_study, mean_length, timed
from experiments.packing_paper.curves.tables import mean_difference
from lab.exhibits import Exhibit, Part
from lab.statistics import equivalent, larger, mean_and_sd, not_more
from lab.studies.paired_run import held_out
from lab.studies.study import Arm, ByArm, Study
from lab.table import table
from launch.settings import RunSettings

SHORT, FULL = 64, 192  # tokens of a row
SHARE = 0.9  # of the sequences, in the first phase: as BERT's 900,000 of 1,000,000 steps
BATCH = {SHORT: 35, FULL: 16}  # sequences a step: about as many real tokens
NAMES = {
  "phase_1": "first phase, packed",
  "phase_1_unpacked": "first phase, unpacked",
  "phase_2": "two phases, packed",
  "phase_2_unpacked": "two phases, unpacked",
  "phase_2_no_mask": "two phases, the second without mask",
  "packed": "one phase, packed",
  "same_time": "one phase, packed, as long as two",
}
Speed = Mapping[int, float]  # packed sequences a second, by row length


class Phase(NamedTuple):
  """What a phase sees."""

  sequences: float  # their number
  fields: dict[str, Any]  # of the config: where its data are, and the row length


def make_phases(
  run: RunSettings, sequences: float, short: int, full: int
) -> dict[int, Phase]:
  """Both phases by row length; together as many real tokens as `sequences` in full rows.

  Full rows have the data of the run, short rows have data of their own.
  """
  data = run.data.directory
  fields: dict[int, dict[str, Any]] = {
    full: {},
    short: {
      "data.directory": f"{data}-{short}",
      "data.max_sequence_length": short,
      "data.vocab_file": f"{data}/vocab.txt",
    },
  }
  mean = {length: mean_length(run, fields[length]) for length in fields}
  return {
    length: Phase(number, fields[length])
    for length, number in split(sequences, mean).items()
  }


def split(sequences: float, mean: Mapping[int, float]) -> dict[int, float]:
  """Sequences in each of two phases, with as many real tokens as `sequences` in one phase.

  `mean` has the mean length of sequences, in tokens, by row length.

  Example:
    >>> [round(n) for n in split(1000, {64: 40.0, 192: 90.0}).values()]
    [1800, 200]
  """
  short, full = sorted(mean)
  total = sequences * mean[full] / (SHARE * mean[short] + (1 - SHARE) * mean[full])
  return {short: SHARE * total, full: (1 - SHARE) * total}


def make_arms(phases: Mapping[int, Phase], batch: Mapping[int, int]) -> list[Arm]:
  """The arms: both phases packed and unpacked, and the second also without the mask.

  `batch` is the number of sequences a step, by row length.
  """
  short, full = (
    phases[x].fields | lasting(phases[x].sequences, batch[x]) for x in sorted(phases)
  )
  no_mask = {"model.attention_mask": "none"}
  return [
    Arm("phase_1", short, keep=True),
    Arm("phase_2", full, starts_from="phase_1"),
    Arm("phase_1_unpacked", short, "constant", keep=True),
    Arm("phase_2_unpacked", full, "constant", starts_from="phase_1_unpacked"),
    Arm("phase_2_no_mask", full | no_mask, starts_from="phase_1"),
  ]


def run(part: Part) -> tuple[ByArm, Speed]:
  """Runs what is not finished; returns the results, and the speed of packed steps."""
  one = make_study(part, ["packed", "no_mask"], seeds=curves.MORE_SEEDS)
  results = one.run()
  run = one.runs[0][1].settings
  sequences = run.train.steps * run.train.batch_size
  phases = make_phases(run, sequences, SHORT, FULL)
  arms = make_arms(phases, BATCH)
  study = dataclasses.replace(one, folder=part.folder)
  speed = _measure(study, {SHORT: arms[0].fields, FULL: arms[1].fields})
  as_long = sum(phases[x].sequences / speed[x] for x in speed) * speed[FULL]
  arms.append(Arm("same_time", phases[FULL].fields | lasting(as_long, BATCH[FULL])))
  return results | dataclasses.replace(study, arms=arms).run(), speed


def _measure(study: Study, phases: Mapping[int, Mapping[str, Any]]) -> Speed:
  """Packed sequences a second: the median of one measurement per seed.

  Row lengths take turns, with all cores to themselves, so that slow moments slow both.
  """
  arms = [Arm(f"speed_{length}", fields) for length, fields in phases.items()]
  results = timed(study, arms).values()
  rates = ([x["packed_sequences_per_second"] for x in runs] for runs in results)
  return {n: float(np.median(rate)) for n, rate in zip(phases, rates, strict=True)}


def outlook(part: Part, results: ByArm, speed: Speed) -> Exhibit:
  """The exhibit of two phases against one, with equal numbers of tokens or equal time."""
  one, two, same_time = (results[name] for name in ("packed", "phase_2", "same_time"))
  apart = [mean_difference(two, runs) for runs in (one, same_time)]
  arms = ("packed", "same_time", "phase_2")
  seconds = {name: _last(results[name], "sequences") / speed[FULL] for name in arms}
  seconds["phase_2"] += _last(results["phase_1"], "sequences") / speed[SHORT]
  finding = (
    f"The held-out loss of two phases differs from that of one by {apart[0]:+.3f} nats "
    f"with the same number of real tokens, and by {apart[1]:+.3f} in the same time; two "
    f"phases take {seconds['phase_2'] / seconds['packed']:.2f} times as long as one with "
    "the same number of tokens."
  )
  rows = []
  for name in (*arms, "phase_2_unpacked"):
    runs = results[name]
    tokens = _last(runs, "real_tokens")
    if name.startswith("phase_2"):
      tokens += _last(results[name.replace("2", "1")], "real_tokens")
    minutes = f"{seconds[name] / 60:.1f}" if name in seconds else ""
    row = [NAMES[name], f"{tokens:,.0f}", minutes, mean_and_sd(held_out(runs))]
    rows.append([*row, f"{np.mean(held_out(runs, 'mlm_accuracy')):.2%}"])
  pictures.bars(
    part.folder / "two_phases.png",
    {NAMES[name]: held_out(results[name]) for name in arms},
    label="held-out loss of masked tokens at the end, nats",
    title=finding,
  )
  header = ["", "real tokens", "minutes of steps", "held-out loss", "accuracy"]
  equal = {"With the same number of real tokens": one, "In the same time": same_time}
  loss, control = held_out(two), held_out(results["no_mask"])
  claim = "one packed phase reaches a lower loss than two phases"
  lower = [larger(f"{x} {claim}", loss, held_out(runs)) for x, runs in equal.items()]
  claim = "the loss of one packed phase is no higher than that of two phases"
  no_higher = [
    not_more(f"{x} {claim}", held_out(runs), loss, power=control)
    for x, runs in equal.items()
  ]
  return part.exhibit(
    "2021 version, section 5",
    "Two phases, or one packed phase at full length",
    finding,
    claim="Packing may make the first phase on short rows superfluous.",
    statements=lower + no_higher,
    pictures=["two_phases.png"],
    text=table(header, rows)
    + "\n\nMinutes are computed from steps that were timed separately, with row lengths in "
    "turns. All arms are evaluated on the same held-out text, in sequences of up to 192 "
    "tokens. Pairs share only their seed, since rows of another length hold other "
    "sequences. The last two claims were added after the first results had been seen, with "
    "the same margin as all claims. The arm that is known to differ is the arm without a "
    "mask from the learning curves.",
  )


def phase(part: Part, number: int, results: ByArm) -> Exhibit:
  """The exhibit of the learning curves of phase 1 or 2, packed and unpacked."""
  of_phase = f"phase_{number}"
  names = [name for name in NAMES if name.startswith(of_phase) and name in results]
  packed, unpacked = results[of_phase], results[f"{of_phase}_unpacked"]
  factor = packed[0]["plan"]["packing_factor"]
  row_length = packed[0]["run"]["config"]["data"]["max_sequence_length"]
  finding = (
    f"In phase {number}, rows of {row_length} tokens, the held-out loss of "
    f"packed training differs from that of unpacked training by "
    f"{mean_difference(packed, unpacked):+.4f} nats, in {1 / factor:.0%} of the rows."
  )
  path = part.folder / f"phase_{number}.png"
  pictures.curves(path, {NAMES[arm]: results[arm] for arm in names}, title=finding)
  evaluations = packed[0]["evaluations"]
  before = max(-2, -len(evaluations))  # the last but one; a quick run may have only one
  statements = [
    equivalent(
      f"In phase {number} packed training reaches the same loss as unpacked training",
      held_out(packed),
      held_out(unpacked),
      power=held_out(packed, at=before),
    )
  ]
  if no_mask := results.get(f"{of_phase}_no_mask"):
    claim = f"In phase {number} the loss is higher without the mask"
    statements.append(larger(claim, held_out(no_mask), held_out(packed)))
  return part.exhibit(
    f"Figure {17 + number}",
    f"Phase {number}, packed and unpacked",
    finding,
    claim=f"In phase {number} packed and unpacked training reach the same loss.",
    statements=statements,
    pictures=[path.name],
    text="Unpacked steps have a constant number of sequences. As the arm that is known to "
    "differ we take packed training at an earlier evaluation, after "
    f"{evaluations[before]['sequences']:,} sequences."
    + " Packed arms, also the one without the mask, start from the packed first phase, the "
    "unpacked arm from the unpacked one. The claim on the mask was added after the results "
    "had been seen." * (number == 2),
  )


def _last(runs, counter: str) -> float:
  """A counter at the end of the learning curve, the mean over seeds."""
  return float(np.mean([run["curve"][-1][counter] for run in runs]))


def exhibits(part: Part) -> list[Exhibit]:
  """Trains what is not trained yet, draws and tests; raises as `Study.run`."""
  results, speed = run(part)
  made = [outlook(part, results, speed)]
  about = f"{curves.ABOUT} The first phase has rows of {SHORT}."
  for number in (1, 2):
    figure = phase(part, number, results)
    made.append(dataclasses.replace(figure, text=f"{about} {figure.text}"))
  return [
    *map(curves.told_of_added_seeds, made),
    part.exhibit(
      "Figures 20 and 21",
      "Both phases of a larger model",
      "BERT-large needs an accelerator. There is a config for each of its two phases; "
      "--config.packing.algorithm=none gives the unpacked curves.",
      agreement="not run here",
      command="python train.py --config=configs/bert_large_phase1.py "
      "--workdir=runs/bert_large_phase1 && python train.py "
      "--config=configs/bert_large_phase2.py:384 --workdir=runs/bert_large_384",
      claim="BERT-large, too, reaches the same loss packed and unpacked in both phases.",
    ),
  ]
