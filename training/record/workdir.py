"""A run's folder, and the config that it belongs to."""

from __future__ import annotations

import contextlib
import fcntl
import pathlib
import sys
from collections.abc import Iterator

import ml_collections
from flax.traverse_util import flatten_dict

from model import hf, weights
from model.files import parse_json
from training.errors import ConfigError
from training.record.files import read_json, write_json

_CONFIG, _DATASET, _LOCK = "config.json", "dataset.json", ".lock"
_SUMMARY = "summary.json"
_WITHOUT_EFFECT = ("train.trackers",)  # fields that change no result


class ChangedConfig(ConfigError):
  """A run's folder has another config; `differences` lists the fields."""

  def __init__(self, message: str, differences: str):
    super().__init__(message)
    self.differences = differences


def is_run(workdir: str | pathlib.Path) -> bool:
  """Whether a folder holds a run, not an imported model."""
  workdir = pathlib.Path(workdir)
  models = weights.MODEL, hf.CONFIG  # a run has them too
  return (workdir / _DATASET).exists() or not any((workdir / n).exists() for n in models)


def check(
  workdir: str | pathlib.Path,
  config: ml_collections.ConfigDict,
  *,
  allow_changes: bool = False,
) -> bool:
  """Checks that a run of this config may use the folder; creates the folder if needed.

  Args:
    workdir: the run's folder.
    config: the run's config.
    allow_changes: whether the config may differ from the one that the run was started
      with; a warning then lists the differences.

  Returns:
    Whether the config differs.

  Raises:
    ConfigError: the folder belongs to a run with another config, or is not writable.
  """
  workdir, changed = pathlib.Path(workdir), False
  if has_begun(workdir):
    try:
      check_same(workdir, config)
    except ChangedConfig as error:
      if not allow_changes:
        raise
      changed = True
      print(
        f"WARNING: resuming with a changed config: {error.differences}", file=sys.stderr
      )
  elif any((workdir / name).exists() for name in (weights.MODEL, hf.CONFIG)):
    raise ConfigError(
      f"--workdir={workdir} holds a model, not a run. Name another folder for the run, and "
      f"start from the model with --config.model.init_from={workdir}."
    )
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / _LOCK).touch()  # not replaced, since another process may hold its lock
  except OSError as error:
    raise ConfigError(f"--workdir={workdir} cannot be written: {error}.") from error
  return changed


def has_begun(workdir: str | pathlib.Path) -> bool:
  """Whether a run was recorded in the folder; Hugging Face has a `config.json`, too."""
  path = pathlib.Path(workdir) / _CONFIG
  try:
    content = parse_json(path.read_bytes())
  except (OSError, ValueError):
    return path.exists()  # a damaged file is reported when it is read
  return not isinstance(content, dict) or "architectures" not in content


@contextlib.contextmanager
def claimed(workdir: str | pathlib.Path) -> Iterator[None]:
  """Locks the folder, so that only one process trains in it.

  Args:
    workdir: the run's folder.

  Raises:
    ConfigError: another process trains in the folder.
  """
  with (pathlib.Path(workdir) / _LOCK).open("a") as lock:  # NFS locks what can be written
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise ConfigError(
        f"Another process trains in {workdir}. Wait for it to end, or give another "
        "--workdir."
      ) from error
    yield


def record(
  workdir: str | pathlib.Path, config: ml_collections.ConfigDict, dataset: dict[str, str]
):
  """Writes what a run is made from: `config.json` and `dataset.json`.

  Args:
    workdir: the run's folder, locked by `claimed`.
    config: the run's config; its checkpoints, if any, must fit it.
    dataset: SHA-256 of each file of the dataset.
  """
  workdir = pathlib.Path(workdir)
  (workdir / _SUMMARY).unlink(missing_ok=True)  # it was of fewer steps
  write_json(workdir / _DATASET, dataset)
  write_json(workdir / _CONFIG, config.to_dict())


def read_summary(workdir: str | pathlib.Path) -> dict | None:
  """The summary of a finished run; None if it is not finished.

  Raises:
    ConfigError: the file is damaged.
  """
  path = pathlib.Path(workdir) / _SUMMARY
  remedy = "Delete it, and run train.py again, which writes it."
  return read_json(path, remedy=remedy) if path.exists() else None


def read_config(workdir: str | pathlib.Path) -> dict:
  """The config that a run was started with.

  Raises:
    ConfigError: the file is missing or damaged.
  """
  path = pathlib.Path(workdir) / _CONFIG
  try:
    return read_json(path, remedy="Restore the file, or give another --workdir.")
  except OSError as error:
    raise ConfigError(
      f"Expected a run in {workdir}: {_CONFIG} cannot be read there ({error.strerror}). "
      "Name a folder that train.py has written, such as runs/mine."
    ) from error


def check_dataset(workdir: str | pathlib.Path, dataset: dict[str, str]):
  """Checks that the run, if it has been started, was started with this dataset.

  Args:
    workdir: the run's folder.
    dataset: SHA-256 of each file of the dataset.

  Raises:
    ConfigError: it was started with another dataset, or `dataset.json` is damaged.
  """
  path = pathlib.Path(workdir) / _DATASET
  remedy = (
    "It records which dataset the run was started with. Restore the file; or remove it, if "
    "config.data.directory still holds that dataset: train.py then writes it again."
  )
  if path.exists() and read_json(path, remedy=remedy) != dataset:
    raise ConfigError(
      f"{workdir} holds a run on another dataset: config.data.directory was prepared again "
      "since then. Restore that dataset, or give another --workdir."
    )


def check_same(
  workdir: str | pathlib.Path,
  config: ml_collections.ConfigDict,
  *,
  groups: tuple[str, ...] = (),
  ignore: tuple[str, ...] = (),
):
  """Checks that a run's folder belongs to a config.

  Args:
    workdir: the run's folder.
    config: the config to compare with its `config.json`.
    groups: groups of fields to compare; () for all.
    ignore: fields not to compare, such as "model.remat". `train.trackers` is never
      compared, since it changes no result.

  Raises:
    ChangedConfig: the configs differ; the message lists the fields.
    ConfigError: there is no run, or its `config.json` is damaged.
  """
  stored, expected = (
    flatten_dict(values, sep=".") for values in (read_config(workdir), config.to_dict())
  )
  differences = [
    f"{name} was {stored.get(name)!r} and is now {expected.get(name)!r}"
    for name in sorted(stored.keys() | expected.keys())
    if stored.get(name) != expected.get(name)
    and (not groups or name.split(".")[0] in groups)
    and name not in (*ignore, *_WITHOUT_EFFECT)
  ]
  if differences:
    raise ChangedConfig(
      f"{workdir} holds a run with another config: {'; '.join(differences)}. Give the same "
      "config, or another --workdir; train.py accepts it with --allow_changed_config.",
      "; ".join(differences),
    )
