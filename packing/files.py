"""Files that are either complete or absent."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import secrets
import shutil
from collections.abc import Iterator
from typing import Any, BinaryIO

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

  A file that exists keeps its mode; through a symbolic link, the file it points to is
  written.

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

  A symbolic link stays, and its target is replaced. A file that is replaced keeps its mode.

  Raises:
    OSError: the disk is full, or not writable; nothing is left behind.
  """
  target, partial = _target_and_partial(path)
  try:
    yield partial
    if target.exists():
      shutil.copymode(target, partial)
    with partial.open("rb") as file:
      os.fsync(file.fileno())
    os.replace(partial, target)
  finally:
    with contextlib.suppress(OSError):
      partial.unlink()


def check_writable(path):
  """Checks that a file can be written, before the long work of computing its content.

  Raises:
    NotWritten: the file cannot be written.
  """
  _, partial = _target_and_partial(path)
  try:
    partial.touch(exist_ok=False)
    partial.unlink()
  except OSError as error:
    raise NotWritten(f"Cannot write {path}: {error.strerror}.") from error


def _target_and_partial(path) -> tuple[pathlib.Path, pathlib.Path]:
  """The file that a path leads to, and the name of a new temporary file beside it."""
  target = pathlib.Path(os.path.realpath(path))
  if target.is_symlink() or (target.exists() and not target.is_file()):
    raise NotWritten(f"Cannot write {path}: it is not a file. Choose another name.")
  return target, target.with_name(f".{target.name}.partial-{secrets.token_hex(4)}")


def parse_json(text: str | bytes) -> Any:
  """Parses JSON; unlike `json.loads`, reports too deep a nesting as a ValueError.

  Example:
    >>> parse_json("[" * 200_000)
    Traceback (most recent call last):
    ValueError: it is nested too deeply
  """
  try:
    return json.loads(text)
  except RecursionError as error:
    raise ValueError("it is nested too deeply") from error


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
    content = parse_json(text)
  except ValueError as error:
    raise InputError(f"{path} is not JSON ({error}); expected {what}.") from error
  if not isinstance(content, dict):
    raise InputError(f"{path} holds a {type(content).__name__}; expected {what}.")
  return content
