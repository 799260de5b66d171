"""Fields of a config by their names, as a user types them."""

from __future__ import annotations

import difflib

import ml_collections

from training.errors import ConfigError


def field(config: ml_collections.ConfigDict, name: str, *, where: str):
  """The value of a field.

  Args:
    config: with fields, some in groups.
    name: such as "train.steps".
    where: the name is from, for messages.

  Raises:
    ConfigError: there is no such field; says which one was meant, if one is like it.
  """
  known = {
    ".".join(filter(None, (group, name))): value
    for group, values in [("", config), *config.items()]
    if isinstance(values, ml_collections.ConfigDict)
    for name, value in values.items()
    if not isinstance(value, ml_collections.ConfigDict)
  }
  if name not in known:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ". configs/base.py lists them."
    raise ConfigError(f"{where}: there is no field {name!r} in the config{hint}")
  return known[name]


def wrong_type(name: str, value, found, *, where: str) -> ConfigError:
  """That a field, which is `found`, cannot be `value`."""
  return ConfigError(
    f"{where}: {name} is {value!r}; expected {type(found).__name__}, such as {found!r}."
  )
