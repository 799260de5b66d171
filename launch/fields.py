"""The fields of a config: their defaults, and how files and command lines set them."""

from __future__ import annotations

import difflib
import pathlib
import runpy
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict, config_flags

from training.errors import ConfigError

ROOT = pathlib.Path(__file__).parents[1]
BASE = ROOT / "configs" / "base.py"
# Names allowed in train.trackers, and the modules that they need.
TRACKERS = {"wandb": ("wandb",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}


def base_config() -> ConfigDict:
  """A config with every field, set to its default."""
  return runpy.run_path(str(BASE))["get_config"]()


def flat(config: ConfigDict) -> dict[str, Any]:
  """The values by dotted name, such as "train.steps"."""
  return flatten_dict(config.to_dict(), sep=".")


def tracker_names(config: ConfigDict) -> list[str]:
  """The names in `train.trackers`."""
  return [name.strip() for name in config.train.trackers.split(",") if name.strip()]


CHOSEN = -1  # the value of packing.row_length for a length that fits the data


def row_length(config: ConfigDict) -> int:
  """The tokens of a packed row, as far as the config alone says.

  That is `data.max_sequence_length` without packing, and where the data will decide.
  """
  length, packing = config.data.max_sequence_length, config.packing
  return length if packing.algorithm == "none" else max(packing.row_length, length)


def check(condition: bool, field: str, value, expected: str, *, remedy: str = ""):
  """Raises ConfigError with the field, its value and what was expected.

  Args:
    condition: the error is raised if this is false.
    field: the name of the field, without "config.".
    value: its value.
    expected: completes "expected ...".
    remedy: what to do; by default, to set the field.
  """
  if not condition:
    remedy = remedy or f"Set it with --config.{field}=..."
    raise ConfigError(f"config.{field} is {value!r}; expected {expected}. {remedy}")


def field_value(config: ConfigDict, name: str, *, where: str):
  """The value of a field, by its dotted name.

  Args:
    config: the config.
    name: such as "train.steps".
    where: where the name was read, for messages.

  Raises:
    ConfigError: there is no such field; suggests the most similar name.
  """
  known = flat(config)
  if name not in known:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ". configs/base.py lists them."
    raise ConfigError(f"{where}: there is no field {name!r} in the config{hint}")
  return known[name]


def wrong_type(name: str, value, default, *, where: str) -> ConfigError:
  """The error for a `value` whose type is not that of the field's `default`."""
  return ConfigError(
    f"{where}: {name} is {value!r}; expected {type(default).__name__}, such as {default!r}."
  )


def read_config(file: str, options: Sequence[str] = ()) -> ConfigDict:
  """Reads a config file as the programs do.

  Args:
    file: a value of --config, FILE or FILE:ARGUMENT.
    options: such as "--config.train.steps=100".

  Raises:
    ConfigError: the file cannot be used, or an option fits no field.
  """
  path, *arguments = file.split(":", 1)
  if not pathlib.Path(path).is_file():
    raise ConfigError(f"There is no config file {path!r}. Try configs/quickstart.py.")
  config = call(path, "get_config", *arguments, where=f"--config={file}")
  set_fields(config, options)
  return config


def call(path: str | pathlib.Path, function: str, *arguments: str, where: str) -> Any:
  """Calls a function of a Python file.

  Raises:
    ConfigError: it fails in any way; begins with `where`.
  """
  if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # files may import from configs
  try:
    return runpy.run_path(str(path))[function](*arguments)
  except Exception as error:
    own = isinstance(error, ConfigError) or type(error) is LookupError
    reason = str(error) if own else f"{type(error).__name__}: {error}"
    raise ConfigError(f"{where} cannot be used: {reason}") from error


def set_fields(config: ConfigDict, options: Sequence[str]):
  """Sets fields by options such as "--config.train.steps=9".

  Raises:
    ConfigError: there is no such field, or the value has another type.
  """
  for option in options:
    name, _, text = option.removeprefix("--config.").partition("=")
    default = field_value(config, name, where="--config")
    parsed, arguments = flags.FlagValues(), ["", option]
    config_flags.DEFINE_config_dict(
      "config", config, flag_values=parsed, lock_config=True, sys_argv=arguments
    )
    try:
      parsed(arguments)
    except flags.Error as error:
      raise wrong_type(name, text, default, where="--config") from error
