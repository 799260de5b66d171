"""Reads the files of a run, and writes them whole or not at all."""

from __future__ import annotations

import pathlib
from collections.abc import Collection

from model.files import parse_json, read_lines, write_json, write_text
from training.errors import ConfigError

__all__ = ["read_json", "read_json_lines", "read_lines", "write_json", "write_text"]


def read_json(path: str | pathlib.Path, *, remedy: str) -> dict:
  """The object in a JSON file.

  Args:
    path: path of the file.
    remedy: what to do if the file is damaged, for the message.

  Raises:
    ConfigError: the file is damaged.
    OSError: the file cannot be read.
  """
  try:
    found = parse_json(pathlib.Path(path).read_bytes())
    if not isinstance(found, dict):
      raise ValueError(f"a {type(found).__name__}")
  except ValueError as error:
    raise ConfigError(
      f"{path} is damaged: expected a JSON object, found {error}. {remedy}"
    ) from error
  return found


def read_json_lines(path: str | pathlib.Path, *, names: Collection[str] = ()) -> list[dict]:
  """Like `read_lines`, but all lines must be intact.

  Raises:
    ConfigError: a line is damaged.
  """
  lines = read_lines(path, names=names)
  intact = [line for line in lines if line is not None]
  if len(intact) < len(lines):
    raise ConfigError(
      f"{path} is damaged in line {lines.index(None) + 1}: expected a JSON object with "
      f"{', '.join(('step', *names))}. Restore the file, or delete the line."
    )
  return intact
