"""The one door between configs and settings: files and command lines, and their reference.

A config is a `ConfigDict` of ml_collections with the fields of `settings.OPTIONS`. What is
behind the door takes `RunSettings` or their parts.

  python -m launch.door > docs/config.md
"""

from __future__ import annotations

import argparse
import copy
import difflib
import itertools
import pathlib
import re
import runpy
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from absl import flags
from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import ConfigDict, config_flags

from launch.settings import OPTIONS, RunSettings
from training.errors import ConfigError

ROOT = pathlib.Path(__file__).parents[1]
_DURATIONS = {"train.steps": "train.duration", "optimizer.warmup_steps": "optimizer.warmup"}


# --------------------------------------------------------------------- a config, and back


def default_config() -> ConfigDict:
  """A config with every field, set to its default."""
  return config_of({name: known.default for name, known in OPTIONS.items()})


def config_of(values: Mapping[str, Any]) -> ConfigDict:
  """The config with these values, such as those in `RunSettings.given`."""
  return ConfigDict(nested(values))


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
  """The values in dictionaries by group, as files have them."""
  return unflatten_dict(values, sep=".")


def flat(config: ConfigDict) -> dict[str, Any]:
  """The values by dotted name, such as "train.steps"."""
  return flatten_dict(config.to_dict(), sep=".")


def settings_of(config: ConfigDict, given: Collection[str] = ()) -> RunSettings:
  """The run that a config describes.

  Args:
    config: of a file, with the changes of a command line or a sweep.
    given: the fields that these changed. A number of steps among them replaces the
      duration of the file.

  Raises:
    ConfigError: a field is unknown or missing, or a value cannot be used.
  """
  values = flat(config)
  for name in sorted(values.keys() - OPTIONS.keys()):
    raise unknown_field(OPTIONS, name, where="The config's file")
  for name in sorted(OPTIONS.keys() - values.keys()):
    raise ConfigError(
      f"The config has no field {name!r}. Begin its file with configs.base.get_config()."
    )
  return RunSettings.of(values | dict.fromkeys(replaced_durations(given), ""))


# ------------------------------------------------------------------ files, and the command


def read_settings(file: str, options: Sequence[str] = ()) -> RunSettings:
  """The run that a config file describes, with the arguments of `read_config`."""
  return settings_of(read_config(file, options), names_of(options))


def replaced_durations(given: Collection[str]) -> set[str]:
  """The durations that numbers of steps replace, if these fields are given."""
  return {
    duration
    for steps, duration in _DURATIONS.items()
    if steps in given and duration not in given
  }


def replaced_steps(config: ConfigDict, given: Collection[str]) -> set[str]:
  """The numbers of steps that a config's durations replace, if these fields are given."""
  values = flat(config)
  return {
    steps
    for steps, duration in _DURATIONS.items()
    if duration in given and values[duration]
  }


def settings_of_flags() -> RunSettings:
  """The run that the flag --config describes, with the fields that other flags change.

  Raises:
    ConfigError: as `settings_of`.
  """
  flag = flags.FLAGS["config"]
  return settings_of(flag.value, config_flags.get_override_values(flag))


def names_of(options: Iterable[str]) -> set[str]:
  """The fields that options such as "--config.train.steps=9" set."""
  return {option.removeprefix("--config.").partition("=")[0] for option in options}


def field_value(values: Mapping[str, Any], name: str, *, where: str):
  """The value of a field, by its dotted name.

  Args:
    values: by dotted name.
    name: such as "train.steps".
    where: where the name was read, for messages.

  Raises:
    ConfigError: there is no such field; suggests the most similar name.
  """
  if name not in values:
    raise unknown_field(values, name, where=where)
  return values[name]


def unknown_field(known: Iterable[str], name: str, *, where: str) -> ConfigError:
  """The error for the `name` of a field that is not among the `known` ones."""
  near = difflib.get_close_matches(name, list(known), n=1)
  hint = f"; did you mean {near[0]!r}?" if near else ". docs/config.md lists them."
  return ConfigError(f"{where}: there is no field {name!r} in the config{hint}")


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
  if not isinstance(config, ConfigDict):
    raise ConfigError(
      f"--config={file} cannot be used: its get_config() returned a "
      f"{type(config).__name__}; expected a ConfigDict. Does it end with return config?"
    )
  set_fields(config, options)
  return config


def call(path: str | pathlib.Path, function: str, *arguments: str, where: str) -> Any:
  """Calls a function of a Python file.

  Raises:
    ConfigError: the file lacks the function, or fails in any way; begins with `where`.
  """
  if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # files may import from configs
  try:
    names = runpy.run_path(str(path))
    if function not in names:
      raise ConfigError(f"it defines no {function}()")
    return names[function](*arguments)
  except Exception as error:
    # Config files refuse an argument by LookupError; its kinds, such as KeyError, are bugs.
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
    default = field_value(flat(config), name, where="--config")
    parsed, arguments = flags.FlagValues(), ["", option]
    config_flags.DEFINE_config_dict(
      "config", config, flag_values=parsed, lock_config=True, sys_argv=arguments
    )
    try:
      parsed(arguments)
    except flags.Error as error:
      raise wrong_type(name, text, default, where="--config") from error


def changed(config: ConfigDict, fields: Mapping[str, Any], *, where: str) -> ConfigDict:
  """A copy of a config with new values, which must have the types of the old ones.

  Raises:
    ConfigError: there is no such field, or a value has another type; begins with `where`.
  """
  config = copy.deepcopy(config)  # keeps references between fields
  for name, value in fields.items():
    found = field_value(flat(config), name, where=where)
    same = type(value) is type(found)
    if not same and not (isinstance(found, float) and type(value) is int):
      raise wrong_type(name, value, found, where=where)
    config.update_from_flattened_dict({name: value})
  return config.copy_and_resolve_references()


# ---------------------------------------------------------------------------- the reference

_HEAD = """# The fields of a config

Written by `python -m launch.door > docs/config.md`, from the classes of a run's parts. The
files in `configs/` change some defaults, and the command line changes any, such as
`--config.train.steps=400`. Before any work, a run rejects unknown fields, values of another
type than the default, unusable values, and fields of other kinds of models, rows, pairs and
optimizers. It ignores `optimizer.b2` and `eps` with sgd, the fields of `packing` where
atoms fill rows, and fields that only shape a dataset if that is prepared already. Some
fields of `data` shape only datasets of the tasks that they name.
Where a field is a choice, its values are listed, with the default in bold.
[training.md](training.md) says what a run does with them."""


def reference() -> str:
  """The page of all fields, in Markdown: a table for each group."""
  parts = [_HEAD]
  for group, names in itertools.groupby(OPTIONS, lambda x: x.rpartition(".")[0]):
    lines = [f"## {group}", ""] if group else []
    lines += ["| field=default | what it is |", "|---|---|"]
    for name in names:
      value, text = OPTIONS[name].default, OPTIONS[name].metadata["meaning"]
      default = repr(value)
      if isinstance(value, str):
        default, word = f'"{value}"', re.escape(value) or "(?!)"
        text = re.sub(rf"(?<![\w-]){word}(?![\w-])", f"**{value}**", text, count=1)
      lines.append(f"| `{name}={default}` | {text} |")
    parts.append("\n".join(lines))
  return "\n\n".join(parts)


if __name__ == "__main__":
  argparse.ArgumentParser(
    prog="python -m launch.door",
    description="Prints the reference of the config fields, docs/config.md.",
  ).parse_args()
  print(reference())
