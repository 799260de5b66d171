"""Files and folders that are either complete or absent."""

from __future__ import annotations

import contextlib
import errno
import pathlib
import shutil
from collections.abc import Iterator

from packing.files import NotWritten, parse_json, whole_file, write_json, write_text

__all__ = [
  "NotWritten",
  "check_new_folder",
  "parse_json",
  "whole_file",
  "whole_folder",
  "write_json",
  "write_text",
]


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
    NotWritten: an OSError in the block.
  """
  directory = pathlib.Path(directory).resolve()  # a folder replaces no symbolic link
  check_new_folder(directory)
  partial = directory.with_name(f".{directory.name}.partial")
  shutil.rmtree(partial, ignore_errors=True)
  partial.mkdir(parents=True)
  try:
    yield partial
    partial.rename(directory)
  except OSError as error:
    # TensorStore gives no number.
    room = " Make room." if error.errno in (None, errno.ENOSPC, errno.EDQUOT) else ""
    raise NotWritten(f"Cannot write {directory}: {error}.{room}") from error
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def check_new_folder(directory: str | pathlib.Path):
  """Checks that a folder can be created here; errors are as for `whole_folder`."""
  directory = pathlib.Path(directory)
  if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
    raise FileExistsError(f"{directory} is not a new or empty folder. Choose another.")
