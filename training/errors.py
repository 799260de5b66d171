"""The error for a config that cannot be used, and the checks that raise it."""

from __future__ import annotations

import difflib
import typing

from flax.traverse_util import flatten_dict

if typing.TYPE_CHECKING:
  import ml_collections


class ConfigError(ValueError):
  """The config, or something that it names, cannot be used."""


def check(condition: bool, field: str, value, expected: str):
  """Raises ConfigError with the field, its value and what was expected.

  Args:
    condition: the error is raised if this is false.
    field: the name of the field, without "config.".
    value: its value.
    expected: completes "expected ...".
  """
  if not condition:
    raise ConfigError(
      f"config.{field} is {value!r}; expected {expected}. Set it with --config.{field}=..."
    )


def field_value(config: ml_collections.ConfigDict, name: str, *, where: str):
  """The value of a field, by its dotted name.

  Args:
    config: the config.
    name: such as "train.steps".
    where: where the name was read, for messages.

  Raises:
    ConfigError: there is no such field; suggests the most similar name.
  """
  known = flatten_dict(config.to_dict(), sep=".")
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
