"""Files that are either complete or absent."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import secrets
from collections.abc import Iterator
from typing import BinaryIO

from packing.errors import InputError


def write_text(path, text: str):
  """Writes a text file atomically: readers see the old file or the complete new one."""
  write_bytes(path, text.encode())


def write_json(path, value):
  """Writes a JSON file atomically; rejects NaN, which JSON does not have."""
  write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_bytes(path, data: bytes):
  """Writes a file atomically: readers see the old file or the complete new one.

  Raises:
    NotWritten: the file cannot be written; nothing is left behind.
  """
  with whole_file(path) as file:
    file.write(data)


class NotWritten(InputError, OSError):
  """A file or folder could not be written, because the disk is full for example."""


@contextlib.contextmanager
def whole_file(path) -> Iterator[BinaryIO]:
  """Opens a file for writing; it gets its name when the block ends without an error.

  Raises:
    NotWritten: an InputError and an OSError: the file cannot be written; nothing is left
      behind.
  """
  try:
    with whole_path(path) as partial, partial.open("xb") as file:
      yield file
  except NotWritten:
    raise
  except OSError as error:
    raise NotWritten(f"Cannot write {path}: {error.strerror or error}.") from error


@contextlib.contextmanager
def whole_path(path) -> Iterator[pathlib.Path]:
  """A temporary path to write to; renamed to `path` if the block ends without an error.

  Raises:
    OSError: the disk is full, or not writable; nothing is left behind.
  """
  partial = _partial(path)
  try:
    yield partial
    with partial.open("rb") as file:
      os.fsync(file.fileno())
    os.replace(partial, path)
  finally:
    with contextlib.suppress(OSError):
      partial.unlink()


def check_writable(path):
  """Checks that a file can be written, before the long work of computing its content.

  Raises:
    NotWritten: the file cannot be written.
  """
  partial = _partial(path)
  try:
    partial.touch(exist_ok=False)
    partial.unlink()
  except OSError as error:
    raise NotWritten(f"Cannot write {path}: {error.strerror}.") from error


def _partial(path) -> pathlib.Path:
  """The name of a new temporary file in the same folder."""
  path = pathlib.Path(path)
  if path.exists() and not path.is_file():
    raise NotWritten(
      f"Cannot write {path}: it exists and is not a file. Choose another name."
    )
  return path.with_name(f".{path.name}.partial-{secrets.token_hex(4)}")


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
    raise InputError(f"Cannot read {path}: {error.strerror}. Expected {what}.") from error
  except UnicodeDecodeError as error:
    raise InputError(f"{path} is not text; expected {what}.") from error
  try:
    content = json.loads(text)
  except ValueError as error:
    raise InputError(f"{path} is not JSON ({error}); expected {what}.") from error
  if not isinstance(content, dict):
    raise InputError(f"{path} holds a {type(content).__name__}; expected {what}.")
  return content
