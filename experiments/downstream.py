"""Pretrained packed or not, then fine-tuned: Table 3 in small.

  python -m experiments.downstream

The paper pretrains BERT packed and fine-tunes it on SQuAD. Here tiny models that were
pretrained on the same sequences a step, packed and one a row, are fine-tuned on tasks from
docstrings (`experiments/local_tasks.py`), each seed from its own pretraining; fine-tuning
itself is packed for all. Runs that are finished are not repeated.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from experiments import local_tasks, schedule
from experiments.report import table
from training import sweep
from training.command import Stopped
from training.sweep_file import ROOT, Run, make_sweep

TASKS = {"sst2": "which of two modules", "qqp": "whether two sentences follow"}
LEARNING_RATE = 3e-4  # as in experiments/finetuning.py
MARGIN = 2.0  # points of the score; less is no difference

Scores = dict[str, dict[str, list[float]]]  # by task and arm, percent, a value a seed


def fine_tune(
  folder: pathlib.Path,
  models: Mapping[str, Sequence[pathlib.Path]],
  *,
  tasks: Sequence[str] = tuple(TASKS),
  overrides: Mapping[str, object] | None = None,
  jobs: int,
) -> Scores:
  """Fine-tunes each model on each task, and reads what it scores on the dev set.

  Args:
    folder: for text, prepared data and runs.
    models: by arm, the pretrained directories, by seed.
    tasks: of `local_tasks.TASKS`.
    overrides: more fields of the config.
    jobs: runs at a time.

  Returns:
    The best score of each run, in percent.

  Raises:
    Stopped: some runs failed, with their last words.
  """
  files = local_tasks.write(folder / "text")
  waiting: list[schedule.Task] = []
  for task in tasks:
    spec = {
      "config": f"configs/glue.py:{task}",
      "overrides": {
        "data.source": files[task][0],
        "data.held_out_source": files[task][1],
        "data.directory": str(folder / "data" / task),
        "optimizer.learning_rate": LEARNING_RATE,
        "train.throughput_rounds": 0,
        "train.log_every": 20,
        "train.eval_every": 100,
        "train.checkpoint_every": 100,
      }
      | dict(overrides or {}),
      "arms": {
        f"{arm},{seed}": {"model.init_from": str(directory), "seed": seed}
        for arm, directories in models.items()
        for seed, directory in enumerate(directories)
      },
    }
    swept = make_sweep(spec, where=f"fine-tuning on {task}")
    waiting += [
      _task(folder / "runs" / task / run.name, swept.config_file, run) for run in swept.runs
    ]
  platform = {} if "JAX_PLATFORMS" in os.environ else {"JAX_PLATFORMS": "cpu"}
  cache = {"JAX_COMPILATION_CACHE_DIR": str((folder / "compiled").absolute())}
  if failures := schedule.run_all(waiting, jobs=jobs, environment=cache | platform):
    told = "; ".join(f"{name}: {words}" for name, words in failures.items())
    raise Stopped(f"{len(failures)} of {len(waiting)} runs failed. {told}")
  return {
    task: {
      arm: [_score(folder / "runs" / task / f"{arm},{seed}") for seed in range(len(paths))]
      for arm, paths in models.items()
    }
    for task in tasks
  }


def _task(folder: pathlib.Path, config_file: str, run: Run) -> schedule.Task:
  fields = [f"--config.{field}={value}" for field, value in run.fields.items()]
  return schedule.Task(
    f"{folder.parent.name}, {run.name}",
    [
      *(sys.executable, str(ROOT / "train.py"), f"--config={config_file}"),
      *(f"--workdir={folder}", *fields),
    ],
    folder.with_suffix(".log"),
    lambda: sweep.is_finished(folder, run.config),
  )


def _score(folder: pathlib.Path) -> float:
  return 100 * json.loads((folder / "summary.json").read_text())["best_score"]


def score_table(scores: Scores) -> str:
  """Means and standard deviations over the seeds."""
  arms = list(next(iter(scores.values())))
  rows = [
    [f"{task} ({TASKS.get(task, task)})", *(_told(of_arm[arm]) for arm in arms)]
    for task, of_arm in scores.items()
  ]
  return table(["score (%)", *arms], rows, right=range(1, len(arms) + 1))


def _told(values: Sequence[float]) -> str:
  if len(values) < 2:
    return f"{values[0]:.1f}"
  return f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}"
