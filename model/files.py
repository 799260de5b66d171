"""Writes files and folders that are either complete or absent."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterator


def write_json(path: str | pathlib.Path, value):
  """Writes a JSON file whole or not at all; rejects NaN, which JSON does not have."""
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
  """A folder to write into, which gets its final name when the block ends.

  An error leaves nothing behind. If the process is killed, or threads still write after an
  error, a folder with another name may remain; the next call for the same final name
  removes it.

  Args:
    directory: the final name; a new or empty folder.

  Yields:
    An empty folder in the same parent folder.

  Raises:
    FileExistsError: the folder is not empty; the message says what to do.
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
      f"{directory} could not be written: {error}. Nothing was left there. Make "
      "room, and run the same command again."
    ) from error
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def check_new_folder(directory: str | pathlib.Path):
  """Checks that a folder can be created here; errors are as for `whole_folder`."""
  directory = pathlib.Path(directory)
  if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
    raise FileExistsError(
      f"Expected a new or empty folder, found {directory}, which is not empty. Choose "
      "another folder, or remove this one if you need nothing in it."
    )


def _sweep(directory: pathlib.Path):
  """Removes what killed processes left behind."""
  for partial in directory.parent.glob(f".{directory.name}.partial-*"):
    with contextlib.suppress(ValueError, PermissionError):
      try:
        os.kill(int(partial.name.rpartition("-")[2]), 0)
      except ProcessLookupError:
        shutil.rmtree(partial, ignore_errors=True)
