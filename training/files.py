"""Files of a run: whole or not there."""

from __future__ import annotations

import json
import pathlib

from model.files import write_json, write_text

__all__ = ["read_json_lines", "write_json", "write_text"]


def read_json_lines(path: str | pathlib.Path) -> list[dict]:
  """The objects of a JSON-lines file, without a last line that a kill cut short.

  None where there is no file.
  """
  path = pathlib.Path(path)
  lines = path.read_text().splitlines(keepends=True) if path.exists() else []
  return [json.loads(line) for line in lines if line.endswith("\n")]
