"""Weights & Biases and MLflow: they get the numbers that TensorBoard gets.

A tracker is a context manager with a `run_id` and a method `log`. The file `trackers.json`
in the run's folder keeps the identifiers, so that a resumed run continues the same record.
"""

from __future__ import annotations

import contextlib
import importlib
import pathlib
from collections.abc import Iterator
from typing import Any

import ml_collections

from training.config import tracker_names
from training.processes import is_first
from training.record.files import read_json, write_json

_IDS = "trackers.json"


@contextlib.contextmanager
def opened(
  folder: str | pathlib.Path, config: ml_collections.ConfigDict
) -> Iterator[list[Any]]:
  """Opens the trackers of `config.train.trackers`; of several processes only in the first.

  Args:
    folder: the run's folder.
    config: of the run, checked.

  Raises:
    ConfigError: a tracker cannot be opened, or `trackers.json` is damaged.
    Stopped: later, in `log`: MLflow's server is lost.
  """
  path = pathlib.Path(folder).absolute() / _IDS
  with contextlib.ExitStack() as stack:
    trackers: list[Any] = []
    for name in tracker_names(config) if is_first() else ():
      remedy = "It names the runs of the trackers. Remove it to start new ones."
      ids = read_json(path, remedy=remedy) if path.exists() else {}
      kind = importlib.import_module(f"training.record.trackers.{name}_run").TrackedRun
      tracker = kind(path.parent, config.to_dict(), run_id=ids.get(name))
      trackers.append(stack.enter_context(tracker))
      write_json(path, ids | {name: tracker.run_id})
    yield trackers
