"""Pretrained packed or unpacked, then fine-tuned: Table 3 in small.

The paper pretrains BERT packed and fine-tunes it on SQuAD. Here tiny models that were
pretrained on the same sequences a step, packed and one a row, are fine-tuned, each seed
from its own pretraining; fine-tuning itself is packed for all. With --data they were
pretrained on Wikipedia in both phases, and are fine-tuned on GLUE and SQuAD; else the task
is made from docstrings.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import numpy as np

from experiments.finetuning import local_tasks, pretrained, real_tasks
from experiments.finetuning.pretrained import Models, Scores
from experiments.finetuning.real_tasks import Files
from experiments.lab.exhibits import Exhibit
from experiments.lab.part import Part
from experiments.lab.report import table
from experiments.lab.statistics import SCORE_MARGIN, same_score
from experiments.packing_paper.curves import wikipedia
from experiments.packing_paper.curves.arms import make_study

# The task of GLUE whose config it has. Not cola, word order: models of this size differ by
# 1 to 8 points from seed to seed. Not qqp, whether two sentences follow each other: pairs
# are pretrained on just that.
TASK, NAME = "sst2", "which module"
AT_MOST = {"sst2": 10_000, "squad": 5_000}  # real examples to train on; of others all
ABOUT_TASK = (
  "'Which module' is made from docstrings (docs/finetuning.md): which of two modules a "
  "sentence documents. The score is the accuracy in percent. Docstrings of the dev set are "
  "not held out of pretraining."
)
PAPER = (
  ("BERT-base, F1", "88.5", "88.32"),
  ("BERT-base, exact match", "80.8", "81.03"),
  ("BERT-large, F1", "90.9", "90.65"),
  ("BERT-large, exact match", "84.1", "84.12"),
)
WITHOUT = "packed without mask"
LEARNING_RATE = 3e-4  # these models are smaller than that of experiments/finetuning
QUICK = {
  "train.duration": "256 sequences",
  "optimizer.warmup": "32 sequences",
}


def fine_tune(
  part: Part,
  models: Models,
  tasks: Mapping[str, Files] | None = None,
) -> dict[str, Scores]:
  """The scores of `pretrained.fine_tune` on some tasks; on `TASK` if none are given.

  The parts of a report share the runs.
  """
  folder = _folder(part)
  tasks = tasks or {TASK: Files(*local_tasks.write(folder / "text")[TASK])}
  first = next(iter(models.values()))[0]  # the vocabulary of all, each in its own file
  overrides = {
    "data.vocab_file": str(first / "vocab.txt"),
    "optimizer.learning_rate": LEARNING_RATE,
  }
  overrides |= QUICK if part.quick else {}
  runs = pretrained.make_runs(models, tasks, folder, overrides)
  return pretrained.fine_tune(runs, models, jobs=part.jobs)


def _folder(part: Part) -> pathlib.Path:
  """For the runs that the parts of a report share."""
  return part.beside("wikipedia" if wikipedia.is_there(part) else "fine_tuning").folder


def difference(scores: Scores, a: str, b: str, name: str = NAME) -> str:
  """The mean score of an arm minus that of another, in words."""
  return f"{np.mean(np.subtract(scores[a], scores[b])):+.1f} points ({name})"


def exhibits(part: Part) -> list[Exhibit]:
  """Pretrains what is not pretrained yet, fine-tunes and tests; raises as `Study.run`."""
  if wikipedia.is_there(part):
    assert part.data is not None
    names = {"packed": "packed", "phase_2_unpacked": "unpacked", "no_mask": WITHOUT}
    study = wikipedia.make_study(part, list(names))
    text = _folder(part) / "text"
    tasks = {
      task: real_tasks.files(task, part.data, text, at_most=AT_MOST.get(task, 0))
      for task in real_tasks.TASKS
    }
    about = (
      f"{wikipedia.ABOUT} The scores are those of GLUE, and F1 of SQuAD. Of sst2 "
      f"{AT_MOST['sst2']:,} examples are trained on, of squad {AT_MOST['squad']:,}."
    )
  else:
    names = {"packed": "packed", "unpacked": "unpacked", "no_mask": WITHOUT}
    study, tasks, about = make_study(part, list(names)), None, ABOUT_TASK
  study.run(kept=names)
  models = {name: study.kept_of(arm) for arm, name in names.items()}
  scores = fine_tune(part, models, tasks)
  if not tasks:
    scores = {NAME: scores[TASK]}
  apart = ", ".join(
    difference(of_task, "packed", "unpacked", task) for task, of_task in scores.items()
  )
  return [
    part.exhibit(
      "Table 3",
      "Fine-tuned after packed and unpacked pretraining",
      "in shape",
      f"Models that were pretrained packed score {apart} from those that "
      "were pretrained unpacked.",
      claim="A model that was pretrained packed scores the same on SQuAD as the reference.",
      statements=[
        same_score(
          f"{task}: packed pretraining leads to the same score",
          *(of_task[name] for name in ("packed", "unpacked", WITHOUT)),
        )
        for task, of_task in scores.items()
      ],
      text="\n\n".join(
        [
          pretrained.score_table(scores),
          "The dev set's last evaluation, mean and standard deviation over seeds. "
          f"{about} A small dev set can show differences of about {SCORE_MARGIN:g} points, "
          "the margin; the paper's are smaller:",
          table(["SQuAD 1.1 in the paper", "reference", "packed"], PAPER),
          "There the reference is what Devlin et al. published, packed is a median of 10 "
          "seeds, and fine-tuning is not packed; here the reference is our own unpacked "
          "pretraining, and fine-tuning is packed for both. BERT-base and BERT-large are "
          "not run here; their config for SQuAD is configs/squad.py.",
        ]
      ),
    )
  ]
