"""Folders that are either complete or absent."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from packing.files import NotWritten

_FULL = errno.ENOSPC, errno.EDQUOT, errno.EFBIG


@contextlib.contextmanager
def whole_folder(directory: str | pathlib.Path) -> Iterator[pathlib.Path]:
  """A folder to write into, which gets its final name when the block ends.

  An error leaves nothing behind. If the process is killed, or threads still write after an
  error, a hidden folder may remain; the next call for the same name removes it.

  Args:
    directory: the final name; a new or empty folder.

  Yields:
    An empty folder in the same parent folder.

  Raises:
    FileExistsError: the folder is not empty; the message says what to do.
    NotWritten: the folder cannot be created, or an OSError in the block.
  """
  directory = pathlib.Path(directory).resolve()  # a folder replaces no symbolic link
  check_new_folder(directory)
  partial = directory.with_name(f".{directory.name}.partial")
  shutil.rmtree(partial, ignore_errors=True)
  try:
    partial.mkdir(parents=True)
    yield partial
    partial.rename(directory)
  except NotWritten:
    raise
  except OSError as error:
    room = " Make room." if is_full(error) else ""
    raise NotWritten(f"Cannot write {directory}: {error}.{room}") from error
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def check_new_folder(directory: str | pathlib.Path):
  """Checks that a folder can be created here, before long work on its content.

  Raises:
    FileExistsError, NotWritten: as for `whole_folder`.
  """
  directory = pathlib.Path(directory)
  if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
    raise FileExistsError(f"{directory} is not a new or empty folder. Choose another.")
  above = next(path for path in directory.resolve().parents if path.exists())
  try:
    with tempfile.TemporaryDirectory(prefix=".", dir=above):
      pass
  except OSError as error:
    raise NotWritten(
      f"Cannot write {directory}: no folder can be created in {above} ({error.strerror}). "
      "Choose another."
    ) from error


def is_full(error: Exception) -> bool:
  """Whether an error says that there is no room for a file.

  Errors of TensorStore and safetensors have no number, but the system's words. They may be
  the cause of an OSError whose message was cut short.
  """
  told = f"{error} {error.__cause__}"
  return any(os.strerror(number) in told for number in _FULL)
