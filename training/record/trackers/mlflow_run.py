"""The record of a run in MLflow."""

from __future__ import annotations

import logging
import os
import pathlib
import time
from collections.abc import Mapping

import mlflow
from flax.traverse_util import flatten_dict
from mlflow.entities import Metric, Param

REMEDY = "Set MLFLOW_TRACKING_URI to a server that runs, or unset it."
# With MLflow's defaults, a failing server would block a step for many minutes.
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}


class TrackedRun:
  """A run of MLflow.

  MLflow's environment variables apply: MLFLOW_TRACKING_URI names a server. Without it, the
  record is a database in the run's folder.

  Args:
    folder: the run's folder; `mlflow.db` in it is the database.
    config: the run's config.
    run_id: the MLflow run to continue; None for a new one.

  Raises:
    Exception: of any type, if the server cannot be reached, or has no such run.
  """

  def __init__(self, folder: pathlib.Path, config: Mapping, *, run_id: str | None):
    for name, value in _PATIENCE.items():
      os.environ.setdefault(name, value)
    uri = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
    # MLflow would log each attempt, with the password that the URI may contain.
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    self._client = mlflow.MlflowClient(uri)  # unlike mlflow.start_run, without an exit hook
    if run_id is None:
      mlflow.set_tracking_uri(uri)
      name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "isopack")
      experiment = mlflow.set_experiment(name).experiment_id
      self.run_id = self._client.create_run(experiment, run_name=folder.name).info.run_id
      params = [
        Param(key, str(value)) for key, value in flatten_dict(dict(config), sep=".").items()
      ]
      self._client.log_batch(self.run_id, params=params)
    else:
      self.run_id = run_id
      self._client.update_run(run_id, status="RUNNING")

  def log(self, step: int, values: Mapping[str, float]):
    """Records numbers of a step."""
    now = int(time.time() * 1000)
    metrics = [Metric(key, value, now, step) for key, value in values.items()]
    self._client.log_batch(self.run_id, metrics=metrics)

  def close(self, *, failed: bool):
    """Ends the record."""
    self._client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")
