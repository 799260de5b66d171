"""Real data that is not part of the repository: a folder beside it, or ISOPACK_DATA."""

import os
import pathlib

import pytest

FOLDER = pathlib.Path(
  os.environ.get("ISOPACK_DATA", pathlib.Path(__file__).parents[2] / "shared" / "data")
)


def needed(name: str) -> pathlib.Path:
  """The path of a file or folder; skips the test where it is not there."""
  path = FOLDER / name
  if not path.exists():
    pytest.skip(f"{path} is not there; name a folder with {name} in ISOPACK_DATA")
  return path
