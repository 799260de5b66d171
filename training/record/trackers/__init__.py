"""Trackers: Weights & Biases and MLflow get the numbers that TensorBoard gets.

The module of a tracker has a class `TrackedRun` with `run_id`, `log` and `close`, and a
`REMEDY`, which says what to do if the tracker cannot be opened. `trackers.json` in the
run's folder keeps the identifiers, so that a resumed run continues the same record.
"""

from __future__ import annotations

import contextlib
import importlib
import pathlib
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ml_collections

from training.config import tracker_names
from training.errors import ConfigError
from training.processes import on_first
from training.record.files import read_json, write_json

_IDS = "trackers.json"


@contextlib.contextmanager
def opened(
  folder: str | pathlib.Path, config: ml_collections.ConfigDict
) -> Iterator[Trackers]:
  """Opens the trackers of `config.train.trackers`, in process 0 only.

  Args:
    folder: the run's folder.
    config: the run's config, validated.

  Raises:
    ConfigError: a tracker cannot be opened, or `trackers.json` is damaged.
    Stopped: in the other processes, if process 0 failed.
  """
  trackers, failed = Trackers(), True
  try:
    on_first(lambda: trackers.open(pathlib.Path(folder).absolute(), config))
    yield trackers
    failed = False
  finally:
    trackers.close(failed=failed)


class Trackers:
  """A run's trackers. If one fails, it is dropped with a warning, and the run continues."""

  def __init__(self):
    self._open: dict[str, Any] = {}

  def open(self, folder: pathlib.Path, config: ml_collections.ConfigDict):
    """Opens the trackers that the config names; see `opened`."""
    path = folder / _IDS
    for name in tracker_names(config):
      remedy = "It names the runs of the trackers. Remove it to start new ones."
      ids = read_json(path, remedy=remedy) if path.exists() else {}
      module = importlib.import_module(f"training.record.trackers.{name}_run")
      try:
        tracker = module.TrackedRun(folder, config.to_dict(), run_id=ids.get(name))
      except Exception as error:  # of any type, such as from a database driver
        raise ConfigError(
          f"config.train.trackers: {name} cannot open a run: {_error_line(error)} "
          f"{module.REMEDY}"
        ) from error
      self._open[name] = tracker
      write_json(path, ids | {name: tracker.run_id})

  def log(self, step: int, values: Mapping[str, float]):
    """Records numbers of a step."""
    self._each(lambda tracker: tracker.log(step, values))

  def close(self, *, failed: bool):
    """Ends the records; `failed` means that an exception ends the run."""
    self._each(lambda tracker: tracker.close(failed=failed))

  def _each(self, act: Callable[[Any], None]):
    for name, tracker in list(self._open.items()):
      try:
        act(tracker)
      except Exception as error:  # a tracker must not end the run
        del self._open[name]
        print(
          f"WARNING: {name} failed: {_error_line(error)} The run continues without it; "
          "metrics.jsonl and TensorBoard have all numbers.",
          file=sys.stderr,
          flush=True,
        )


def _error_line(error: Exception) -> str:
  """The error's message on one line, without passwords in URLs."""
  text = re.sub(r"://\S*@", "://", str(error) or type(error).__name__)
  line = textwrap.shorten(text, 300, placeholder=" ...")
  return line if line.endswith(".") else f"{line}."
