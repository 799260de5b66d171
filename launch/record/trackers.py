"""Weights & Biases and MLflow get the numbers that TensorBoard gets: docs/training.md."""

import contextlib
import logging
import os
import pathlib
import re
from collections.abc import Callable, Iterator

from flax.traverse_util import flatten_dict

from launch import door
from launch.record import tensorboard
from launch.record.progress import warn
from launch.settings import RunSettings
from packing.files import read_json, write_json
from training.errors import ConfigError
from training.processes import on_first

Trackers = dict[str, tuple[Callable, Callable]]  # log(values, step) and close(failed)


@contextlib.contextmanager
def opened(folder: str | pathlib.Path, run: RunSettings) -> Iterator[Trackers]:
  """Opens TensorBoard and the trackers of `Train.trackers`, in process 0 only.

  Raises:
    InputError: a tracker cannot be opened, or `trackers.json` is damaged.
    Stopped: in the other processes, if process 0 failed.
  """
  trackers: Trackers = {}
  failed = True
  try:
    on_first(lambda: _open(trackers, pathlib.Path(folder).absolute(), run))
    yield trackers
    failed = False
  finally:
    for_each(trackers, lambda _, close: close(failed))


def for_each(trackers: Trackers, act: Callable[[Callable, Callable], None]):
  """Calls each tracker; one that fails is dropped with a warning."""
  for name, functions in list(trackers.items()):
    try:
      act(*functions)
    except Exception as error:  # a tracker must not end the run
      del trackers[name]
      warn(f"the run continues without {name}: {_line(error)}")


def _open(trackers: Trackers, folder: pathlib.Path, run: RunSettings):
  path = folder / "trackers.json"
  trackers["TensorBoard"] = tensorboard.writer(folder / "tensorboard")
  for name in run.train.tracker_names:
    what = "the names of the run's records. Delete it to start new ones"
    ids = read_json(path, what=what) if path.exists() else {}
    make = {"wandb": _open_wandb, "mlflow": _open_mlflow}[name]
    try:
      ids[name], trackers[name] = make(folder, door.nested(run.given), ids.get(name))
    except Exception as error:  # of any type, such as from a database driver
      raise ConfigError(f"{name} cannot be opened: {_line(error)}") from error
    write_json(path, ids)


def _line(error: Exception) -> str:
  """The error's message on one line, without passwords in URLs."""
  return " ".join(re.sub(r"://\S*@", "://", str(error) or repr(error)).split())[:300]


def _open_wandb(folder: pathlib.Path, config: dict, run_id: str | None):
  import wandb

  flags = ("disable_code", "disable_git", "x_disable_meta", "x_disable_stats")
  private = dict.fromkeys(flags, True) | {"host": "-", "x_save_requirements": False}
  settings = wandb.Settings(console="off", finish_timeout=60, **private)
  options = {"dir": folder, "name": folder.name, "resume": "allow", "settings": settings}
  project = os.getenv("WANDB_PROJECT", "isopack")
  run = wandb.init(project=project, config=config, id=run_id, **options)
  return run.id, (run.log, lambda failed: run.finish(exit_code=int(failed)))


def _open_mlflow(folder: pathlib.Path, config: dict, run_id: str | None):
  import mlflow

  logging.getLogger("mlflow").setLevel("ERROR")  # it would log passwords in URIs
  os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # more would block a step
  mlflow.set_tracking_uri(os.getenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db"))
  mlflow.set_experiment(os.getenv("MLFLOW_EXPERIMENT_NAME", "isopack"))
  run = mlflow.start_run(run_id, run_name=folder.name)
  if run_id is None:
    mlflow.log_params(flatten_dict(config, sep="."))
  names = {True: "FAILED", False: "FINISHED"}
  return run.info.run_id, (mlflow.log_metrics, lambda failed: mlflow.end_run(names[failed]))
