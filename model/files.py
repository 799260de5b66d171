"""Files and folders that are whole or absent."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterator


def write_json(path: str | pathlib.Path, value):
  """Writes a JSON file whole or not at all; refuses NaN, which JSON lacks."""
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


class NotWritten(OSError):
  """A folder could not be written completely, because the disk is full for example."""


@contextlib.contextmanager
def whole_folder(directory: str | pathlib.Path) -> Iterator[pathlib.Path]:
  """A folder to write into, which takes its final name when the block ends.

  An error leaves nothing behind. A kill, or threads that still write after an error, may
  leave a folder of another name; the next call for the same final name removes it.

  Args:
    directory: the final name; a new or empty folder.

  Yields:
    An empty folder beside it.

  Raises:
    FileExistsError: the folder is not empty; says what to do.
    NotWritten: an OSError in the block.
  """
  directory = pathlib.Path(directory).absolute()
  check_new_folder(directory)
  _sweep(directory)
  partial = directory.with_name(f".{directory.name}.partial-{os.getpid()}")
  partial.mkdir(parents=True)
  try:
    yield partial
    os.rename(partial, directory)
  except OSError as error:
    raise NotWritten(
      f"{directory} could not be written: {error}. Nothing has that name. Make room, and "
      "run the same command again."
    ) from error
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def check_new_folder(directory: str | pathlib.Path):
  """Checks that a folder can be made here; errors as for `whole_folder`."""
  directory = pathlib.Path(directory)
  if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
    raise FileExistsError(
      f"Expected a new or empty folder, found {directory} with something in it. Name "
      "another one, or remove it if nothing in it is needed."
    )


def _sweep(directory: pathlib.Path):
  """Removes what killed processes left."""
  for partial in directory.parent.glob(f".{directory.name}.partial-*"):
    with contextlib.suppress(ValueError, PermissionError):
      try:
        os.kill(int(partial.name.rpartition("-")[2]), 0)
      except ProcessLookupError:
        shutil.rmtree(partial, ignore_errors=True)
