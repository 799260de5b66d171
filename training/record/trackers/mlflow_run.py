"""The run as MLflow records it."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping

import mlflow

from training.command import Stopped
from training.errors import ConfigError
from training.record.workdir import flatten


class TrackedRun:
  """A run of MLflow; a context manager.

  Its variables hold: MLFLOW_TRACKING_URI names a server. Without it, the record is a
  database in the run's folder.

  Args:
    folder: the run's folder; `mlflow.db` in it is the database.
    config: of the run.
    run_id: of the run to continue; None for a new one.

  Raises:
    ConfigError: the server cannot be reached, or has no such run.
  """

  def __init__(self, folder: pathlib.Path, config: Mapping, *, run_id: str | None):
    uri = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
    mlflow.set_tracking_uri(uri)
    try:
      if run_id is None:
        mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "isopack"))
        run = mlflow.start_run(run_name=folder.name)
        mlflow.log_params(flatten(dict(config)))
      else:
        run = mlflow.start_run(run_id=run_id)
    except mlflow.MlflowException as error:
      raise ConfigError(
        f"config.train.trackers: MLflow does not open a run at {uri}: {error} Set "
        "MLFLOW_TRACKING_URI to a server that runs, or unset it."
      ) from error
    self.run_id = run.info.run_id

  def log(self, step: int, values: Mapping[str, float]):
    """Records numbers of a step.

    Raises:
      Stopped: the server is lost.
    """
    try:
      mlflow.log_metrics(dict(values), step=step)
    except mlflow.MlflowException as error:
      raise Stopped(
        f"MLflow does not take the numbers of step {step}: {error} Run the same command "
        "again to resume from the last checkpoint."
      ) from error

  def __enter__(self) -> TrackedRun:
    return self

  def __exit__(self, kind, *_):
    mlflow.end_run("FAILED" if kind else "FINISHED")
