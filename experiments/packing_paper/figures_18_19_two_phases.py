"""Two phases of pretraining, or one packed phase at full length; Figures 18 to 21.

  python -m experiments.two_phases

BERT is trained on short rows first, to waste less on padding. The 2021 version of the
paper asks whether packing makes that superfluous, as it leaves no padding in long rows
either. Here a small model sees as many real tokens in both ways: in one phase with rows of
192 tokens, or nine of ten sequences in rows of 64 and the rest in rows of 192, from the
weights of the first phase. Both phases are trained one sequence a row as well, and packed
without the mask, the second from a first with it. Runs of the learning curves are taken
from results/learning_curves; what is finished is not run again.

References:
  Krell et al., *Packing: Towards 2x NLP BERT Acceleration*, section 5; and
  https://arxiv.org/abs/2107.02027, section 4.3 and appendix P.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import ml_collections
import numpy as np

import pipeline
from experiments.lab import part as parts
from experiments.lab.exhibits import Exhibit
from experiments.lab.paired_run import Arm
from experiments.lab.report import table
from experiments.lab.statistics import equivalent, larger, not_more
from experiments.lab.study import held_out
from experiments.packing_paper.curves import arms as learning_curves
from experiments.packing_paper.curves import pictures as learning_pictures
from experiments.packing_paper.curves.tables import Found, mean_difference
from training.sweep import jobs as schedule

COMMAND = "python -m experiments.two_phases"

SHORT, FULL = 64, 192  # tokens of a row
SHARE = 0.9  # of the sequences, in the first phase: 900 of 1,000 thousand steps of BERT
WARMUP = 0.06  # of a phase, as on the quickstart
BATCH = {SHORT: 35, FULL: 16}  # sequences a step: about as many real tokens
WAYS = {"": "packed", "_unpacked": "constant"}  # batches, by what it adds to names of arms
NAMES = {
  "phase_1": "first phase, packed",
  "phase_1_unpacked": "first phase, unpacked",
  "phase_1_no_mask": "first phase, packed without mask",
  "phase_2": "two phases, packed",
  "phase_2_unpacked": "two phases, unpacked",
  "phase_2_no_mask": "two phases, the second without mask",
  "packed": "one phase, packed",
  "same_time": "one phase, packed, as long as two",
}


def fields(sequences: float, row_length: int, *, data: str) -> dict[str, Any]:
  """Of the config of a phase.

  Args:
    sequences: that it sees.
    row_length: S, in tokens.
    data: the directory of the second phase's.
  """
  of_data: dict[str, Any] = {}
  if row_length == SHORT:
    of_data = {
      "data.directory": f"{data}-{SHORT}",
      "data.max_sequence_length": SHORT,
      "data.vocab_file": f"{data}/vocab.txt",
    }
  return of_data | {
    "packing.adjust": "reduce_batch",
    "train.batch_size": BATCH[row_length],
    "train.duration": f"{round(sequences)} sequences",
    "optimizer.warmup": f"{round(WARMUP * sequences)} sequences",
  }


def split(sequences: float, mean_length: dict[int, float]) -> dict[int, float]:
  """Sequences of both phases that have as many real tokens as one phase.

  Args:
    sequences: of the one phase.
    mean_length: of the sequences by row length, in tokens.

  Example:
    >>> [round(n) for n in split(1000, {SHORT: 40.0, FULL: 90.0}).values()]
    [1800, 200]
  """
  first, second = SHARE * mean_length[SHORT], (1 - SHARE) * mean_length[FULL]
  total = sequences * mean_length[FULL] / (first + second)
  return {SHORT: SHARE * total, FULL: (1 - SHARE) * total}


def make_arms(short: Mapping[str, Any], full: Mapping[str, Any]) -> list[Arm]:
  """Both phases, packed and unpacked; and each packed without the mask.

  Args:
    short: fields of the first phase.
    full: of the second.
  """
  arms = []
  for suffix, batches in WAYS.items():
    first = f"phase_1{suffix}"
    arms += [
      Arm(first, short, batches, keep=True),
      Arm(f"phase_2{suffix}", full, batches, starts_from=first),
    ]
  no_mask = {"model.attention_mask": "none"}
  return [
    *arms,
    Arm("phase_1_no_mask", {**short, **no_mask}),
    Arm("phase_2_no_mask", {**full, **no_mask}, starts_from="phase_1"),
  ]


class Phases:
  """The runs, and what they are compared with.

  Args:
    folder: of this part.
    quick: a few steps.
    seeds: how many; as many as the learning curves have if not given.
    jobs: runs at a time; as many as cores if not given.
  """

  def __init__(
    self, folder: pathlib.Path, *, quick: bool, seeds: int | None, jobs: int | None
  ):
    self._runs = learning_curves.runs_folder(folder, quick=quick)
    self._jobs = jobs or len(schedule.cores())
    self._one = learning_curves.shared(
      folder, ["packed", "no_mask"], quick=quick, seeds=seeds
    )

  def run(self) -> tuple[Found, dict[int, float]]:
    """Runs what is not finished.

    Returns:
      The results of each arm; and packed sequences a second, by row length.
    """
    self._one.run_all(jobs=self._jobs)
    found = dict(self._one.results())
    config = self._config
    sequences = config.train.steps * config.train.batch_size
    mean = {length: self._mean_length(length) for length in (SHORT, FULL)}
    parts_of = split(sequences, mean)
    speed = self._measure(parts_of)
    # As long as both phases take, by the clock of steps that were measured alone.
    as_long = sum(parts_of[n] / speed[n] for n in speed) * speed[FULL]
    arms = make_arms(*(self._fields(parts_of[n], n) for n in (SHORT, FULL)))
    arms.append(Arm("same_time", self._fields(as_long, FULL)))
    study = dataclasses.replace(self._one, folder=self._runs, arms=arms)
    study.run_all(jobs=self._jobs)
    return found | study.results(), speed

  def _measure(self, parts_of: dict[int, float]) -> dict[int, float]:
    """Packed sequences a second: the median of a measurement a seed.

    Row lengths take turns, alone on all cores, so that a slow moment slows both.
    """
    arms = {n: Arm(f"speed_{n}", self._fields(parts_of[n], n)) for n in parts_of}
    timing = dataclasses.replace(
      self._one, folder=self._runs, arms=list(arms.values()), module="experiments.speed"
    )
    timing.run_all(jobs=1)
    found = timing.results()
    return {
      n: float(np.median([x["packed_sequences_per_second"] for x in found[arm.name]]))
      for n, arm in arms.items()
    }

  @property
  def _config(self) -> ml_collections.ConfigDict:
    """Of the one phase."""
    return self._one.runs[0][1].config

  def _fields(self, sequences: float, row_length: int) -> dict[str, Any]:
    return fields(sequences, row_length, data=self._config.data.directory)

  def _mean_length(self, row_length: int) -> float:
    """Of the sequences that are cut for rows of this length, in tokens."""
    chosen = self._config.copy_and_resolve_references()
    if row_length != chosen.data.max_sequence_length:
      chosen.update_from_flattened_dict(self._fields(1, row_length))
    return float(pipeline.prepare_dataset(chosen).train.lengths.mean())


def outlook(found: Found, speed: dict[int, float], folder: pathlib.Path) -> Exhibit:
  """Two phases against one, at as many real tokens and at as much time.

  Args:
    found: the results of each arm.
    speed: packed sequences a second, by row length.
    folder: for the picture.
  """
  one, two, same_time = (found[name] for name in ("packed", "phase_2", "same_time"))
  apart = [mean_difference(two, runs) for runs in (one, same_time)]
  seconds = {name: _seconds(found[name], speed) for name in ("packed", "same_time")}
  seconds["phase_2"] = _seconds(found["phase_1"], speed, SHORT) + _seconds(two, speed)
  finding = (
    f"Two phases end {apart[0]:+.3f} nats from one phase at as many real tokens, and "
    f"{apart[1]:+.3f} at as much time; they take "
    f"{seconds['phase_2'] / seconds['packed']:.2f} times as long as one at as many tokens."
  )
  rows = []
  for name in ("packed", "same_time", *(f"phase_2{suffix}" for suffix in WAYS)):
    runs = found[name]
    before = found[name.replace("2", "1")] if name.startswith("phase_2") else None
    tokens = _tokens(runs) + (_tokens(before) if before else 0)
    losses = held_out(runs)
    rows.append(
      [
        NAMES[name],
        f"{tokens:,.0f}",
        f"{seconds[name] / 60:.1f}" if name in seconds else "",
        f"{np.mean(losses):.4f}" + _spread(losses),
        f"{np.mean(held_out(runs, 'mlm_accuracy')):.2%}",
      ]
    )
  learning_pictures.bars(
    folder / "two_phases.png",
    {NAMES[name]: held_out(found[name]) for name in ("packed", "same_time", "phase_2")},
    label="held-out loss of masked tokens at the end, nats",
    title=finding,
  )
  return Exhibit(
    name="2021 version, section 5",
    title="Two phases, or one packed phase at full length",
    agreement="in shape",
    finding=finding,
    command=COMMAND,
    statements=[
      larger(
        "At as many real tokens one packed phase comes to a lower loss than two phases",
        held_out(two),
        held_out(one),
      ),
      larger(
        "At as much time one packed phase comes to a lower loss than two phases",
        held_out(two),
        held_out(same_time),
      ),
      *(
        not_more(
          f"At as {many} one packed phase comes to no higher loss than two phases",
          held_out(runs),
          held_out(two),
          power=held_out(found["no_mask"]),
        )
        for many, runs in (("many real tokens", one), ("much time", same_time))
      ),
    ],
    pictures=["two_phases.png"],
    text=table(
      ["", "real tokens", "minutes of steps", "held-out loss", "accuracy"],
      rows,
      right=(1, 2, 3, 4),
    )
    + "\n\nMinutes are sequences over sequences a second of steps that were timed alone, "
    "row lengths in turns, the median over seeds. Held-out text is the same for all, in "
    "sequences of up to 192 tokens. Pairs have their seed alone in common: sequences of "
    "another length are others. The paper asks whether two phases are needed, which the "
    "last two claims put to the test; they were added when the first results had been "
    "seen, with the margin that all claims have. The arm that differs is that without "
    "mask of the learning curves.",
  )


def phase(number: int, found: Found, folder: pathlib.Path) -> Exhibit:
  """The learning curves of a phase, packed and unpacked.

  Args:
    number: 1 or 2.
    found: the results of each arm.
    folder: for the picture.
  """
  arms = [f"phase_{number}{x}" for x in (*WAYS, "_no_mask")]
  packed, unpacked, no_mask = (found[arm] for arm in arms)
  factor = packed[0]["plan"]["packing_factor"]
  length = SHORT if number == 1 else FULL
  finding = (
    f"In phase {number}, rows of {length} tokens, packed training ends "
    f"{mean_difference(packed, unpacked):+.4f} nats from unpacked training on held-out "
    f"text, in {1 / factor:.0%} of the rows; without the mask "
    f"{mean_difference(no_mask, packed):+.4f} from that with it."
  )
  name = f"phase_{number}.png"
  learning_pictures.curves(
    folder / name,
    {NAMES[arm]: found[arm] for arm in arms},
    title=finding,
  )
  return Exhibit(
    name=f"Figure {17 + number}",
    title=f"Phase {number} of a small model, packed and unpacked",
    agreement="in shape",
    finding=finding,
    command=COMMAND,
    statements=[
      equivalent(
        f"In phase {number} packed training comes to the same as unpacked training",
        held_out(packed),
        held_out(unpacked),
        power=held_out(no_mask),
      )
    ],
    pictures=[name],
    text="Unpacked steps have a constant number of sequences."
    + " The unpacked arm begins with the weights of its own first phase, that without the "
    "mask with those of the first phase with it." * (number == 2),
  )


def _seconds(runs, speed: dict[int, float], row_length: int = FULL) -> float:
  """Of a run of packed steps."""
  sequences = np.mean([run["curve"][-1]["sequences"] for run in runs])
  return float(sequences / speed[row_length])


def _tokens(runs) -> float:
  return float(np.mean([run["curve"][-1]["real_tokens"] for run in runs]))


def _spread(values: list[float]) -> str:
  return f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""


def exhibits(
  folder: pathlib.Path,
  *,
  quick: bool = False,
  seeds: int | None = None,
  jobs: int | None = None,
) -> list[Exhibit]:
  """Trains what is not trained yet, draws and tests.

  Args:
    folder: for the runs and the pictures.
    quick: a few steps with few seeds, to see that it works.
    seeds: how many; as many as the learning curves have if not given.
    jobs: runs at a time; as many as cores if not given.

  Raises:
    Stopped: some runs failed; all others are finished.
  """
  found, speed = Phases(folder, quick=quick, seeds=seeds, jobs=jobs).run()
  return [
    outlook(found, speed, folder),
    phase(1, found, folder),
    phase(2, found, folder),
    Exhibit(
      name="Figures 20 and 21",
      title="Both phases of a larger model",
      agreement="not run here",
      finding="BERT-large is for accelerators; its two phases are configs, with "
      "--config.packing.algorithm=none for the unpacked curves.",
      command="python train.py --config=configs/bert_large_phase1.py "
      "--workdir=runs/bert_large_phase1 && python train.py "
      "--config=configs/bert_large_phase2.py:384 --workdir=runs/bert_large_384",
    ),
  ]


if __name__ == "__main__":
  sys.exit(
    parts.main(
      __doc__, exhibits, name="two_phases", add_options=learning_curves.add_options
    )
  )
