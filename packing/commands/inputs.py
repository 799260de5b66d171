"""Reads lengths and histograms from files."""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from packing import files
from packing.errors import InputError, short_repr
from packing.histogram import Histogram

_PREFERRED = ("input_ids", "tokens", "token_ids", "length", "lengths", "num_tokens")
_HISTOGRAM = 'a histogram, {"max_sequence_length": S, "counts": [S whole numbers]}'


def read_histogram(path) -> Histogram:
  """Reads a histogram file: {"max_sequence_length": S, "counts": [...]}.

  Raises:
    InputError: the file has another format, or its counts are not a histogram.
  """
  content = files.read_json(path, what=_HISTOGRAM)
  size, counts = content.get("max_sequence_length"), content.get("counts")
  if not isinstance(counts, list) or len(counts) != size:
    raise InputError(f"{path} has {short_repr(counts)} as counts; expected {_HISTOGRAM}.")
  try:
    return Histogram(np.array(counts), source=str(content.get("source", path)))
  except InputError as error:
    raise InputError(f"{path}: {error}") from error


def read_lengths(path, *, column: str | None = None, split: str | None = None):
  """Reads the lengths of sequences.

  Args:
    path: a `.npy` vector of integers; a text file of integers; an Arrow or Parquet file
      with a column of lists (their sizes are the lengths) or of integers (the lengths); or
      a directory of such Arrow or Parquet files, as Hugging Face `save_to_disk` and
      `python -m pipeline prepare` write them.
    column: the column to read; None to choose it by its name and type.
    split: in a directory, the name of the files or folders to read, which may continue with
      "-" or "."; None for "train" or, if there is none, for the only split; "all" for all.

  Returns:
    int64[num_sequences], and a description of where the lengths come from.

  Raises:
    InputError: the file does not exist or is not what its name says, or its lengths are
      not whole numbers.
  """
  if not os.path.exists(path):
    raise InputError(
      f"There is no {path}; expected .npy, .txt, .arrow, .parquet or a directory of them."
    )
  path = pathlib.Path(path)
  if split is not None and not path.is_dir():
    raise InputError(f"{path} is one file, without splits; found split {split!r}.")
  parts = _directory_files(path, split) if path.is_dir() else [path]
  try:
    lengths = [_read_file(part, column) for part in parts]
  except OSError as error:
    raise InputError(f"Cannot read {path}: {error.strerror or error}.") from error
  columns = sorted({name for _, name in lengths if name})
  source = ", ".join(str(part) for part in parts[:3])
  if len(parts) > 3:
    source += f" and {len(parts) - 3} more files"
  if columns:
    source += f", column {' and '.join(columns)}"
  return np.concatenate([values for values, _ in lengths]), source


def prepared_length(path) -> int:
  """S of a folder that `python -m pipeline prepare` wrote; 1 for anything else.

  A run accepts such a folder only with the S it was prepared with, even if its longest
  sequence is shorter.
  """
  try:
    content = json.loads((pathlib.Path(path) / "manifest.json").read_text())
    return int(content["settings"]["max_sequence_length"])
  except (OSError, ValueError, LookupError, TypeError):
    return 1


def _directory_files(path: pathlib.Path, split: str | None) -> list[pathlib.Path]:
  tables = sorted(
    p
    for p in path.rglob("*.*")
    if p.suffix in (".arrow", ".parquet")
    and not p.name.startswith("cache-")
    and "/." not in f"/{p.relative_to(path).as_posix()}"  # such as .ipynb_checkpoints
  )
  if not tables:
    raise InputError(
      f"{path} holds no .arrow or .parquet file; expected a dataset written by Hugging "
      "Face save_to_disk or by python -m pipeline prepare, or a folder of Parquet files."
    )
  chosen = _split_files(tables, path, "train" if split is None else split)
  if chosen or split == "all":
    return chosen or tables
  folders = {p.relative_to(path).parts[0] for p in tables if p.parent != path} - {"data"}
  names = folders if len(folders) > 1 else {_split_name(p) for p in tables}
  listed = ", ".join(sorted(names))
  if split is not None:
    raise InputError(
      f"{path} has no split {split!r}; found {listed}. Pass one of them, or all."
    )
  if len(names) > 1:
    raise InputError(
      f"{path} has several splits, {listed}. Name one with --split, or pass all."
    )
  return tables


def _split_files(tables, path: pathlib.Path, name: str) -> list[pathlib.Path]:
  """The files in folders of this name or, if there are none, the files of this name."""

  def fits(part: str) -> bool:
    return part == name or part.startswith((f"{name}-", f"{name}."))

  inside = [p for p in tables if any(map(fits, p.relative_to(path).parts[:-1]))]
  return inside or [p for p in tables if fits(p.name)]


def _split_name(path: pathlib.Path) -> str:
  """The name of the split in a file's name, without the numbers of its parts.

  Example:
    >>> _split_name(pathlib.Path("data/train-00000-of-00001.parquet"))
    'train'
  """
  return re.split(r"[-.]|_?\d", path.name)[0]


def _read_file(path: pathlib.Path, column: str | None) -> tuple[np.ndarray, str | None]:
  if path.suffix == ".npy":
    return _from_npy(path), None
  if path.suffix in (".arrow", ".parquet"):
    return _from_table(path, column)
  if path.suffix in (".txt", ""):
    return _from_text(path), None
  raise InputError(
    f"{path} ends in {path.suffix!r}; expected .npy, .txt, .arrow or .parquet."
  )


def _from_npy(path: pathlib.Path) -> np.ndarray:
  try:
    lengths = np.lib.format.open_memmap(path, mode="r")
  except ValueError as error:
    raise InputError(
      f"{path} is not a .npy file of numbers ({error}). Write one with numpy.save."
    ) from error
  if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
    raise InputError(
      f"{path} has shape {lengths.shape} of {lengths.dtype}; expected a vector of lengths."
    )
  return np.array(lengths)


def _from_text(path: pathlib.Path) -> np.ndarray:
  try:
    return np.array(path.read_text(encoding="utf-8").split(), np.int64)
  except (ValueError, OverflowError) as error:
    raise InputError(f"{path}: {error}; expected integers, the lengths.") from error


def _from_table(path: pathlib.Path, column: str | None) -> tuple[np.ndarray, str]:
  try:
    import pyarrow as pa
    import pyarrow.compute
    import pyarrow.ipc
    import pyarrow.parquet
  except ImportError as error:
    raise InputError(
      'Arrow and Parquet files need pyarrow; install it with pip install "isopack[arrow]".'
    ) from error
  try:
    schema, batches = _open_table(pa, path)
    name = _choose_column(pa, path, schema, column)
    lengths = [_array_lengths(pa, path, name, b.column(name)) for b in batches(name)]
  except pa.ArrowInvalid as error:
    raise InputError(
      f"{path} is not a valid {path.suffix} file ({str(error).splitlines()[0]})."
    ) from error
  return np.concatenate([np.empty(0, np.int64), *lengths]), name


def _open_table(pa, path: pathlib.Path) -> tuple[Any, Callable[[str], Iterable]]:
  """A file's schema, and a function from a column's name to the batches that hold it.

  An Arrow file has the file format, or the stream format that Hugging Face writes.
  """
  if path.suffix == ".parquet":
    file = pa.parquet.ParquetFile(str(path))
    return file.schema_arrow, lambda name: file.iter_batches(columns=[name])
  source = pa.memory_map(str(path))
  if source.read(6) == b"ARROW1":
    reader = pa.ipc.open_file(source)
    batches = map(reader.get_batch, range(reader.num_record_batches))
    return reader.schema, lambda _: batches
  source.seek(0)
  reader = pa.ipc.open_stream(source)
  return reader.schema, lambda _: reader


def _choose_column(pa, path: pathlib.Path, schema, column: str | None) -> str:
  usable = [f.name for f in schema if _is_list(pa, f.type) or pa.types.is_integer(f.type)]
  described = ", ".join(f"{f.name} ({f.type})" for f in schema)
  if column is not None:
    if column not in schema.names:
      raise InputError(f"{path} has no column {column!r}; found {described}.")
    if column not in usable:
      raise InputError(
        f"Column {column!r} of {path} is {schema.field(column).type}; expected lists (of "
        "tokens) or integers (lengths). Tokenize text first."
      )
    return column
  for name in _PREFERRED:
    if name in usable:
      return name
  lists = [name for name in usable if _is_list(pa, schema.field(name).type)]
  if len(lists) == 1:
    return lists[0]
  if usable:
    raise InputError(
      f"{path} has no column that clearly holds the sequences; found {', '.join(usable)}. "
      "Name one with --column."
    )
  raise InputError(
    f"{path} has no column of lists or integers; found {described}. Tokenize text first."
  )


def _is_list(pa, kind) -> bool:
  types = pa.types
  return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _array_lengths(pa, path: pathlib.Path, name: str, array) -> np.ndarray:
  if array.null_count:
    raise InputError(
      f"Column {name!r} of {path} has {array.null_count} missing values; expected a "
      "sequence in each record. Drop these records."
    )
  if _is_list(pa, array.type):
    array = pa.compute.list_value_length(array)
  return array.to_numpy(zero_copy_only=False).astype(np.int64)
