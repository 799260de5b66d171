"""Weights & Biases and MLflow: they get the numbers that TensorBoard gets.

A tracker is a `TrackedRun` with a `run_id`, `log` and `close`, and `REMEDY` says what to do
if it does not open. The file `trackers.json` in the run's folder keeps the identifiers, so
that a resumed run continues the same record.
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
from training.processes import first
from training.record.files import read_json, write_json

_IDS = "trackers.json"


@contextlib.contextmanager
def opened(
  folder: str | pathlib.Path, config: ml_collections.ConfigDict
) -> Iterator[Trackers]:
  """Opens the trackers of `config.train.trackers`; of several processes only in the first.

  Args:
    folder: the run's folder.
    config: of the run, checked.

  Raises:
    ConfigError: a tracker cannot be opened, or `trackers.json` is damaged.
    Stopped: in the other processes, if it failed in the first.
  """
  trackers, failed = Trackers(), True
  try:
    first(lambda: trackers.open(pathlib.Path(folder).absolute(), config))
    yield trackers
    failed = False
  finally:
    trackers.close(failed=failed)


class Trackers:
  """The trackers of a run. One that fails is dropped with a warning: the run goes on."""

  def __init__(self):
    self._open: dict[str, Any] = {}

  def open(self, folder: pathlib.Path, config: ml_collections.ConfigDict):
    """Opens those of the config; see `opened`."""
    path = folder / _IDS
    for name in tracker_names(config):
      remedy = "It names the runs of the trackers. Remove it to start new ones."
      ids = read_json(path, remedy=remedy) if path.exists() else {}
      module = importlib.import_module(f"training.record.trackers.{name}_run")
      try:
        tracker = module.TrackedRun(folder, config.to_dict(), run_id=ids.get(name))
      except Exception as error:  # also of a database's driver, or of the network
        raise ConfigError(
          f"config.train.trackers: {name} does not open a run: {_told(error)} "
          f"{module.REMEDY}"
        ) from error
      self._open[name] = tracker
      write_json(path, ids | {name: tracker.run_id})

  def log(self, step: int, values: Mapping[str, float]):
    """Records numbers of a step."""
    self._each(lambda tracker: tracker.log(step, values))

  def close(self, *, failed: bool):
    """Ends the records; `failed` says that an exception ends the run."""
    self._each(lambda tracker: tracker.close(failed=failed))

  def _each(self, act: Callable[[Any], None]):
    for name, tracker in list(self._open.items()):
      try:
        act(tracker)
      except Exception as error:  # no tracker is worth a run
        del self._open[name]
        print(
          f"WARNING: {name} failed: {_told(error)} The run goes on without it; "
          "metrics.jsonl and TensorBoard have all numbers.",
          file=sys.stderr,
          flush=True,
        )


def _told(error: Exception) -> str:
  """What an error says, in a line and without the passwords of its addresses."""
  text = re.sub(r"://\S*@", "://", str(error) or type(error).__name__)
  line = textwrap.shorten(text, 300, placeholder=" ...")
  return line if line.endswith(".") else f"{line}."
