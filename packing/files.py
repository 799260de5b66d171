"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

from packing.errors import InputError, short_repr


def write_text(path, text: str):
  """Writes a text file at once: a reader sees the old file, or all of the new one."""
  write_bytes(path, text.encode())


def write_bytes(path, data: bytes):
  """Writes a file at once: a reader sees the old file, or all of the new one.

  Raises:
    InputError: the file cannot be written; nothing is left behind.
  """
  with whole_file(path) as file:
    file.write(data)


@contextlib.contextmanager
def whole_file(path) -> Iterator[BinaryIO]:
  """A file to write to bit by bit, which takes its name when the block ends without error.

  Raises:
    InputError: the file cannot be written; nothing is left behind.
  """
  path, descriptor, temporary = _temporary(path)
  try:
    with os.fdopen(descriptor, "wb") as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.chmod(temporary, 0o666 & ~_umask())
    os.replace(temporary, path)
  except BaseException as error:
    with contextlib.suppress(FileNotFoundError):
      os.unlink(temporary)
    if isinstance(error, OSError):
      raise InputError(f"Cannot write {path}: {error.strerror}.") from error
    raise


def check_writable(path):
  """Finds out before the work whether a file could be written after it.

  Raises:
    InputError: it could not.
  """
  _, descriptor, temporary = _temporary(path)
  os.close(descriptor)
  os.unlink(temporary)


def _temporary(path) -> tuple[pathlib.Path, int, str]:
  """An open file beside the path, which may take its place."""
  path = pathlib.Path(path)
  try:
    if path.exists() and not path.is_file():
      raise InputError(
        f"Cannot write {path}: it is there and is no file. Name another one."
      )
    return path, *tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
  except OSError as error:
    raise InputError(f"Cannot write {short_repr(str(path))}: {error.strerror}.") from error


def read_json(path, *, what: str) -> dict:
  """Reads a JSON object.

  Args:
    path: the file.
    what: what the file should be, for the error message.

  Raises:
    InputError: not a readable file, or not a JSON object.
  """
  try:
    text = pathlib.Path(path).read_text(encoding="utf-8")
  except OSError as error:
    raise InputError(
      f"Cannot read {short_repr(str(path))}: {error.strerror}. Expected {what}."
    ) from error
  except UnicodeDecodeError as error:
    raise InputError(f"{path} is not text; expected {what}.") from error
  try:
    found = json.loads(text)
  except (ValueError, RecursionError) as error:  # also an integer of 5000 digits
    raise InputError(f"{path} is not JSON ({error}); expected {what}.") from error
  if not isinstance(found, dict):
    raise InputError(f"{path} holds a {type(found).__name__}; expected {what}.")
  return found


def _umask() -> int:
  mask = os.umask(0)
  os.umask(mask)
  return mask
