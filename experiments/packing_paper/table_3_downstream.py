"""Pretrained packed or unpacked, then fine-tuned: Table 3 in small.

The paper pretrains BERT packed and fine-tunes it on SQuAD. Here tiny models that were
pretrained on the same sequences a step, packed and one a row, are fine-tuned on a task from
docstrings, each seed from its own pretraining; fine-tuning itself is packed for all.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.finetuning import local_tasks
from experiments.lab.exhibits import Exhibit
from experiments.lab.part import Part
from experiments.lab.report import table
from experiments.lab.statistics import equivalent
from experiments.lab.study import run_tasks, stop_if_failed
from experiments.packing_paper.curves.arms import make_study
from experiments.packing_paper.curves.tables import mean_and_sd
from training.sweep import __main__ as sweep
from training.sweep.file import make_sweep

# The task of GLUE whose config it has. Not cola, word order: models of this size differ by
# 1 to 8 points from seed to seed. Not qqp, whether two sentences follow each other: pairs
# are pretrained on just that.
TASK, NAME = "sst2", "which module"
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
ARMS = {"packed": "packed", "unpacked": "unpacked", "no_mask": "packed without mask"}
OVERRIDES = {
  "optimizer.learning_rate": 3e-4,  # as in experiments/finetuning
  "train.throughput_rounds": 0,
  "train.log_every": 20,
  "train.eval_every": 100,
  "train.checkpoint_every": 100,
}
QUICK = {
  "train.duration": "256 sequences",
  "optimizer.warmup": "32 sequences",
  "train.patience": 0,
}
MARGIN = 2.0  # points of the score; a smaller difference does not matter

Scores = dict[str, list[float]]  # by arm, percent, a value a seed


def fine_tune(part: Part, models: Mapping[str, Sequence[pathlib.Path]]) -> Scores:
  """Fine-tunes models, the directories of each arm by seed, on `TASK`.

  Returns the best score on the dev set of each run. The parts of a report share the runs.

  Raises:
    Stopped: some runs failed; names the last line of each.
  """
  folder = part.beside("fine_tuning").folder
  train, dev = local_tasks.write(folder / "text")[TASK]
  first = next(iter(models.values()))[0]  # the vocabulary of all, each in its own file
  data = {
    "data.source": train,
    "data.held_out_source": dev,
    "data.directory": str(folder / "data" / TASK),
    "data.vocab_file": str(first / "vocab.txt"),
  }
  spec = {
    "config": f"configs/glue.py:{TASK}",
    "overrides": data | OVERRIDES | (QUICK if part.quick else {}),
    "arms": {
      f"{arm},{seed}": {"model.init_from": str(directory), "seed": seed}
      for arm, directories in models.items()
      for seed, directory in enumerate(directories)
    },
  }
  swept = make_sweep(spec, where=f"fine-tuning on {TASK}")
  places = {}
  for run in swept.runs:
    model = pathlib.Path(run.config.model.init_from)
    weights = (model / "model.safetensors").read_bytes()
    made_from = run.config.to_json(sort_keys=True).encode() + weights
    key = hashlib.sha256(made_from).hexdigest()[:12]
    places[run.arm] = folder / "runs" / TASK / f"{model.name}-{key}"
  tasks = [sweep.make_task(swept, run, places[run.arm]) for run in swept.runs]
  stop_if_failed(run_tasks(tasks, number=part.jobs, desc="fine-tuning"), len(tasks))
  scores: Scores = {arm: [] for arm in models}
  for name, place in places.items():
    summary = json.loads((place / "summary.json").read_text())
    scores[name.rpartition(",")[0]].append(100 * summary["best_score"])
  return scores


def score_table(scores: Scores) -> str:
  """Means and standard deviations over the seeds."""
  row = [NAME, *(mean_and_sd(of_arm, digits=1) for of_arm in scores.values())]
  return table(["score (%)", *scores], [row], right=range(1, len(row)))


def difference(scores: Scores, a: str, b: str) -> str:
  """The mean score of an arm minus that of another, in words."""
  return f"{np.mean(np.subtract(scores[a], scores[b])):+.1f} points ({NAME})"


def exhibits(part: Part) -> list[Exhibit]:
  """Pretrains what is not pretrained yet, fine-tunes and tests; raises as `Study.run`."""
  study = make_study(part, list(ARMS))
  study.run()
  scores = fine_tune(part, {name: study.kept_of(arm) for arm, name in ARMS.items()})
  apart = difference(scores, "packed", "unpacked")
  # A high score is good, but the control of the test has to be larger.
  control = np.multiply(2, scores["unpacked"]) - scores["packed without mask"]
  return [
    part.exhibit(
      "Table 3",
      "Fine-tuned after packed and unpacked pretraining",
      "in shape",
      f"Models that were pretrained packed score {apart} from those that "
      "were pretrained unpacked.",
      claim="A model that was pretrained packed scores the same on SQuAD as the reference.",
      statements=[
        equivalent(
          f"{NAME}: packed pretraining leads to the same score",
          scores["packed"],
          scores["unpacked"],
          power=control.tolist(),
          margin=MARGIN,
          unit="points",
        )
      ],
      text="\n\n".join(
        [
          score_table(scores),
          "The dev set's best evaluation, mean and standard deviation over seeds. "
          f"{ABOUT_TASK} A dev set of some hundred sentences can show differences of "
          f"about {MARGIN:g} points, the margin; the paper's are smaller:",
          table(["SQuAD 1.1 in the paper", "reference", "packed"], PAPER, right=(1, 2)),
          "There the reference is what Devlin et al. published, packed is a median of 10 "
          "seeds, and fine-tuning is not packed; here the reference is our own unpacked "
          "pretraining, and fine-tuning is packed for both. SQuAD with BERT-base and "
          "BERT-large is not run here; its config is configs/squad.py.",
        ]
      ),
    )
  ]
