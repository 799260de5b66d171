"""BERT-tiny on Wikipedia, in two phases, as the paper trains: with --data.

The first phase is one epoch of `TEXT_BYTES` of text in rows of 128 tokens. The second, in
rows of 512, has a ninth as many sequences. Its arms are those of `arms.ARMS`, and all start
from the same packed first phase; `phase_2_unpacked` alone was never packed. The vocabulary
is BERT's.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import packing
import pipeline
from experiments.lab import real_data
from experiments.lab.part import Part
from experiments.lab.study import SEEDS, Arm, Study
from experiments.packing_paper.curves import arms

SHORT, FULL = 128, 512  # tokens of a row, in the first and in the second phase
BATCH = {SHORT: 32, FULL: 10}  # sequences a step: about as many real tokens
TEXT_BYTES = 30_000_000  # of the articles: what three hours of two cores allow
SEQUENCES = {SHORT: 66_700, FULL: 7_411}  # of a run: an epoch, and a ninth of it
ABOUT = (
  f"BERT-tiny on {TEXT_BYTES / 1e6:.0f} MB of Wikipedia's articles with BERT's vocabulary: "
  f"{SEQUENCES[SHORT]:,} sequences in rows of {SHORT} tokens, about an epoch, then "
  f"{SEQUENCES[FULL]:,} in rows of {FULL}."
)
OVERRIDES: dict[str, Any] = {
  "data.held_out_fraction": 0.01,
  "data.dupe_factor": 1,
  "packing.algorithm": "optimal",
  "packing.max_sequences_per_pack": 0,
  "optimizer.learning_rate": 0.01,
}


def is_there(part: Part) -> bool:
  """Whether a part is made on this text: not if it is quick, or the text is missing."""
  if part.quick or part.data is None:
    return False
  return any(pathlib.Path(part.data).glob(real_data.TEXT))


def make_study(part: Part, names: Sequence[str]) -> Study:
  """The study with some of the arms of the second phase, and the first that they need.

  All parts of a report share its runs.

  Raises:
    InputError: the text or the vocabulary is missing.
  """
  assert part.data is not None, "see is_there"
  folder = part.beside("wikipedia").folder
  source = real_data.write_articles(part.data, folder / "text.txt", at_least=TEXT_BYTES)
  overrides = OVERRIDES | {
    "data.source": str(source),
    "data.vocab_file": str(real_data.find(part.data, "bert-base-uncased-vocab.txt")),
  }
  short, full = (fields(length, folder) for length in (SHORT, FULL))
  before = [
    Arm("phase_1", short, keep=True),
    Arm("phase_1_unpacked", short, "constant", keep=True),
  ]
  after = [
    dataclasses.replace(arm, fields={**full, **arm.fields}, starts_from="phase_1")
    for arm in arms.ARMS
  ]
  after.append(Arm("phase_2_unpacked", full, "constant", True, "phase_1_unpacked"))
  wanted = [arm for arm in after if arm.name in names]
  needed = {*names, *(arm.starts_from for arm in wanted)}
  study = [arm for arm in before if arm.name in needed] + wanted
  return Study(folder, study, overrides, part.seeds or SEEDS, part.jobs)


def fields(length: int, folder: pathlib.Path) -> dict[str, Any]:
  """Fields of the config of the phase with rows of this length."""
  return arms.lasting(SEQUENCES[length], BATCH[length]) | {
    "data.max_sequence_length": length,
    "data.directory": str(folder / f"data-{length}"),
  }


def histogram(study: Study, arm: str) -> packing.Histogram:
  """Of the lengths of the sequences that an arm is trained on."""
  config = next(run.config for one, run in study.runs if one.name == arm)
  dataset = pipeline.prepare_dataset(config)
  return packing.Histogram.from_lengths(
    dataset.train.lengths, max_sequence_length=config.data.max_sequence_length
  )
