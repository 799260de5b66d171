"""A run's folder, and the config that it belongs to.

This file is itself a config file: --config=launch/workdir.py:FOLDER is the config of the
run in a folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from flax.traverse_util import flatten_dict

from launch import door
from launch.settings import OPTIONS
from model import hf, weights
from packing.files import parse_json, read_json, write_json
from training.errors import ConfigError

FILE = pathlib.Path(__file__)
_CONFIG, _DATASET, _LOCK = "config.json", "dataset.json", ".lock"
_SUMMARY = "summary.json"
_OF_MODELS = weights.MODEL, hf.CONFIG  # the files of a model; a run has them, too
_GROUPS = {"data", "packing", "model", "optimizer", "train"}  # of all runs
# How a run computed, not what its weights are; another machine may compute differently.
COMPUTATION_FIELDS = (
  *("model.attention_impl", "model.remat", "model.dtype", "model.init_from"),
  *("model.dropout_rate", "model.attention_dropout_rate"),
)
_WITHOUT_EFFECT = ("train.trackers",)  # fields that change no result
# What a run that has begun cannot change: its model, its plan and its optimizer's state.
_FIXED = "model.", "packing.", "optimizer.name"
_NOT_FIXED = (*COMPUTATION_FIELDS, "packing.adjust")
# What changes the rows of a step, by which a run counts its position in the data.
_OTHER_ROWS, _SAME_ROWS = ("train.batch_size", "data."), ("data.directory",)


def is_run(workdir: str | pathlib.Path) -> bool:
  """Whether a folder holds a run, not an imported model."""
  workdir = pathlib.Path(workdir)
  is_model = any((workdir / name).exists() for name in _OF_MODELS)
  return (workdir / _DATASET).exists() or not is_model


def check_folder(
  workdir: str | pathlib.Path, config: Mapping[str, Any], *, allow_changes: bool = False
) -> bool:
  """Checks that a run of this config may use the folder; creates the folder if needed.

  Args:
    workdir: the run's folder.
    config: the run's config, `RunSettings.given`.
    allow_changes: whether the config may differ from the one that the run was started
      with; a warning then lists the differences.

  Returns:
    Whether the config differs.

  Raises:
    ConfigError: the folder belongs to a run with another config, one with `allow_changes`
      in a field that cannot change, or it is not writable.
  """
  workdir, changes = pathlib.Path(workdir), ""
  if has_begun(workdir):
    if fixed := differences(workdir, config, groups=_FIXED, ignore=_NOT_FIXED):
      where = "give another --workdir"
      if "model." not in fixed:  # its weights fit
        where = _anew(workdir)
      raise ConfigError(
        f"{workdir} has another model, packing or optimizer: {fixed}. Give the same ones, "
        f"or {where}."
      )
    if not allow_changes:
      other_rows = differences(workdir, config, groups=_OTHER_ROWS, ignore=_SAME_ROWS)
      instead = f"or {_anew(workdir)}"
      accepted = "--allow_changed_config to accept it, or another --workdir"
      check_same(workdir, config, remedy=instead if other_rows else accepted)
    if changes := differences(workdir, config):
      print(f"WARNING: resuming with a changed config: {changes}", file=sys.stderr)
  elif any((workdir / name).exists() for name in _OF_MODELS):
    raise ConfigError(
      f"--workdir={workdir} holds a model, not a run. Name another folder, and give this "
      f"one as --config.model.init_from={workdir}."
    )
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / _LOCK).touch()  # not replaced, since another process may hold its lock
  except OSError as error:
    raise ConfigError(f"--workdir={workdir} cannot be written: {error}.") from error
  return bool(changes)


def _anew(workdir: pathlib.Path) -> str:
  """What a config can do instead of continuing a run that it does not fit."""
  if not weights.steps(workdir):
    return "give another --workdir; this one has no checkpoint yet"
  return (
    f"start a new run from its weights: --config.model.init_from={workdir} with another "
    "--workdir"
  )


def has_begun(workdir: str | pathlib.Path) -> bool:
  """Whether a run was recorded in the folder; Hugging Face has a `config.json`, too."""
  path = pathlib.Path(workdir) / _CONFIG
  try:
    content = parse_json(path.read_bytes())
  except (OSError, ValueError):
    return path.exists()  # a damaged file is reported when it is read
  return not isinstance(content, dict) or not _GROUPS.isdisjoint(content)


@contextlib.contextmanager
def claimed(workdir: str | pathlib.Path) -> Iterator[None]:
  """Locks a run's folder, so that only one process trains in it.

  Raises:
    ConfigError: another process trains in the folder.
  """
  with (pathlib.Path(workdir) / _LOCK).open("a") as lock:  # NFS locks what can be written
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise ConfigError(
        f"Another process trains in {workdir}. Wait for it, or give another --workdir."
      ) from error
    yield


def record(workdir: str | pathlib.Path, config: Mapping[str, Any], dataset: dict[str, str]):
  """Writes what a run is made from: `config.json` and `dataset.json`.

  Args:
    workdir: the run's folder, locked by `claimed`.
    config: the run's config, by field; its checkpoints, if any, must fit it.
    dataset: SHA-256 of each file of the dataset.
  """
  workdir = pathlib.Path(workdir)
  (workdir / _SUMMARY).unlink(missing_ok=True)  # it was of fewer steps
  write_json(workdir / _DATASET, dataset)
  write_json(workdir / _CONFIG, door.nested(config))


def read_summary(workdir: str | pathlib.Path) -> dict | None:
  """The summary of a finished run; None if it is not finished.

  Raises:
    InputError: the file is damaged.
  """
  path = pathlib.Path(workdir) / _SUMMARY
  what = "the results of a run. Delete it: train.py writes it again"
  return read_json(path, what=what) if path.exists() else None


def read_config(workdir: str | pathlib.Path) -> dict:
  """The config that a run was started with.

  Raises:
    InputError: the file is missing or damaged.
  """
  what = "the config of a run. Restore it, or name a folder such as runs/mine"
  return read_json(pathlib.Path(workdir) / _CONFIG, what=what)


def get_config(folder: str) -> Any:
  """The config of the run in a folder.

  Raises:
    InputError: there is no run, or its `config.json` is damaged or has other fields.
  """
  config, stored = door.default_config().lock(), read_config(folder)
  try:
    config.update(stored)  # fields that are newer than the run keep their defaults
    if missing := _GROUPS - stored.keys():
      raise KeyError(f"there is no {min(missing)}")
  except (KeyError, TypeError, AttributeError) as error:
    reason = str(error.args[0] if error.args else error).splitlines()[0]
    raise ConfigError(
      f"{folder}/{_CONFIG} is damaged, or has other fields: {reason}. Restore it."
    ) from error
  return config


def check_dataset(workdir: str | pathlib.Path, dataset: dict[str, str]):
  """Checks that the run, if it has been started, was started with this dataset.

  Args:
    workdir: the run's folder.
    dataset: SHA-256 of each file of the dataset.

  Raises:
    InputError: it was started with another dataset, or `dataset.json` is damaged.
  """
  path = pathlib.Path(workdir) / _DATASET
  what = "the digests of the run's dataset. Restore it, or give another --workdir"
  if path.exists() and read_json(path, what=what) != dataset:
    raise ConfigError(
      f"{workdir} holds a run on another dataset. Restore that, or give another --workdir."
    )


def differences(
  workdir: str | pathlib.Path,
  config: Mapping[str, Any],
  *,
  groups: tuple[str, ...] = ("",),
  ignore: tuple[str, ...] = (),
) -> str:
  """The fields in which a config differs from that of a run, in words; "" for none.

  A field that the run's config lacks is newer than the run, and had its default.

  Args:
    workdir: the run's folder.
    config: the config to compare with its `config.json`, by field.
    groups: how the names of fields to compare begin.
    ignore: fields not to compare, such as "model.remat". `train.trackers` is never
      compared, since it changes no result.

  Raises:
    InputError: there is no run, or its `config.json` is damaged.
  """
  stored = flatten_dict(read_config(workdir), sep=".")
  newer = {name: OPTIONS[name].default for name in OPTIONS.keys() - stored.keys()}
  before = newer | stored
  return "; ".join(
    f"{name} was {before.get(name)!r} and is now {config.get(name)!r}"
    for name in sorted(stored.keys() | config.keys())
    if before.get(name) != config.get(name)
    and name.startswith(groups)
    and name not in (*ignore, *_WITHOUT_EFFECT)
  )


def check_same(
  workdir: str | pathlib.Path,
  config: Mapping[str, Any],
  *,
  remedy: str = "or another --workdir",
  **fields: tuple[str, ...],
):
  """Raises ConfigError if a run's folder belongs to a config with `differences`.

  Args:
    workdir, config, fields: as for `differences`.
    remedy: completes "Give the same config, ...".
  """
  if changes := differences(workdir, config, **fields):
    raise ConfigError(
      f"{workdir} holds a run with another config: {changes}. Give the same config, "
      f"{remedy}."
    )
