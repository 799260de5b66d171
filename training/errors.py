"""What ends a program: a mistake of the user, a run that cannot continue, a signal."""

from __future__ import annotations

from packing import InputError


class ConfigError(InputError):
  """The config, or something that it names, cannot be used. Exit status 2."""


class Stopped(Exception):
  """The run cannot continue; the message says why and what to do. Exit status 1."""


class Terminated(Exception):
  """A signal stopped the run, which has saved its state. Exit status 130 or 143."""
