"""Sequences on disk: written once to an Arrow file, read back memory-mapped."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from packing import InputError

SCHEMA = pa.schema(
  [
    ("input_ids", pa.list_(pa.int32())),  # with special tokens
    ("first_type_length", pa.int32()),  # tokens of token type 0; the rest has type 1
    ("sequence_label", pa.int32()),
  ]
)


class StoredSequence(NamedTuple):
  """One row of the store."""

  input_ids: Sequence[int]
  first_type_length: int
  sequence_label: int


def write_sequences(
  path: str | pathlib.Path, sequences: Iterable[StoredSequence], *, batch_size: int = 8192
) -> int:
  """Writes sequences to an Arrow IPC file, `batch_size` at a time.

  Returns:
    How many sequences were written.
  """
  written = 0
  with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
    rows: list[StoredSequence] = []
    for row in sequences:
      rows.append(row)
      if len(rows) == batch_size:
        writer.write_batch(_record_batch(rows))
        written += len(rows)
        rows = []
    if rows:
      writer.write_batch(_record_batch(rows))
      written += len(rows)
  return written


def _record_batch(rows: list[StoredSequence]) -> pa.RecordBatch:
  columns = zip(*rows, strict=True)
  arrays = [pa.array(column, f.type) for column, f in zip(columns, SCHEMA, strict=True)]
  return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class SequenceStore:
  """Read access to the sequences of an Arrow file, without loading their tokens.

  Attributes:
    lengths: int32[num_sequences], in tokens.
    first_type_lengths: int32[num_sequences]; tokens of token type 0.
    sequence_labels: int32[num_sequences].

  Raises:
    InputError: the file is not there, or is no Arrow file of sequences.
  """

  def __init__(self, path: str | pathlib.Path):
    try:
      with pa.memory_map(str(path)) as source:
        reader = pa.ipc.open_file(source)
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        schema = reader.schema
    except (OSError, pa.ArrowInvalid) as error:
      raise InputError(
        f"Expected an Arrow file of sequences at {path}: {error}."
      ) from error
    if not schema.equals(SCHEMA) or not batches:
      raise InputError(
        f"{path} is no store of sequences: expected at least one batch with columns "
        f"{SCHEMA.names}, found {len(batches)} with {schema.names}."
      )
    self._tokens = []  # of each record batch, int32, views into the mapped file
    starts, chunks = [], []
    for number, batch in enumerate(batches):
      column = batch.column("input_ids")
      self._tokens.append(column.values.to_numpy())
      starts.append(column.offsets.to_numpy().astype(np.int64))
      chunks.append(np.full(len(batch), number, np.int32))
    self._starts = np.concatenate([s[:-1] for s in starts])
    self._chunks = np.concatenate(chunks)
    self.lengths = np.concatenate([np.diff(s) for s in starts]).astype(np.int32)
    table = pa.Table.from_batches(batches)
    self.first_type_lengths = table["first_type_length"].to_numpy()
    self.sequence_labels = table["sequence_label"].to_numpy()

  def __len__(self) -> int:
    return self.lengths.size

  def gather(self, ids: np.ndarray) -> np.ndarray:
    """Tokens of some sequences, end to end.

    Args:
      ids: int[n]; sequence numbers.

    Returns:
      int32[sum of their lengths].
    """
    lengths = self.lengths[ids]
    ends = np.cumsum(lengths)
    within = np.arange(ends[-1] if ends.size else 0)
    index = np.repeat(self._starts[ids] - (ends - lengths), lengths) + within
    chunks = self._chunks[ids]
    if (chunks == chunks[:1]).all():
      return self._tokens[chunks[0]][index] if ids.size else np.zeros(0, np.int32)
    tokens = np.empty(index.size, np.int32)
    token_chunks = np.repeat(chunks, lengths)
    for chunk in np.unique(chunks):
      mine = token_chunks == chunk
      tokens[mine] = self._tokens[chunk][index[mine]]
    return tokens
