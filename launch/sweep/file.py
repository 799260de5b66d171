"""Reads the file of a sweep, and checks all its runs before the first one starts."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from launch.data import check_data
from launch.door import (
  ROOT,
  call,
  changed,
  names_of,
  read_config,
  replaced_durations,
  replaced_steps,
  settings_of,
)
from launch.machine import check_machine
from launch.settings import RunSettings
from model import IMPLEMENTATIONS
from packing import InputError
from training.errors import ConfigError

_SEED, _ARM = "seed", "arm"
_KEYS = ("config", "overrides", "arms", "grid")


@dataclasses.dataclass(frozen=True)
class Run:
  """One run of a sweep.

  Attributes:
    name: the name of its folder.
    arm: the name of its arm, which runs that differ only in the seed have in common.
    point: what defines the arm, by field: "arm" if arms have names, and fields of the grid.
    fields: the values that the run sets, by field of the config.
    settings: all that the run is.
  """

  name: str
  arm: str
  point: Mapping[str, Any]
  fields: Mapping[str, Any]
  settings: RunSettings


@dataclasses.dataclass(frozen=True)
class Sweep:
  """A sweep whose runs have been checked.

  Attributes:
    config_file: the config that all runs start from, as a value of train.py's --config.
    runs: the runs in the order in which they start; their names are unique.
  """

  config_file: str
  runs: Sequence[Run]


def load_sweep(path: str | pathlib.Path, options: Sequence[str] = ()) -> Sweep:
  """Reads the file of a sweep, and checks each of its runs.

  Args:
    path: path of the file.
    options: such as "--config.train.steps=9", for all runs; they override the file.

  Raises:
    ConfigError: the message says what is wrong, and where.
  """
  if not pathlib.Path(path).is_file():
    example = "configs/sweeps/ablations.py"
    raise ConfigError(f"There is no sweep file {str(path)!r}. Try {example}.")
  return make_sweep(call(path, "get_sweep", where=str(path)), options, where=str(path))


def make_sweep(
  spec: Mapping[str, Any], options: Sequence[str] = (), *, where: str
) -> Sweep:
  """Makes a sweep from its description, and checks each of its runs.

  Args:
    spec: the description, as `get_sweep` of a file returns it; see `launch.sweep`.
    options: such as "--config.train.steps=9", for all runs; they override `spec`.
    where: where `spec` comes from, for messages.

  Raises:
    ConfigError: the message says what is wrong, and where.
  """
  spec = _checked(spec, where)
  file = str(ROOT / spec["config"])
  base = read_config(file, options)
  given = names_of(options)
  taken = given | replaced_durations(given) | replaced_steps(base, given)
  runs: dict[str, Run] = {}
  for arm, point, fields in _points(spec):
    if both := sorted(taken & fields.keys()):
      raise ConfigError(
        f"{where} sets {both[0]} for {arm!r}, but an option sets or replaces it. Leave out "
        "one."
      )
    above = given | fields.keys()
    hidden = given | replaced_durations(above)
    fields = {k: v for k, v in spec["overrides"].items() if k not in hidden} | fields
    name = _name(arm, fields if _SEED in spec["grid"] else {})
    of_run = f"{where}, run {name}"
    config = changed(base, fields, where=of_run)
    settings = _checked_settings(config, given | fields.keys(), where=of_run)
    run = Run(name, arm, point, fields, settings)
    if name in runs:
      raise ConfigError(f"{where} has two runs with the name {name}.")
    runs[name] = run
  return Sweep(file, tuple(runs.values()))


def _checked(spec: Any, path: str) -> dict[str, Any]:
  """The description of a sweep, with every key of `_KEYS`."""
  try:
    whole = {"overrides": {}, "arms": {"": {}}, "grid": {}} | spec
    if unknown := sorted(whole.keys() - set(_KEYS)):
      raise TypeError(f"it has {unknown[0]!r}")
    several = whole["overrides"], *whole["arms"].values()
    others = set[str]().union(*(fields.keys() for fields in several))
    both = sorted(others & whole["grid"].keys())
    if not isinstance(whole["config"], str):
      raise TypeError("'config' is not the name of a file")
  except (TypeError, KeyError, AttributeError) as error:
    raise ConfigError(
      f"{path}: expected a dictionary with {', '.join(_KEYS)}; found {spec!r} ({error})."
    ) from error
  if both:
    raise ConfigError(
      f"{path}: {both[0]!r} is in the grid, and in the overrides or an arm. Leave out one."
    )
  for field, values in whole["grid"].items():
    if not isinstance(values, list | tuple) or not values:
      raise ConfigError(
        f"{path}: expected a list of values for {field!r} in the grid, found {values!r}."
      )
  if not whole["arms"] or (whole["arms"] == {"": {}} and not whole["grid"]):
    raise ConfigError(f"{path}: expected 'arms' or a 'grid' to run, found neither.")
  return whole


def _points(spec: Mapping[str, Any]) -> Iterator[tuple[str, dict, dict[str, Any]]]:
  """Yields for each run the name of its arm, the arm's point, and the run's fields.

  All arms of one seed come before the next seed, so that a stopped sweep has about the
  same number of seeds for each arm.
  """
  grid = dict(spec["grid"])
  seeds = [{_SEED: seed} for seed in grid.pop(_SEED, [])] or [{}]
  for seed, (name, fields), values in itertools.product(
    seeds, spec["arms"].items(), itertools.product(*grid.values())
  ):
    point = dict(zip(grid, values, strict=True))
    short = dict(zip(_short(grid), values, strict=True))
    arm = ",".join(filter(None, (name, _words(short)))) or "run"
    named = ({_ARM: name} if name else {}) | short or {_ARM: arm}
    yield arm, named, fields | point | seed


def _short(fields: Collection[str]) -> list[str]:
  """The last parts of fields' names; the full names if two last parts are equal."""
  last = [field.split(".")[-1] for field in fields]
  return last if len(set(last)) == len(last) else list(fields)


def _words(fields: Mapping[str, Any]) -> str:
  """Such as `attention_mask=none,position_reset=True`."""
  values = (str(value).replace("/", "_") for value in fields.values())
  return ",".join(f"{name}={value}" for name, value in zip(fields, values, strict=True))


def _name(arm: str, fields: Mapping[str, Any]) -> str:
  """The name of a run's folder."""
  seed = f"seed={fields[_SEED]}" if _SEED in fields else ""
  return ",".join(filter(None, (arm.replace("/", "_"), seed)))


def _checked_settings(config: Any, given: Collection[str], *, where: str) -> RunSettings:
  """The settings of a run, checked as far as any machine can."""
  try:  # train.py checks again, with its devices
    run = settings_of(config, given)
    anywhere: dict[str, Any] = {}
    if run.model.config.attention_impl in IMPLEMENTATIONS:
      anywhere["model.attention_impl"] = "auto"
    if run.model.dtype == "auto":  # which would start this machine's device
      anywhere["model.dtype"] = "float32"
    check_machine(run.changed(anywhere), num_devices=1)
    check_data(run.data)
  except InputError as error:
    raise ConfigError(f"{where}: {error}") from error
  return run
