"""Pretrained packed or unpacked, then fine-tuned: Table 3 on a small scale.

Tiny models that were pretrained on the same sequences each step, packed or one a row, are
fine-tuned, each seed from its own pretraining; fine-tuning itself is packed for all.

Every sequence ends in [SEP], packed or not. So the arm without the mask is what sections 1
and H call separators instead of a mask.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np

from experiments.finetuning import local_tasks, pretrained
from experiments.finetuning.pretrained import Models, Scores
from experiments.finetuning.real_tasks import Files
from experiments.packing_paper.curves.arms import make_study
from lab.exhibits import Exhibit, Part
from lab.part import machine_of_runs
from lab.statistics import SCORE_MARGIN, larger, same_score
from lab.studies.study import Study
from lab.table import table

# The task of GLUE whose config is used. Not cola (word order): there, models of this size
# differ by 1 to 8 points from seed to seed. Not qqp (whether two sentences follow each
# other): the models are pretrained on just that.
TASK, NAME = "sst2", "which module"
ABOUT_TASK = (
  "The task 'which module' is made from docstrings (docs/finetuning.md): which of two "
  "modules does a sentence document? The score is the accuracy in percent. The dev set's "
  "docstrings are not held out of pretraining."
)
PAPER = (
  ("BERT-base, F1", "88.5", "88.32"),
  ("BERT-base, exact match", "80.8", "81.03"),
  ("BERT-large, F1", "90.9", "90.65"),
  ("BERT-large, exact match", "84.1", "84.12"),
)
WITHOUT = "packed without mask"
SEPARATORS = 0.35  # points of F1 that separators alone cost, section 1 from RoBERTa
# Section 4.3 asks more than these arms can answer.
QUESTION = (
  "Packing also changes which sequences share a step, and section 4.3 asks whether that "
  "costs quality. Packed and unpacked training see the same sequences in each step here, "
  "so this exhibit compares what packing computes and cannot answer that question."
)
LEARNING_RATE = 3e-4  # these models are smaller than that of experiments/finetuning
QUICK = {
  "train.duration": "256 sequences",
  "optimizer.warmup": "32 sequences",
}


def fine_tune(part: Part, models: Models, studies: Sequence[Study]) -> Scores:
  """Fine-tunes the models of finished studies; returns their scores on `TASK`.

  A report's parts share the runs. Missing weights are trained again if a run needs them.
  """
  folder = part.sibling("fine_tuning").folder
  tasks = {TASK: Files(*local_tasks.write(folder / "text")[TASK])}
  vocabulary = pathlib.Path(studies[0].runs[0][1].settings.data.directory, "vocab.txt")
  overrides = {
    "data.vocab_file": str(vocabulary),  # that of all models
    "optimizer.learning_rate": LEARNING_RATE,
  }
  overrides |= QUICK if part.quick else {}
  fine_tuned = pretrained.make_studies(models, tasks, folder, overrides)
  for study in studies:
    study.run(kept=pretrained.to_start_from(fine_tuned))
  return pretrained.fine_tune(fine_tuned, models, jobs=part.jobs)[TASK]


def difference(scores: Scores, a: str, b: str) -> str:
  """The mean score of an arm minus that of another, in words."""
  return f"{np.mean(np.subtract(scores[a], scores[b])):+.1f} points ({NAME})"


def exhibits(part: Part) -> list[Exhibit]:
  """Pretrains what is not pretrained yet, fine-tunes and tests; raises as `Study.run`."""
  names = {"packed": "packed", "unpacked": "unpacked", "no_mask": WITHOUT}
  study = make_study(part, list(names))
  study.run()
  models = {name: study.kept_of(arm) for arm, name in names.items()}
  return [exhibit(part, fine_tune(part, models, [study]))]


def exhibit(part: Part, scores: Scores) -> Exhibit:
  """The exhibit of the scores of each arm."""
  return part.exhibit(
    "Table 3",
    "Fine-tuned after packed and unpacked pretraining",
    "The score of models that were pretrained packed differs from that of models that "
    f"were pretrained unpacked by {difference(scores, 'packed', 'unpacked')}.",
    claim="A model that was pretrained packed scores the same on SQuAD as the reference.",
    machine=machine_of_runs(part.sibling("fine_tuning").folder),
    statements=[
      same_score(
        f"{NAME}: packed pretraining leads to the same score",
        *(scores[name] for name in ("packed", "unpacked", WITHOUT)),
      ),
      larger(
        f"{NAME}: pretraining packed with the mask leads to a higher score than with "
        "separators alone (1, H)",
        scores["packed"],
        scores[WITHOUT],
        margin=SEPARATORS,
        unit="points",
      ),
    ],
    text="\n\n".join(
      [
        pretrained.score_table({NAME: scores}),
        "Scores are those of the last evaluation on the dev set, mean and standard "
        f"deviation over seeds. {ABOUT_TASK} A small dev set can show differences of "
        f"about {SCORE_MARGIN:g} points, the margin; the paper's are smaller:",
        table(["SQuAD 1.1 in the paper", "reference", "packed"], PAPER),
        "In the paper, the reference is what Devlin et al. published, 'packed' is the "
        "median of 10 seeds, and fine-tuning is not packed. Here the reference is our "
        "own unpacked pretraining, and fine-tuning is packed for both. BERT-base and "
        "BERT-large are not run here; their config for SQuAD is configs/squad.py.",
        QUESTION,
        "Packed without the mask, sequences are kept apart by [SEP] alone, as in T5 and "
        f"RoBERTa, to which the paper ascribes a loss of {SEPARATORS} points of F1.",
      ]
    ),
  )
