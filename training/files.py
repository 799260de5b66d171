"""Files of a run: whole or not there."""

from __future__ import annotations

import json
import os
import pathlib


def write_json(path: str | pathlib.Path, value):
  """Writes a JSON file whole or not at all; refuses NaN, which is no JSON."""
  write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_text(path: str | pathlib.Path, text: str):
  """Writes a text file whole or not at all."""
  path = pathlib.Path(path)
  partial = path.with_name(f".{path.name}.partial")
  with partial.open("w", encoding="utf-8") as file:
    file.write(text)
    file.flush()
    os.fsync(file.fileno())
  os.replace(partial, path)


def read_json_lines(path: str | pathlib.Path) -> list[dict]:
  """The objects of a JSON-lines file, without a last line that a kill cut short.

  None where there is no file.
  """
  path = pathlib.Path(path)
  lines = path.read_text().splitlines(keepends=True) if path.exists() else []
  return [json.loads(line) for line in lines if line.endswith("\n")]
