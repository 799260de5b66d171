"""Pretrained packed or not, then fine-tuned: Table 3 in small.

  python -m experiments.downstream

The paper pretrains BERT packed and fine-tunes it on SQuAD. Here tiny models that were
pretrained on the same sequences a step, packed and one a row, are fine-tuned on a task from
docstrings (`experiments/local_tasks.py`), each seed from its own pretraining; fine-tuning
itself is packed for all. Runs that are finished are not repeated.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.finetuning import local_tasks
from experiments.lab import part as parts
from experiments.lab.exhibits import Exhibit
from experiments.lab.report import table
from experiments.lab.statistics import equivalent
from experiments.lab.study import Study, run_tasks, stop_if_failed
from experiments.packing_paper.curves import arms as learning_curves
from training.sweep import __main__ as sweep
from training.sweep import jobs as schedule
from training.sweep.file import ROOT, Run, make_sweep

COMMAND = "python -m experiments.downstream"

# By the task of GLUE whose config it has. Not cola, word order: models of this size differ
# by 1 to 8 points from seed to seed. Not qqp, whether two sentences follow each other:
# pairs are pretrained on just that.
TASKS = {"sst2": "which module"}
ABOUT_TASKS = (
  "'Which module' is made from docstrings (experiments/local_tasks.py): which of two "
  "modules a sentence documents, so that its labels are true by construction; the score is "
  "the share that is right, in percent. Docstrings of the dev set are not held out of "
  "pretraining."
)
PAPER = (
  ("BERT-base, F1", "88.5", "88.32"),
  ("BERT-base, exact match", "80.8", "81.03"),
  ("BERT-large, F1", "90.9", "90.65"),
  ("BERT-large, exact match", "84.1", "84.12"),
)
LEARNING_RATE = 3e-4  # as in experiments/finetuning.py
QUICK = {
  "train.duration": "256 sequences",
  "optimizer.warmup": "32 sequences",
  "train.patience": 0,
}
MARGIN = 2.0  # points of the score; less is no difference

Scores = dict[str, dict[str, list[float]]]  # by task and arm, percent, a value a seed


def tuning_folder(folder: pathlib.Path, *, quick: bool) -> pathlib.Path:
  """Where a part fine-tunes: beside it, so that what another part did is not done again.

  Args:
    folder: of the part.
    quick: as for `exhibits`.
  """
  return learning_curves.runs_folder(folder.parent / "fine_tuning", quick=quick)


def fine_tune(
  folder: pathlib.Path,
  models: Mapping[str, Sequence[pathlib.Path]],
  *,
  quick: bool = False,
  jobs: int,
) -> Scores:
  """Fine-tunes each model on each of `TASKS`; reads what it scores on the dev set.

  Args:
    folder: for text, prepared data and runs.
    models: by arm, the pretrained directories, by seed.
    quick: a few steps, to see that it works.
    jobs: runs at a time.

  Returns:
    The best score of each run, in percent.

  Raises:
    Stopped: some runs failed, with their last words.
  """
  files = local_tasks.write(folder / "text")
  first = next(iter(models.values()))[0]  # the vocabulary of all, each in its own file
  waiting: list[schedule.Task] = []
  places: dict[tuple[str, str], pathlib.Path] = {}
  for task in TASKS:
    spec = {
      "config": f"configs/glue.py:{task}",
      "overrides": {
        "data.source": files[task][0],
        "data.held_out_source": files[task][1],
        "data.directory": str(folder / "data" / task),
        "data.vocab_file": str(first / "vocab.txt"),
        "optimizer.learning_rate": LEARNING_RATE,
        "train.throughput_rounds": 0,
        "train.log_every": 20,
        "train.eval_every": 100,
        "train.checkpoint_every": 100,
      }
      | (QUICK if quick else {}),
      "arms": {
        f"{arm},{seed}": {"model.init_from": str(directory), "seed": seed}
        for arm, directories in models.items()
        for seed, directory in enumerate(directories)
      },
    }
    swept = make_sweep(spec, where=f"fine-tuning on {task}")
    for run in swept.runs:
      model = pathlib.Path(run.config.model.init_from)
      place = folder / "runs" / task / f"{model.name}-{_digest(run)}"
      places[task, run.arm] = place
      waiting.append(_task(place, swept.config_file, run))
  stop_if_failed(run_tasks(waiting, jobs=jobs), len(waiting))
  return {
    task: {
      arm: [_score(places[task, f"{arm},{seed}"]) for seed in range(len(paths))]
      for arm, paths in models.items()
    }
    for task in TASKS
  }


def _task(folder: pathlib.Path, config_file: str, run: Run) -> schedule.Task:
  fields = [f"--config.{field}={value}" for field, value in run.fields.items()]
  return schedule.Task(
    f"{folder.parent.name}, {run.name}",
    [
      *schedule.ends_with_parent(ROOT / "train.py"),
      f"--config={config_file}",
      *(f"--workdir={folder}", *fields),
    ],
    folder.with_suffix(".log"),
    lambda: sweep.is_finished(folder, run.config),
  )


def _digest(run: Run) -> str:
  """Of what the run is: its config, and the weights that it starts from."""
  digest = hashlib.sha256(run.config.to_json(sort_keys=True).encode())
  weights = pathlib.Path(run.config.model.init_from, "model.safetensors")
  digest.update(weights.read_bytes())
  return digest.hexdigest()[:12]


def _score(folder: pathlib.Path) -> float:
  return 100 * json.loads((folder / "summary.json").read_text())["best_score"]


def score_table(scores: Scores) -> str:
  """Means and standard deviations over the seeds."""
  arms = list(next(iter(scores.values())))
  rows = [
    [TASKS[task], *(_told(of_arm[arm]) for arm in arms)] for task, of_arm in scores.items()
  ]
  return table(["score (%)", *arms], rows, right=range(1, len(arms) + 1))


def _told(values: Sequence[float]) -> str:
  if len(values) < 2:
    return f"{values[0]:.1f}"
  return f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}"


def kept(study: Study, arm: str) -> list[pathlib.Path]:
  """The pretrained directories of an arm, by seed.

  Args:
    study: with the arm, which keeps its parameters; all its runs are finished.
    arm: its name.
  """
  return [study.kept(run) for one, run in study.runs if one.name == arm]


def exhibits(
  folder: pathlib.Path,
  *,
  quick: bool = False,
  seeds: int | None = None,
  jobs: int | None = None,
) -> list[Exhibit]:
  """Pretrains what is not pretrained yet, fine-tunes and tests.

  Args:
    folder: for the runs.
    quick: a few steps with few seeds, to see that it works.
    seeds: how many; as many as the learning curves have if not given.
    jobs: runs at a time; as many as cores if not given.

  Raises:
    Stopped: some runs failed; all others are finished.
  """
  jobs = jobs or len(schedule.cores())
  arms = {"packed": "packed", "unpacked": "unpacked", "no_mask": "packed without mask"}
  study = learning_curves.shared(folder, list(arms), quick=quick, seeds=seeds)
  study.run_all(jobs=jobs)
  models = {told: kept(study, arm) for arm, told in arms.items()}
  scores = fine_tune(tuning_folder(folder, quick=quick), models, quick=quick, jobs=jobs)
  apart = [
    float(np.mean(np.subtract(of_arm["packed"], of_arm["unpacked"])))
    for of_arm in scores.values()
  ]
  return [
    Exhibit(
      name="Table 3",
      title="Fine-tuned after packed and unpacked pretraining",
      agreement="in shape",
      finding="Models that were pretrained packed score "
      + " and ".join(
        f"{x:+.1f} points ({TASKS[task]})" for x, task in zip(apart, scores, strict=True)
      )
      + " from those that were pretrained unpacked.",
      command=COMMAND,
      statements=[
        equivalent(
          f"{TASKS[task]}: packed pretraining comes to the same score",
          of_arm["packed"],
          of_arm["unpacked"],
          # The score is to be high, the control of the test is to be more.
          power=np.subtract(
            np.multiply(2, of_arm["unpacked"]), of_arm["packed without mask"]
          ).tolist(),
          margin=MARGIN,
          unit="points",
        )
        for task, of_arm in scores.items()
      ],
      text="\n\n".join(
        [
          score_table(scores),
          "The dev set's best evaluation, mean and standard deviation over seeds. "
          f"{ABOUT_TASKS} The margin of {MARGIN:g} points is what a dev set of some "
          "hundred sentences can show; the paper's differences are smaller:",
          table(["SQuAD 1.1 in the paper", "reference", "packed"], PAPER, right=(1, 2)),
          "There the reference is what Devlin et al. published, packed is a median of 10 "
          "seeds, and fine-tuning is not packed; here the reference is our own unpacked "
          "pretraining, and fine-tuning is packed for both. SQuAD with BERT-base and "
          "BERT-large is not run here; its config is configs/squad.py.",
        ]
      ),
    )
  ]


if __name__ == "__main__":
  sys.exit(
    parts.main(
      __doc__, exhibits, name="downstream", add_options=learning_curves.add_options
    )
  )
