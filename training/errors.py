"""The exception for a config that cannot be used, and the check that raises it."""

from __future__ import annotations


class ConfigError(ValueError):
  """A field of the config has a value that cannot be used."""


def check(condition: bool, field: str, value, expected: str):
  """Raises ConfigError with the field, its value and what was expected, if it is not so."""
  if not condition:
    raise ConfigError(
      f"config.{field} is {value!r}; expected {expected}. Set it with --config.{field}=..."
    )
