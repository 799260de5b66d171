"""Plain and compressed files, distinguished by suffix and read as plain bytes."""

from __future__ import annotations

import io
import pathlib
from typing import BinaryIO, cast

import pyarrow as pa

CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}  # Arrow's names, by suffix
_RATIO = 3  # bytes of text per byte of a compressed file, roughly


def codec(path: pathlib.Path) -> str | None:
  """Arrow's name of a file's compression; None if it is not compressed."""
  return CODECS.get(path.suffix.lower())


def plain_suffix(path: pathlib.Path) -> str:
  """The suffix in lower case, ignoring that of a compression.

  Example:
    >>> plain_suffix(pathlib.Path("a.JSONL.gz")), plain_suffix(pathlib.Path("wiki_00.bz2"))
    ('.jsonl', '')
  """
  return (path.with_suffix("") if codec(path) else path).suffix.lower()


def open_binary(path: pathlib.Path) -> BinaryIO:
  """Opens a file to read it decompressed; reading a damaged one raises OSError."""
  if not codec(path):
    return path.open("rb")
  stream = pa.input_stream(str(path), compression=codec(path))
  return cast(BinaryIO, io.BufferedReader(stream))


def size(path: pathlib.Path) -> int:
  """Bytes when decompressed; if compressed, an estimate."""
  return (_RATIO if codec(path) else 1) * path.stat().st_size
