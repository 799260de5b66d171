"""A run's folder, and the config it belongs to."""

from __future__ import annotations

import json
import pathlib

import ml_collections

from training.config import ConfigError
from training.files import write_json


def claim(workdir: str | pathlib.Path, config: ml_collections.ConfigDict):
  """Makes the folder and writes `config.json`, or checks that it holds this config.

  Raises:
    ConfigError: the folder belongs to a run with another config, or is not writable.
  """
  workdir = pathlib.Path(workdir)
  if (workdir / "config.json").exists():
    check_same(workdir, config)
    return
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    write_json(workdir / "config.json", config.to_dict())
  except OSError as error:
    raise ConfigError(f"--workdir={workdir} cannot be written: {error}.") from error


def check_same(
  workdir: str | pathlib.Path,
  config: ml_collections.ConfigDict,
  *,
  groups: tuple[str, ...] = (),
):
  """Checks that a run's folder belongs to a config.

  Args:
    workdir: the run's folder.
    config: the config to compare its `config.json` with.
    groups: groups of fields to compare; all if there are none.

  Raises:
    ConfigError: names the fields that differ, or says that there is no run.
  """
  path = pathlib.Path(workdir) / "config.json"
  try:
    found = _flatten(json.loads(path.read_text()))
  except (OSError, ValueError) as error:
    raise ConfigError(f"Expected a run in --workdir={workdir}: {error}.") from error
  expected = _flatten(config.to_dict())
  differences = [
    f"{name} is {found.get(name)!r} there and {expected.get(name)!r} here"
    for name in sorted(found.keys() | expected.keys())
    if found.get(name) != expected.get(name)
    and (not groups or name.split(".")[0] in groups)
  ]
  if differences:
    raise ConfigError(
      f"{workdir} holds a run with another config: {'; '.join(differences)}. Give the same "
      "config, or another --workdir."
    )


def _flatten(tree: dict, prefix: str = "") -> dict:
  flat: dict = {}
  for name, value in tree.items():
    if isinstance(value, dict):
      flat |= _flatten(value, f"{prefix}{name}.")
    else:
      flat[prefix + name] = value
  return flat
