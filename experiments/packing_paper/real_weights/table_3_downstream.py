"""A real encoder, pretrained further packed or unpacked, then fine-tuned: Table 3.

The encoders of figures_3_4_curves, one for each arm and seed, are fine-tuned on tasks of
GLUE and on some questions of SQuAD; fine-tuning itself is packed for all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.finetuning import pretrained, real_tasks
from experiments.finetuning.pretrained import Scores
from experiments.packing_paper.real_weights import figures_3_4_curves as curves
from lab.exhibits import Exhibit, Part
from lab.statistics import same_score

GLUE = ("mrpc", "stsb", "sst2")
# The published encoder, fine-tuned packed without further pretraining (docs/finetuning.md).
BEFORE = {"mrpc": 83.4, "stsb": 86.1, "sst2": 86.9}
ABOUT_TASKS = (
  "CoLA and RTE are left out: on these tasks, fine-tuning the published encoder with five "
  "seeds could not show a difference of 2 points (docs/finetuning.md)."
)
# SQuAD takes long, hence few questions and one seed. Two runs fit in 24 GB if few rows are
# computed at once.
QUESTIONS, SEEDS, ROWS_AT_ONCE = 2_000, 1, 2
ABOUT_SQUAD = (
  f"SQuAD 1.1: two epochs on articles with {QUESTIONS:,} questions or a few more, from the "
  "first encoder of each arm; scores are those of the whole dev set by SQuAD's rules. One "
  "seed is too few for a test."
)
NAMES = {"packed": "packed", "unpacked": "unpacked", "no_mask": "packed without mask"}


def fine_tune(part: Part) -> dict[str, Scores]:
  """The scores of each task by arm; trains and fine-tunes what is not finished.

  Raises:
    InputError: the text, the weights or a task are missing.
    Stopped: some runs failed.
  """
  text = part.folder / "text"
  tasks = real_tasks.glue(part.real_data(), text, GLUE, quick=part.quick)
  at_most = real_tasks.QUICK_EXAMPLES if part.quick else QUESTIONS
  questions = real_tasks.files("squad", part.real_data(), text, at_most=at_most)
  study = curves.make_study(part.beside("real_weights"))
  study = dataclasses.replace(study, arms=[x for x in study.arms if x.name in NAMES])
  study.run()
  models = {arm: study.kept_of(arm) for arm in NAMES}
  overrides: dict[str, Any] = {
    "data.vocab_file": study.overrides["data.vocab_file"],
    "optimizer.learning_rate": real_tasks.LEARNING_RATE,
  }
  overrides |= real_tasks.QUICK if part.quick else {}
  runs = pretrained.make_runs(models, tasks, part.folder, overrides)
  first = {arm: folders[:SEEDS] for arm, folders in models.items()}
  overrides["train.micro_batch_size"] = ROWS_AT_ONCE
  (squad,) = pretrained.make_runs(first, {"squad": questions}, part.folder, overrides)
  study.run(kept=pretrained.to_start_from([*runs, squad]))
  scores = pretrained.fine_tune([*runs, squad], models, jobs=part.jobs)
  scores["squad, F1"] = scores.pop("squad")
  scores["squad, exact match"] = pretrained.scores_of(squad, first, "exact_match")
  return scores


def exhibit(part: Part, scores: Mapping[str, Scores]) -> Exhibit:
  """The scores, and the test of each task."""
  apart = [
    f"{task} {np.mean(np.subtract(of['packed'], of['unpacked'])):+.1f}"
    for task, of in scores.items()
  ]
  worse = [
    f"{task} from {before} to {np.mean(scores[task]['packed']):.1f}"
    for task, before in BEFORE.items()
    if task in scores
  ]
  in_words = {task: {NAMES[arm]: of[arm] for arm in NAMES} for task, of in scores.items()}
  return part.exhibit(
    "Table 3, on GLUE and SQuAD",
    "A real encoder fine-tuned after pretraining",
    "Encoders that were pretrained further packed differ in score from those pretrained "
    f"further unpacked by these points: {', '.join(apart)}. But further pretraining made "
    f"the encoder worse: {', '.join(worse)}. So these scores say little about good ones.",
    claim="A model that was pretrained packed scores the same as the reference.",
    statements=[
      same_score(
        f"{task}: training further packed or unpacked leads to the same score",
        *(of[arm] for arm in NAMES),
      )
      for task, of in scores.items()
    ],
    text="Scores in percent on the dev set at the last step, mean and standard deviation "
    "over seeds; fine-tuning is packed for all:\n\n"
    f"{pretrained.score_table(in_words)}\n\n{ABOUT_SQUAD}\n\n"
    f"{curves.ABOUT} {ABOUT_TASKS}",
  )


def exhibits(part: Part) -> list[Exhibit]:
  """Trains and fine-tunes what is not finished, and tests; raises as `fine_tune`."""
  return [exhibit(part, fine_tune(part))]
