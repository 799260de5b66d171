"""Fine-tunes the models of a study, one for each arm and seed of pretraining."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.finetuning import real_tasks
from experiments.finetuning.real_tasks import Files
from lab.statistics import mean_and_sd
from lab.studies.study import Arm, Study, prepare_data, run_all
from lab.table import table

Scores = dict[str, list[float]]  # by arm, percent, a value a seed
Models = Mapping[str, Sequence[pathlib.Path]]  # by arm, the directories by seed


def make_studies(
  models: Models,
  tasks: Mapping[str, Files],
  folder: pathlib.Path,
  overrides: Mapping[str, Any],
) -> list[Study]:
  """The packed runs of each task, one for each model.

  Their arms are named as those of pretraining; their seeds begin with 0.

  Args:
    models: the directories of each arm by seed, as `Study.kept_of` has them.
    tasks: the files of each task, by its name in configs/glue.py, or squad.
    folder: for the runs; finished runs are kept.
    overrides: fields of the config of all runs.
  """
  arms = [Arm(_arm(x), {}, weights=x) for x in models.values()]
  (seeds,) = {len(directories) for directories in models.values()}
  return [
    Study(
      folder,
      arms,
      files.overrides(folder / "data" / task) | dict(overrides),
      seeds,
      config=real_tasks.config_of(task),
      module="lab.studies.trained_run",
      first_seed=0,
      name=task,
    )
    for task, files in tasks.items()
  ]


def _arm(directories: Sequence[pathlib.Path]) -> str:
  """The name of the arm of pretraining that has kept some models."""
  return directories[0].name.partition(",seed=")[0]


def to_start_from(studies: Sequence[Study]) -> set[pathlib.Path]:
  """The models from which unfinished runs start; prepares the data of all runs."""
  every = [(study, arm, run) for study in studies for arm, run in study.runs]
  prepare_data(run for *_, run in every)
  unfinished = (run for study, arm, run in every if not study.job(arm, run).is_finished())
  return {pathlib.Path(run.settings.model.init_from) for run in unfinished}


def fine_tune(studies: Sequence[Study], models: Models, *, jobs: int) -> dict[str, Scores]:
  """Makes runs, `jobs` at a time; returns the scores after the last step, by task.

  Raises:
    Stopped: some runs failed; has the last line of each.
  """
  run_all(studies, number=jobs)
  return {study.name: scores_of(study, models) for study in studies}


def scores_of(study: Study, models: Models, metric: str = "score") -> Scores:
  """A metric of the finished runs of a task, by arm of `models`."""
  results = study.results()
  return {
    name: [100 * x["summary"][f"eval_{metric}"] for x in results[_arm(directories)]]
    for name, directories in models.items()
  }


def score_table(scores: Mapping[str, Scores]) -> str:
  """Means and standard deviations over the seeds."""
  arms = list(next(iter(scores.values())))
  rows = [
    [name, *(mean_and_sd(of_task[arm], digits=1) for arm in arms)]
    for name, of_task in scores.items()
  ]
  return table(["score (%)", *arms], rows)
