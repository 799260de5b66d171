"""Reads lengths and histograms from files."""

from __future__ import annotations

import os
import pathlib
import re
import sys
import tokenize

import numpy as np

from packing import files
from packing.errors import InputError, as_array, short_repr
from packing.histogram import Histogram

_KINDS = ".npy, .txt, .csv, .tsv, .arrow or .parquet"
_HISTOGRAM = 'a histogram, {"max_sequence_length": S, "counts": [S whole numbers]}'


def read_histogram(path) -> Histogram:
  """Reads a histogram file: {"max_sequence_length": S, "counts": [...]}.

  Raises:
    InputError: the file has another format, or its counts are not a histogram.
  """
  content = files.read_json(path, what=_HISTOGRAM)
  size, counts = content.get("max_sequence_length"), content.get("counts")
  fits = isinstance(counts, list) and len(counts) == size
  if not fits or any(isinstance(x, bool) for x in (size, *(counts or ()))):
    raise InputError(f"{path} has {short_repr(counts)} as counts; expected {_HISTOGRAM}.")
  try:
    return Histogram(as_array(counts), source=str(content.get("source", path)))
  except InputError as error:
    raise InputError(f"{path}: {error}") from error


def read_lengths(path, *, column: str | None = None, split: str | None = None):
  """Reads the lengths of sequences.

  Args:
    path: a `.npy` vector of integers; a text file of integers, not two a line, or "-" for
      standard input; a CSV or TSV file with a column of integers; an Arrow or Parquet file
      with a column of lists (their sizes are the lengths) or of integers (the lengths); or
      a directory of such Arrow or Parquet files, as Hugging Face `save_to_disk` and `python
      -m pipeline prepare` write them.
    column: the column to read; None to choose it by its name.
    split: in a directory, the name of the files or folders to read, without the numbers of
      their parts; a usual name, such as train, may continue with "-" or ".". None for
      "train" or, if there is none, for the only split; "all" for all.

  Returns:
    int64[num_sequences], and a description of where the lengths come from.

  Raises:
    InputError: the file does not exist or is not what its name says, its lengths are not
      whole numbers, its column `attention_mask` says that its sequences are padded, or it
      has no columns or splits to name.
  """
  if path == "-":
    check_unnamed("standard input", column=column, split=split)
    return _integers(sys.stdin.read(), "standard input"), "standard input"
  if not os.path.exists(path):
    raise InputError(f"There is no {path}; expected {_KINDS}, or a directory of them.")
  path = pathlib.Path(path)
  if not path.is_dir():
    check_unnamed(str(path), split=split)
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


def check_unnamed(where: str, **parts: str | None):
  """Refuses the name of a column or a split where there are none.

  Args:
    where: the source of the lengths, for the message.
    parts: the name, or None, by what it names: `column` or `split`.

  Raises:
    InputError: a part is named.
  """
  for part, name in parts.items():
    if name is not None:
      raise InputError(f"{where} has no {part}s; found {part} {name!r}. Leave it out.")


def prepared_length(path) -> int:
  """S of a folder that `python -m pipeline prepare` wrote; 1 for anything else.

  A run accepts such a folder only with the S it was prepared with, even if its longest
  sequence is shorter.
  """
  try:
    content = files.parse_json((pathlib.Path(path) / "manifest.json").read_text())
    return int(content["settings"]["max_sequence_length"])
  except (OSError, ValueError, LookupError, TypeError):
    return 1


def _directory_files(path: pathlib.Path, split: str | None) -> list[pathlib.Path]:
  """The files in folders of the split's name or, if there are none, those named for it."""
  tables: list[pathlib.Path] = []
  by_folder: dict[str, list[pathlib.Path]] = {}
  by_name: dict[str, list[pathlib.Path]] = {}
  for file in sorted(path.rglob("*.*")):
    inside = file.relative_to(path)
    hidden = "/." in f"/{inside.as_posix()}"  # such as .ipynb_checkpoints
    if file.suffix not in (".arrow", ".parquet") or hidden:
      continue
    if not file.name.startswith("cache-"):
      tables.append(file)
      for folder in set(inside.parts[:-1]) - {"data"}:
        by_folder.setdefault(folder, []).append(file)
      by_name.setdefault(_split_name(file), []).append(file)
  if not tables:
    raise InputError(
      f"{path} holds no .arrow or .parquet file. Give a folder with a dataset."
    )
  if split == "all":
    return tables
  wanted = split or "train"
  in_folders = wanted in by_folder or (len(by_folder) > 1 and wanted not in by_name)
  splits = by_folder if in_folders else by_name
  name = min(splits) if split is None and len(splits) == 1 else wanted
  if name not in splits:
    found = f"no split {split!r}; found" if split else "several splits,"
    listed = ", ".join(sorted(splits))
    raise InputError(f"{path} has {found} {listed}. Name one with --split, or pass all.")
  return splits[name]


def _split_name(path: pathlib.Path) -> str:
  """The name of the split in a file's name, without the numbers of its parts.

  Example:
    >>> _split_name(pathlib.Path("data/train-00000-of-00001.parquet"))
    'train'
    >>> _split_name(pathlib.Path("squad-validation.arrow"))
    'squad-validation'
  """
  if usual := re.match(r"(train|validation|valid|val|test|dev|eval)(?=[-.])", path.name):
    return usual[0]
  return re.split(r"(?:^|[-_.])\d+(?=[-_.])|\.(?:arrow|parquet)$", path.name)[0]


def _read_file(path: pathlib.Path, column: str | None) -> tuple[np.ndarray, str | None]:
  if path.suffix in (".arrow", ".parquet", ".csv", ".tsv"):
    return _from_table(path, column)
  if path.suffix not in (".npy", ".txt", ""):
    raise InputError(f"{path} ends in {path.suffix!r}; expected {_KINDS}.")
  check_unnamed(str(path), column=column)
  if path.suffix == ".npy":
    return _from_npy(path), None
  return _integers(path.read_bytes(), str(path)), None


def _from_npy(path: pathlib.Path) -> np.ndarray:
  try:
    lengths = np.lib.format.open_memmap(path, mode="r")
  except (ValueError, SyntaxError, tokenize.TokenError) as error:  # of its header
    raise InputError(f"{path} is not a .npy file of numbers ({error}).") from error
  if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
    raise InputError(
      f"{path} has shape {lengths.shape} of {lengths.dtype}; expected a vector of lengths."
    )
  return np.array(lengths)


def _integers(text: str | bytes, where: str) -> np.ndarray:
  try:
    lines = text if isinstance(text, str) else text.decode("utf-8-sig")
  except UnicodeDecodeError as error:
    raise InputError(f"{where} is not text; expected integers, the lengths.") from error
  if wrong := re.search(r"\S*[^\s0-9+-]\S*", lines):
    raise InputError(
      f"{where} has {short_repr(wrong.group())}; expected integers, the lengths."
    )
  numbers = lines.split()
  by_line = {len(line.split()) for line in lines.splitlines()} - {0}
  if len(numbers) > 2 and by_line == {2}:
    raise InputError(
      f"{where} has two numbers a line; expected one, the length. Leave out the other, "
      "such as what uniq -c counts."
    )
  try:
    return np.array(numbers, np.int64)
  except (ValueError, OverflowError) as error:
    raise InputError(f"{where}: {error}; expected integers, the lengths.") from error


def _from_table(path: pathlib.Path, column: str | None) -> tuple[np.ndarray, str]:
  try:
    from packing import arrow
  except ImportError as error:
    raise InputError("Tables need pyarrow; install it with pip install pyarrow.") from error
  return arrow.read_lengths(path, column)
