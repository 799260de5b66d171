"""The loss of the next sentence, and what others do without it: section I.

  python -m experiments.next_sentence

Four ways to pretrain a small model on as many real tokens of the same text: pairs of
segments with the next-sentence loss; the same without that loss; whole sentences of one
document without it (RoBERTa's DOC-SENTENCES); and these packed greedily in random order,
each with its separator, without a mask, so that a row mixes documents (as T5 has it). They
are compared after fine-tuning. Runs of the learning curves are taken from
results/learning_curves; what is finished is not run again.

References:
  Krell et al., https://arxiv.org/abs/2107.02027, section I;
  Liu et al., https://arxiv.org/abs/1907.11692, section 4.2.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

import pipeline
from experiments.lab import part as parts
from experiments.lab.exhibits import Exhibit
from experiments.lab.paired_run import Arm
from experiments.lab.statistics import larger
from experiments.lab.study import Study
from experiments.packing_paper import table_3_downstream as downstream
from experiments.packing_paper.curves import arms as learning_curves
from experiments.packing_paper.curves.claims import long_enough
from experiments.packing_paper.table_3_downstream import TASKS, Scores
from training.sweep import jobs as schedule

COMMAND = "python -m experiments.next_sentence"

_GREEDY: dict[str, Any] = {
  "packing.algorithm": "greedy",
  "packing.max_sequences_per_pack": 192,  # the row length: no limit
  "model.attention_mask": "none",
  "model.position_reset": False,
}
NAMES = {
  "packed": "pairs, next sentence",
  "no_next_sentence": "pairs",
  "sentences": "whole sentences",
  "greedy": "whole sentences, greedy, no mask",
}
PAPER_EFFECT = 1.31  # F1 of SQuAD that BERT-base loses without the loss, section I
WARMUP = 0.06  # of a run, as on the quickstart


def make_arms(study: Study) -> list[Arm]:
  """The three without the loss, with as many real tokens as the pairs have.

  Args:
    study: with the arm of the pairs.
  """
  config = study.runs[0][1].config
  whole_sentences = {
    "data.task": "sentences",
    "data.directory": f"{config.data.directory}-sentences",
    "data.dupe_factor": 1,  # nothing is random that could be cut again
    "data.vocab_file": f"{config.data.directory}/vocab.txt",  # that of the pairs
    "model.next_sentence": False,
  }
  longer = _mean_length(config, {}) / _mean_length(config, whole_sentences)
  batch = round(config.train.batch_size * longer)  # as many real tokens a step, and in all
  sequences = config.train.steps * batch
  of_sentences = whole_sentences | {
    "packing.adjust": "reduce_batch",
    "train.batch_size": batch,
    "train.duration": f"{round(sequences)} sequences",
    "optimizer.warmup": f"{round(WARMUP * sequences)} sequences",
  }
  same = {"packing.adjust": "reduce_batch", "model.next_sentence": False}
  return [
    Arm("no_next_sentence", same, keep=True),
    Arm("sentences", of_sentences, keep=True),
    Arm("greedy", of_sentences | _GREEDY, keep=True),
  ]


def _mean_length(config, fields: Mapping[str, Any]) -> float:
  """Of the sequences, in tokens."""
  chosen = config.copy_and_resolve_references()
  chosen.update_from_flattened_dict(dict(fields))
  return float(pipeline.prepare_dataset(chosen).train.lengths.mean())


def _told(scores: Scores, a: str, b: str) -> str:
  apart = {
    task: float(np.mean(np.subtract(of_arm[a], of_arm[b])))
    for task, of_arm in scores.items()
  }
  return " and ".join(f"{x:+.1f} points ({TASKS[task]})" for task, x in apart.items())


def exhibits(
  folder: pathlib.Path,
  *,
  quick: bool = False,
  seeds: int | None = None,
  jobs: int | None = None,
) -> list[Exhibit]:
  """Trains what is not trained yet, fine-tunes and tests.

  Args:
    folder: for the runs.
    quick: a few steps with few seeds, to see that it works.
    seeds: how many; as many as the learning curves have if not given.
    jobs: runs at a time; as many as cores if not given.

  Raises:
    Stopped: some runs failed; all others are finished.
  """
  jobs = jobs or len(schedule.cores())
  pairs = learning_curves.shared(folder, ["packed"], quick=quick, seeds=seeds)
  pairs.run_all(jobs=jobs)
  runs = learning_curves.runs_folder(folder, quick=quick)
  study = dataclasses.replace(pairs, folder=runs, arms=make_arms(pairs))
  study.run_all(jobs=jobs)
  models = {NAMES["packed"]: downstream.kept(pairs, "packed")}
  models |= {NAMES[arm.name]: downstream.kept(study, arm.name) for arm in study.arms}
  tuning = downstream.tuning_folder(folder, quick=quick)
  scores = downstream.fine_tune(tuning, models, quick=quick, jobs=jobs)
  first, pairs_alone, sentences, greedy = NAMES.values()
  pretrained = pairs.results() | study.results()
  statements = [
    long_enough(pretrained[arm], what=f"'{told}'") for arm, told in NAMES.items()
  ]
  for task, of_arm in scores.items():
    statements += [
      larger(
        f"{TASKS[task]}: without the loss of the next sentence the score is lower",
        of_arm[first],
        of_arm[pairs_alone],
        margin=PAPER_EFFECT,
        unit="points",
      ),
      larger(
        f"{TASKS[task]}: whole sentences without it score lower than pairs with it",
        of_arm[first],
        of_arm[sentences],
        margin=PAPER_EFFECT,
        unit="points",
      ),
      larger(
        f"{TASKS[task]}: mixing sentences of other documents in makes the score lower",
        of_arm[sentences],
        of_arm[greedy],
        margin=PAPER_EFFECT,
        unit="points",
      ),
    ]
  return [
    Exhibit(
      name="Section I",
      title="Pretraining with and without the loss of the next sentence",
      agreement="in shape",
      finding="Without the loss of the next sentence fine-tuned models score "
      f"{_told(scores, pairs_alone, first)} from those with it (in the paper -1.31 F1); "
      f"with whole sentences {_told(scores, sentences, first)}; and greedily packed "
      f"without a mask {_told(scores, greedy, first)}.",
      command=COMMAND,
      statements=statements,
      text=downstream.score_table(scores)
      + "\n\nBest evaluations on the dev set, packed fine-tuning. A claim fails where a "
      f"loss of {PAPER_EFFECT} points or more is ruled out, the paper's effect on the F1 "
      f"of SQuAD (1.15 on its exact match); it was 2 when the results were first seen "
      f"(LOG.md). {downstream.ABOUT_TASKS} The arm without mask "
      "differs from whole sentences in three things: the algorithm, the mask, and "
      "positions that are not reset.",
    )
  ]


if __name__ == "__main__":
  sys.exit(
    parts.main(
      __doc__, exhibits, name="next_sentence", add_options=learning_curves.add_options
    )
  )
