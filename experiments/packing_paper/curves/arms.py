"""The arms of the learning curves, and the study of them on docstrings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lab.exhibits import Exhibit, Part, Statement
from lab.studies.study import SEEDS, Arm, Study
from launch.data import prepare_dataset
from launch.settings import RunSettings

_SAME = {"packing.adjust": "reduce_batch"}
_BETAS = {"packing.adjust": "lamb_betas"}
ARMS = (
  Arm("unpacked", _SAME, "unpacked", keep=True),
  Arm("constant_twice_betas", _BETAS, "constant"),
  Arm("packed", _SAME, keep=True),
  Arm("twice", {"packing.adjust": "none"}),
  Arm("twice_rate", {"packing.adjust": "lr_linear"}),
  Arm("twice_betas", _BETAS),
  Arm("no_mask", _SAME | {"model.attention_mask": "none"}, keep=True),
  Arm("no_position_reset", _SAME | {"model.position_reset": False}),
  Arm("loss_of_packs", _SAME | {"train.loss_unit": "pack"}),
)
OVERRIDES: dict[str, Any] = {
  "packing.algorithm": "optimal",
  "train.steps": 2000,  # about an hour for 27 runs
  "optimizer.warmup_steps": 117,  # the same share
  "optimizer.learning_rate": 0.0106,  # for half of its sequences a step (LOG.md)
}
ABOUT = (
  "BERT-tiny is trained on the docstrings of the standard library, from random weights, in "
  "rows of 192 tokens."
)
WARMUP = 0.06  # of a run, as in the quickstart
# Where the results of three seeds, which had been seen, did not tell a small difference
# from none. Claims that use the others say so, by `told_of_added_seeds`.
MORE_SEEDS = 8
QUICK: dict[str, Any] = {
  "data.directory": "data/quick",
  "data.dupe_factor": 1,
  "data.held_out_fraction": 0.01,
  "train.steps": 6,
  "optimizer.warmup_steps": 1,
  "train.throughput_rounds": 6,
}


def make_study(part: Part, names: Sequence[str], *, seeds: int = SEEDS) -> Study:
  """The study of some arms on docstrings; all parts of a report share its runs.

  `seeds` is their number for each arm, unless the command gives one.
  """
  arms = [arm for arm in ARMS if arm.name in names]
  overrides = OVERRIDES | QUICK if part.quick else OVERRIDES
  seeds = part.seeds or (1 if part.quick else seeds)
  folder = part.sibling("learning_curves").folder
  return Study(folder, arms, overrides, seeds, part.jobs)


def told_of_added_seeds(exhibit: Exhibit) -> Exhibit:
  """The exhibit; each claim that uses seeds added after a first look says so."""

  def tell(x: Statement) -> Statement:
    pairs = x.test["difference"][-1] if x.test and "difference" in x.test else 0
    if pairs <= SEEDS:
      return x
    added = f"seeds {SEEDS + 1} to {pairs} were added after the results of 1 to {SEEDS}"
    return x._replace(claim=f"{x.claim} ({added} had been seen)")

  statements = [tell(x) for x in exhibit.statements]
  return dataclasses.replace(exhibit, statements=statements)


def lasting(sequences: float, batch: int) -> dict[str, Any]:
  """Fields of an arm that sees a number of sequences, `batch` of them each step."""
  return {
    "packing.adjust": "reduce_batch",
    "train.batch_size": batch,
    "train.duration": f"{round(sequences)} sequences",
    "optimizer.warmup": f"{round(WARMUP * sequences)} sequences",
  }


def of_sentences(run: RunSettings, *, cross_documents: bool = False) -> dict[str, Any]:
  """Fields of an arm of whole sentences, with the vocabulary of the pairs of a run."""
  kind = "full-sentences" if cross_documents else "sentences"
  return {
    "data.task": "sentences",
    "data.cross_documents": cross_documents,
    "data.directory": f"{run.data.directory}-{kind}",
    "data.dupe_factor": 1,  # nothing is random, so another copy would be the same
    "data.vocab_file": f"{run.data.directory}/vocab.txt",
    "model.next_sentence": False,
  }


def mean_length(run: RunSettings, fields: Mapping[str, Any]) -> float:
  """The mean length, in tokens, of the sequences that are prepared for an arm."""
  return float(prepare_dataset(run.changed(fields).data).train.lengths.mean())


def timed(study: Study, arms: Sequence[Arm]) -> dict[str, list[dict[str, Any]]]:
  """Times the steps of some arms, one run per seed, one at a time on all cores."""
  module = "lab.studies.paired_speed"
  return dataclasses.replace(study, arms=arms, module=module, jobs=1).run()
