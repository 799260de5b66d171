"""The index of stored sequences: all that is known of each without reading its tokens.

An index is an array with a record for each sequence, and the order of the sequences by
length. A prepared dataset has both in files, which all processes of a machine map into
memory, so that a sequence takes memory once, and only if it is read.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from packing import InputError
from packing.assignment import number_type, sort_by_length

_LABELS = {pa.int32(): np.int32, pa.float32(): np.float32, pa.bool_(): np.bool_}
_ZEROS = bytes(1 << 20)


class Index(NamedTuple):
  """What is known of sequences.

  Attributes:
    sequences: a record for each: `start`, its place in the stream of all tokens;
      `length` and `first_type_length`, in tokens; and `label`.
    by_length: uint32[num_sequences], or uint64: their numbers, from the shortest to the
      longest.
  """

  sequences: np.ndarray
  by_length: np.ndarray


def make_index(batches: Sequence[pa.RecordBatch]) -> Index:
  """Makes an index in memory.

  Args:
    batches: at least one, with columns as in `pipeline.store.SCHEMA`.
  """
  sequences = np.empty(_rows(batches), _record(batches))
  _fill(sequences, batches)
  return Index(sequences, sort_by_length(sequences["length"]))


def file_names(split: str) -> list[str]:
  """The names of the files of an index: of its records, and of their order by length."""
  return [f"{split}.sequences.npy", f"{split}.by_length.npy"]


def write_index(folder: pathlib.Path, split: str, batches: Sequence[pa.RecordBatch]):
  """Writes the index of a split into its folder, a record batch at a time.

  Args:
    folder: where to write the files of `file_names`.
    split: the name of the split.
    batches: as for `make_index`.

  Raises:
    OSError: the disk is full.
  """
  of_records, of_order = (folder / name for name in file_names(split))
  rows = _rows(batches)
  sequences = _new_file(of_records, _record(batches), rows)
  _fill(sequences, batches)
  order = _new_file(of_order, np.dtype(number_type(rows)), rows)
  sort_by_length(sequences["length"], order)
  for array in sequences, order:
    array.flush()


def open_index(
  paths: Iterable[str | os.PathLike], batches: Sequence[pa.RecordBatch]
) -> Index:
  """Maps the files of an index.

  Args:
    paths: the files of `file_names`.
    batches: what the index is of.

  Raises:
    InputError: the files are damaged, or are of another number of sequences.
  """
  rows = _rows(batches)
  expected = _record(batches), np.dtype(number_type(rows))
  found = []
  for path, kind in zip(paths, expected, strict=True):
    try:
      array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
      raise InputError(
        f"{path} cannot be read: {error}. Prepare the dataset again."
      ) from error
    if array.dtype != kind or array.shape != (rows,):
      raise InputError(
        f"{path} has {array.size} records; expected {rows}, with the fields of this "
        "version. Prepare the dataset again."
      )
    found.append(array.view(np.ndarray))  # which is faster than np.memmap
  return Index(*found)


def _rows(batches: Sequence[pa.RecordBatch]) -> int:
  return sum(batch.num_rows for batch in batches)


def _record(batches: Sequence[pa.RecordBatch]) -> np.dtype:
  kind, shape = batches[0].schema.field("sequence_label").type, tuple[int, ...]()
  if pa.types.is_list(kind):
    labels = (batch.column("sequence_label") for batch in batches if batch.num_rows)
    shape = (len(next(labels, [[]])[0]),)
    kind = kind.value_type
  return np.dtype(
    [
      ("start", np.int64),
      ("length", np.int32),
      ("first_type_length", np.int32),
      ("label", _LABELS[kind], shape),
    ],
    align=True,  # NumPy copies all of an array that is not, to read some of it
  )


def _fill(sequences: np.ndarray, batches: Iterable[pa.RecordBatch]):
  at = tokens = 0
  for batch in batches:
    part = sequences[at : at + batch.num_rows]
    offsets = batch.column("input_ids").offsets.to_numpy()
    part["start"] = offsets[:-1] - offsets[:1] + np.int64(tokens)
    part["length"] = np.diff(offsets)
    part["first_type_length"] = batch.column("first_type_length").to_numpy()
    labels = batch.column("sequence_label")
    if labels.null_count:
      raise InputError(f"{labels.null_count} sequences have no label. Give each a label.")
    if pa.types.is_list(labels.type):
      if (np.diff(labels.offsets) != part["label"].shape[1]).any():
        raise InputError("Sequences have labels for different numbers of classes.")
      labels = labels.flatten()
    part["label"] = labels.to_numpy(zero_copy_only=False).reshape(part["label"].shape)
    at += batch.num_rows
    tokens += int(offsets[-1] - offsets[0]) if offsets.size else 0


def _new_file(path: pathlib.Path, kind: np.dtype, rows: int) -> np.memmap:
  """An array in a new file, whose bytes are on the disk.

  A full disk is an error here. On a page that is written later, the system would end the
  process, as it still may where the file system compresses.
  """
  with path.open("wb") as file:
    np.lib.format.write_array_header_1_0(
      file,
      {
        "descr": np.lib.format.dtype_to_descr(kind),
        "fortran_order": False,
        "shape": (rows,),
      },
    )
    left = rows * kind.itemsize
    while left:
      left -= file.write(_ZEROS[:left])
  return np.load(path, mmap_mode="r+")
