"""Fine-tunes the models of a study, one for each arm and seed of pretraining."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.finetuning import real_tasks
from experiments.finetuning.real_tasks import Files
from experiments.finetuning.runs import Runs, run_all
from lab.statistics import mean_and_sd
from lab.studies.study import prepare_data, weights_digest
from lab.table import table
from launch.sweep.file import make_sweep

Scores = dict[str, list[float]]  # by arm, percent, a value a seed
Models = Mapping[str, Sequence[pathlib.Path]]  # by arm, the directories by seed


def make_runs(
  models: Models,
  tasks: Mapping[str, Files],
  folder: pathlib.Path,
  overrides: Mapping[str, Any],
) -> list[Runs]:
  """The packed runs of each task, one for each model.

  Args:
    models: the directories of each arm by seed.
    tasks: the files of each task, by its name in configs/glue.py, or squad.
    folder: for the runs; finished runs are kept.
    overrides: fields of the config of all runs.
  """
  arms = {
    name_of(directory): {"model.init_from": str(directory), "seed": seed}
    for directories in models.values()
    for seed, directory in enumerate(directories)
  }
  all_runs = []
  for task, files in tasks.items():
    of_task = files.overrides(folder / "data" / task)
    spec = {
      "config": real_tasks.config_of(task),
      "overrides": of_task | dict(overrides),
      "arms": arms,
    }
    sweep = make_sweep(spec, where=f"fine-tuning on {task}")
    all_runs.append(Runs(task, sweep, folder))
  return all_runs


def to_start_from(all_runs: Sequence[Runs]) -> set[pathlib.Path]:
  """The models from which unfinished runs start; prepares the data of all runs."""
  prepare_data(run for runs in all_runs for run in runs.sweep.runs)
  pairs = ((runs, run) for runs in all_runs for run in runs.sweep.runs)
  unfinished = (run for runs, run in pairs if not runs.process(run).is_finished())
  return {pathlib.Path(run.settings.model.init_from) for run in unfinished}


def fine_tune(all_runs: Sequence[Runs], models: Models, *, jobs: int) -> dict[str, Scores]:
  """Makes runs, `jobs` at a time; returns the scores after the last step, by task.

  Raises:
    Stopped: some runs failed; has the last line of each.
  """
  run_all(all_runs, number=jobs)
  return {runs.task: scores_of(runs, models) for runs in all_runs}


def scores_of(runs: Runs, models: Models, metric: str = "score") -> Scores:
  """A metric of the finished runs of a task."""
  return {
    arm: [
      100 * summary[f"eval_{metric}"]
      for directory in directories
      for summary in runs.summaries(name_of(directory))
    ]
    for arm, directories in models.items()
  }


def name_of(directory: pathlib.Path) -> str:
  """The name of a model's fine-tuning run; other weights give another name."""
  return f"{directory.name}-{(weights_digest(str(directory)) or '')[:8]}"


def score_table(scores: Mapping[str, Scores]) -> str:
  """Means and standard deviations over the seeds."""
  arms = list(next(iter(scores.values())))
  rows = [
    [name, *(mean_and_sd(of_task[arm], digits=1) for arm in arms)]
    for name, of_task in scores.items()
  ]
  return table(["score (%)", *arms], rows)
