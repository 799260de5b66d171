"""Files that are either complete or absent."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import secrets
from collections.abc import Iterator
from typing import BinaryIO

from packing.errors import InputError, short_repr


def write_text(path, text: str):
  """Writes a text file atomically: readers see the old file or the complete new one."""
  write_bytes(path, text.encode())


def write_bytes(path, data: bytes):
  """Writes a file atomically: readers see the old file or the complete new one.

  Raises:
    InputError: the file cannot be written; nothing is left behind.
  """
  with whole_file(path) as file:
    file.write(data)


@contextlib.contextmanager
def whole_file(path) -> Iterator[BinaryIO]:
  """Opens a file for writing; it gets its name when the block ends without an error.

  Raises:
    InputError: the file cannot be written; nothing is left behind.
  """
  path, descriptor, temporary = _temporary(path)
  try:
    with os.fdopen(descriptor, "wb") as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)
  except BaseException as error:
    with contextlib.suppress(FileNotFoundError):
      os.unlink(temporary)
    if isinstance(error, OSError):
      raise InputError(f"Cannot write {path}: {error.strerror}.") from error
    raise


def check_writable(path):
  """Checks that a file can be written, before the long work of computing its content.

  Raises:
    InputError: the file cannot be written.
  """
  _, descriptor, temporary = _temporary(path)
  os.close(descriptor)
  os.unlink(temporary)


def _temporary(path) -> tuple[pathlib.Path, int, pathlib.Path]:
  """The path, and the descriptor and name of an open temporary file in its folder."""
  path = pathlib.Path(path)
  try:
    if path.exists() and not path.is_file():
      raise InputError(
        f"Cannot write {path}: it exists and is not a file. Choose another name."
      )
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    return path, os.open(temporary, flags, 0o666), temporary  # as open() would make it
  except OSError as error:
    raise InputError(f"Cannot write {short_repr(str(path))}: {error.strerror}.") from error


def read_json(path, *, what: str) -> dict:
  """Reads a JSON object.

  Args:
    path: the file.
    what: what the file should be, for the error message.

  Raises:
    InputError: the file cannot be read, or does not hold a JSON object.
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
    content = json.loads(text)
  except ValueError as error:
    raise InputError(f"{path} is not JSON ({error}); expected {what}.") from error
  if not isinstance(content, dict):
    raise InputError(f"{path} holds a {type(content).__name__}; expected {what}.")
  return content
