"""A real encoder, pretrained further packed or unpacked, then fine-tuned: Table 3.

The encoders of figures_3_4_curves, and those of a gentler recipe: a quarter of its rate and
a sixth of its sequences. Fine-tuning itself is packed for all.

Packing also changes which sequences share a step, and section 4.3 asks whether that costs
quality. The arms `packed` and `unpacked` see the same sequences each step, so they cannot
answer; `constant`, of the gentler recipe, has as many sequences in every step, and others.
SQuAD is fine-tuned from it, from `packed` and from `no_mask`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.finetuning import pretrained, real_tasks
from experiments.finetuning.pretrained import Scores
from experiments.finetuning.real_tasks import Files
from experiments.packing_paper.curves.arms import lasting
from experiments.packing_paper.real_weights import figures_3_4_curves as curves
from lab.exhibits import Exhibit, Part
from lab.statistics import same_score
from lab.studies.study import Arm, Study

NAMES = {"packed": "packed", "unpacked": "unpacked", "no_mask": "packed without mask"}
CONSTANT = "constant"
GENTLE_NAMES = NAMES | {CONSTANT: "unpacked, steps of other sequences"}
GLUE = ("mrpc", "stsb", "sst2")
GENTLE_SEEDS = 8
SQUAD_ARMS = ("packed", "no_mask", CONSTANT)
SQUAD_SEEDS, SQUAD_FIRST = 4, 1 + GENTLE_SEEDS  # fresh seeds of the gentler recipe
SQUAD_QUESTIONS, SQUAD_HELD_OUT = 4_000, 1_500  # at least, in whole articles
GENTLE = lasting(800, curves.BATCH) | {
  "data.held_out_fraction": 0.001,  # the scores are read, not the loss
  "optimizer.learning_rate": 5e-4,
}
# The arms that `packed` is compared with.
_OTHERS = {"unpacked": "unpacked", CONSTANT: "in unpacked steps of other sequences"}
# The published encoder, fine-tuned packed without further pretraining (docs/finetuning.md).
BEFORE = {"mrpc": 83.4, "stsb": 86.1, "sst2": 86.9, real_tasks.PAIRS: 88.9}
ABOUT_GLUE = (
  "So much further pretraining made the encoder worse, so these scores say little about "
  "good ones; the next exhibit trains it less. CoLA and RTE are left out: on these tasks, "
  "fine-tuning the published encoder with five seeds could not show a difference of 2 "
  "points (docs/finetuning.md)."
)
ABOUT_GENTLE = (
  f"The learning rate is {GENTLE['optimizer.learning_rate']:g}, for "
  f"{GENTLE['train.duration']}. {real_tasks.PAIRS} is STS-B by the cosine of the vectors "
  "of its sentences, fine-tuned on 2,000 pairs; the score is the mean of Pearson's and "
  "Spearman's correlation. Other tasks are left out for time."
)
ABOUT_SQUAD = (
  "The encoders are trained as those of the exhibit before, with other seeds, and without "
  "the arm that sees the same sequences each step. They are fine-tuned for two epochs on "
  f"at least {SQUAD_QUESTIONS:,} questions. The score is F1 on at least {SQUAD_HELD_OUT:,} "
  "questions of the dev set, by the official rules. Both are whole articles, drawn until "
  "there were enough. There are so few arms, seeds and questions because of the time that "
  "they take."
)


def exhibits(part: Part) -> list[Exhibit]:
  """Trains and fine-tunes what is not finished, and tests.

  Raises:
    InputError: the text, the weights or a task are missing.
    Stopped: some runs failed.
  """
  fast = curves.make_study(part.sibling("real_weights"))
  fast = dataclasses.replace(fast, arms=[arm for arm in fast.arms if arm.name in NAMES])
  gentle = dataclasses.replace(
    fast,
    folder=part.folder,
    arms=[*fast.arms, Arm(CONSTANT, {}, "constant", keep=True)],
    overrides={
      **fast.overrides,
      "data.directory": str(part.folder / "data" / "text"),
      **({} if part.quick else GENTLE),
    },
    seeds=part.seeds or (1 if part.quick else GENTLE_SEEDS),
  )
  on_squad = dataclasses.replace(
    gentle,
    arms=[arm for arm in gentle.arms if arm.name in SQUAD_ARMS],
    seeds=part.seeds or (1 if part.quick else SQUAD_SEEDS),
    first_seed=SQUAD_FIRST,
  )
  data, text = part.real_data(), part.folder / "text"
  tasks = real_tasks.glue(data, text, [*GLUE, real_tasks.PAIRS], quick=part.quick)
  pairs = {real_tasks.PAIRS: tasks.pop(real_tasks.PAIRS)}
  some, held_out = SQUAD_QUESTIONS, SQUAD_HELD_OUT
  if part.quick:
    some = held_out = real_tasks.QUICK_EXAMPLES
  squad = real_tasks.files("squad", data, text, at_most=some, held_out_at_most=held_out)
  return [
    exhibit(part, "on GLUE", fine_tune(part, fast, tasks), ABOUT_GLUE),
    exhibit(part, "gently, on STS-B", fine_tune(part, gentle, pairs), ABOUT_GENTLE),
    exhibit(
      part, "gently, on SQuAD", fine_tune(part, on_squad, {"squad": squad}), ABOUT_SQUAD
    ),
  ]


def fine_tune(part: Part, study: Study, tasks: Mapping[str, Files]) -> dict[str, Scores]:
  """The scores of each task by arm of a study; raises as `exhibits`."""
  study.run()
  models = {arm.name: study.kept_of(arm.name) for arm in study.arms}
  overrides: dict[str, Any] = {
    "data.vocab_file": study.overrides["data.vocab_file"],
    "optimizer.learning_rate": real_tasks.LEARNING_RATE,
  }
  overrides |= real_tasks.QUICK if part.quick else {}
  fine_tuned = pretrained.make_studies(models, tasks, part.folder, overrides)
  study.run(kept=pretrained.to_start_from(fine_tuned))
  return pretrained.fine_tune(fine_tuned, models, jobs=part.jobs)


def exhibit(part: Part, how: str, scores: Mapping[str, Scores], about: str) -> Exhibit:
  """The scores of a study, and the test of each task."""
  apart = [
    f"{task} {np.mean(np.subtract(of['packed'], of[other])):+.1f} (trained {what})"
    for task, of in scores.items()
    for other, what in _OTHERS.items()
    if other in of
  ]
  since = [
    f"{task} from {BEFORE[task]} to {np.mean(of['packed']):.1f}"
    for task, of in scores.items()
    if task in BEFORE
  ]
  finding = (
    "Encoders that were pretrained further packed differ in score from those trained "
    f"otherwise by these points: {', '.join(apart)}."
  )
  if since:
    finding += " Further pretraining changed the score of the published encoder: "
    finding += f"{', '.join(since)}."
  in_words = {
    task: {name: of[arm] for arm, name in GENTLE_NAMES.items() if arm in of}
    for task, of in scores.items()
  }
  return part.exhibit(
    f"Table 3, {how}",
    "A real encoder fine-tuned after pretraining",
    finding,
    claim="A model that was pretrained packed scores the same as the reference.",
    statements=[
      same_score(
        f"{task}: training further packed or {what} leads to the same score",
        *(of[arm] for arm in ("packed", other, "no_mask")),
      )
      for task, of in scores.items()
      for other, what in _OTHERS.items()
      if other in of
    ],
    text="Scores in percent on the dev set at the last step, mean and standard deviation "
    "over seeds; fine-tuning is packed for all:\n\n"
    f"{pretrained.score_table(in_words)}\n\n{curves.ABOUT} {about}",
  )
