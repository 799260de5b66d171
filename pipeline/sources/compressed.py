"""Files that may be compressed: read as they are, known by the suffix below."""

from __future__ import annotations

import bz2
import gzip
import io
import pathlib
import zlib
from typing import BinaryIO, cast

import pyarrow as pa

SUFFIXES = (".gz", ".bz2", ".zst")
READ_ERRORS = (OSError, EOFError, zlib.error)
_RATIO = 3  # of text's bytes to those of its file, about


def plain_suffix(path: pathlib.Path) -> str:
  """The suffix in lower case, without that of compression.

  Example:
    >>> plain_suffix(pathlib.Path("a.JSONL.gz")), plain_suffix(pathlib.Path("wiki_00.bz2"))
    ('.jsonl', '')
  """
  if path.suffix.lower() in SUFFIXES:
    path = path.with_suffix("")
  return path.suffix.lower()


def open_binary(path: pathlib.Path) -> BinaryIO:
  """Opens a file to read what it holds; reading may raise `READ_ERRORS`."""
  suffix = path.suffix.lower()
  if suffix == ".gz":
    return cast(BinaryIO, gzip.open(path, "rb"))
  if suffix == ".bz2":
    return cast(BinaryIO, bz2.open(path, "rb"))
  if suffix == ".zst":
    stream = pa.input_stream(str(path), compression="zstd")
    return cast(BinaryIO, io.BufferedReader(stream))
  return path.open("rb")


def size(path: pathlib.Path) -> int:
  """Bytes that reading gives; of a compressed file about, for a progress bar."""
  ratio = _RATIO if path.suffix.lower() in SUFFIXES else 1
  return ratio * path.stat().st_size
