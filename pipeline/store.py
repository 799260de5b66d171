"""Sequences on disk: written once to Arrow files, read back memory-mapped."""

from __future__ import annotations

import functools
import itertools
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from packing import Histogram, InputError
from packing.arrow import open_arrow
from pipeline.index import Index, make_index, open_index
from pipeline.mapped import map_file, read_soon

SCHEMA = pa.schema(
  [
    ("input_ids", pa.list_(pa.int32())),  # with special tokens
    ("first_type_length", pa.int32()),  # tokens of token type 0; the rest has type 1
    ("sequence_label", pa.int32()),
  ]
)
REGRESSION_SCHEMA = SCHEMA.set(2, pa.field("sequence_label", pa.float32()))
# For each class, whether the sequence has it.
MULTI_LABEL_SCHEMA = SCHEMA.set(2, pa.field("sequence_label", pa.list_(pa.bool_())))
# A question and a window of its context. Positions count tokens of the sequence; they are
# 0, the [CLS], if the window does not hold the answer. Characters count from the start of
# `text`, the piece of the context that the window shows.
QUESTION_SCHEMA = pa.schema(
  [
    *SCHEMA,
    ("start_position", pa.int32()),
    ("end_position", pa.int32()),  # of the answer's last token
    ("example_id", pa.string()),
    ("text", pa.string()),
    ("token_starts", pa.list_(pa.int32())),  # of the context's tokens, in characters
    ("token_ends", pa.list_(pa.int32())),
    ("window_start", pa.int32()),  # in tokens of the context
    ("answers", pa.list_(pa.string())),
  ]
)
# A window of a sentence. Each word of the sentence has a label in one of its windows, at
# its first piece; all other tokens are `UNLABELLED`.
TAGGING_SCHEMA = pa.schema(
  [
    *SCHEMA,
    ("token_labels", pa.list_(pa.int32())),  # of all tokens
    ("words", pa.list_(pa.string())),  # those that have a label here
    ("window_start", pa.int32()),  # in tokens of the sentence
  ]
)
UNLABELLED = -1
_SMALL_TOKENS = pa.field("input_ids", pa.list_(pa.uint16()))
# Several texts in one record, each with its own special tokens, end to end in `input_ids`.
_TEXTS = pa.field("text_lengths", pa.list_(pa.int32()))
PAIR_SCHEMA, SCORED_PAIR_SCHEMA = SCHEMA.append(_TEXTS), REGRESSION_SCHEMA.append(_TEXTS)


def with_small_tokens(schema: pa.Schema, vocab_size: int) -> pa.Schema:
  """The schema with tokens of 16 bits, if all ids of the vocabulary fit into them."""
  return schema.set(0, _SMALL_TOKENS) if vocab_size <= 2**16 else schema


class StoredSequence(NamedTuple):
  """A sequence with the fields of `SCHEMA`."""

  input_ids: Sequence[int]
  first_type_length: int
  sequence_label: int | float | Sequence[bool]


def write_sequences(
  path: str | pathlib.Path,
  sequences: Iterable[Sequence],
  *,
  schema: pa.Schema = SCHEMA,
  batch_size: int = 4096,
):
  """Writes sequences to an Arrow file, `batch_size` at a time.

  Args:
    path: the file to write.
    sequences: tuples with a value for each field of the schema, such as StoredSequences.
    schema: `SCHEMA`, or one of the schemas that extend it; perhaps `with_small_tokens`.
    batch_size: sequences in memory at a time.
  """
  sequences = iter(sequences)
  with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
    while held := list(itertools.islice(sequences, batch_size)):
      writer.write_batch(_record_batch(held, schema))


def _record_batch(sequences: list[Sequence], schema: pa.Schema) -> pa.RecordBatch:
  columns = zip(*sequences, strict=True) if sequences else [[] for _ in schema]
  arrays = [pa.array(column, f.type) for column, f in zip(columns, schema, strict=True)]
  return pa.RecordBatch.from_arrays(arrays, schema=schema)


class Texts(NamedTuple):
  """The texts of a store's records, each a sequence of its own in a batch.

  Attributes:
    lengths: int32[T]; tokens of each text, record by record.
    ends: int64[N + 1]; record `n` has the texts `ends[n]` to `ends[n + 1]`.
    most: the most texts of a record.
    shortest: tokens of the shortest text.
  """

  lengths: np.ndarray
  ends: np.ndarray
  most: int
  shortest: int

  @property
  def counts(self) -> np.ndarray:
    """int64[N]; the texts of each record."""
    return np.diff(self.ends)

  def slots(self, records: int, row_length: int) -> int:
    """How many texts a row of `row_length` tokens and `records` records may have."""
    return min(records * self.most, row_length // self.shortest)


class SequenceStore:
  """Read access to the sequences of Arrow files, without loading their tokens.

  Sequence numbers continue from file to file, in the order given.

  Args:
    paths: one file, or several with the same columns.
    index: the files of their index, from `pipeline.index`; None to make it in memory, about
      28 bytes for each sequence.
    reads_ahead: whether the files are too large to be read when they are opened. Then
      `read_ahead` is of use.

  Attributes:
    by_length: uint32[num_sequences], or uint64: their numbers, from the shortest to the
      longest.
    lengths: int32[num_sequences], in tokens.
    first_type_lengths: int32[num_sequences]; tokens of token type 0.
    sequence_labels: int32[num_sequences]; float32 for regression; for several classes a
      sequence bool[num_sequences, num_labels].
    has_token_labels: whether tokens have labels.
    answer_starts, answer_ends: int32[num_sequences], positions in the sequence; None if
      the schema has no answers.
    texts: what a record consists of; None if each is one sequence.
    schema: `SCHEMA`, or a schema that extends it.

  Raises:
    InputError: a file is missing or is not an Arrow file of sequences, or the index is not
      theirs.
  """

  def __init__(
    self,
    paths: str | os.PathLike | Iterable[str | os.PathLike],
    index: Sequence[str | os.PathLike] | None = None,
    *,
    reads_ahead: bool = False,
  ):
    files = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    open_again = functools.partial(SequenceStore, reads_ahead=reads_ahead)
    self._origin: tuple = open_again, (files, index)
    self.reads_ahead = reads_ahead
    self._batches: Callable[[], list[pa.RecordBatch]] = functools.partial(
      read_batches, files, reads_ahead=reads_ahead
    )
    batches = self._batches()
    opened = open_index(index, batches) if index else make_index(batches)
    self._set_batches(batches, opened)
    if len(self) and self._starts[-1] + self.lengths[-1] != self._bounds[-1]:
      raise InputError(
        f"The index does not belong to {files[0]}. Prepare the dataset again."
      )

  @classmethod
  def from_sequences(cls, sequences: Iterable[Sequence], schema: pa.Schema):
    """A store in memory.

    Args:
      sequences: tuples with a value for each field of the schema; may be empty.
      schema: `SCHEMA`, or one of the schemas that extend it.

    Example:
      >>> sequences = [StoredSequence([2, 7, 3], 3, 1), StoredSequence([2, 3], 2, 0)]
      >>> SequenceStore.from_sequences(sequences, SCHEMA).lengths.tolist()
      [3, 2]
    """
    return cls._from_batch(_record_batch(list(sequences), schema))

  @classmethod
  def _from_batch(cls, batch: pa.RecordBatch) -> SequenceStore:
    store = cls.__new__(cls)
    store._origin, store.reads_ahead = (cls._from_batch, (batch,)), False
    store._batches = lambda: [batch]
    store._set_batches([batch], make_index([batch]))
    return store

  def _set_batches(self, batches: list[pa.RecordBatch], index: Index):
    self.schema = batches[0].schema
    self.has_token_labels = "token_labels" in self.schema.names
    # of each record batch, views into the mapped file
    self._tokens = [batch.column("input_ids").flatten().to_numpy() for batch in batches]
    if self.has_token_labels:
      self._labels = [
        batch.column("token_labels").flatten().to_numpy() for batch in batches
      ]
    self._bounds = np.cumsum([0, *(tokens.size for tokens in self._tokens)])
    self._addresses = np.array([tokens.ctypes.data for tokens in self._tokens])
    table = pa.Table.from_batches(batches)
    self.by_length, sequences = index.by_length, index.sequences
    self._starts, self.lengths = sequences["start"], sequences["length"]
    self.first_type_lengths = sequences["first_type_length"]
    self.sequence_labels = sequences["label"]
    self.answer_starts = self.answer_ends = None
    if "start_position" in self.schema.names:
      self.answer_starts = table["start_position"].to_numpy()
      self.answer_ends = table["end_position"].to_numpy()
    self.texts = None
    if _TEXTS.name in self.schema.names:
      column = table[_TEXTS.name]
      counts = pc.list_value_length(column).to_numpy()
      ends = np.append(0, np.cumsum(counts, dtype=np.int64))
      most = int(counts.max(initial=1))
      lengths = pc.list_flatten(column).to_numpy()
      self.texts = Texts(lengths, ends, most, int(lengths.min()) if lengths.size else 1)

  def __reduce__(self):
    """A pickle holds file names, which a worker maps again, or a store in memory."""
    return self._origin

  def __len__(self) -> int:
    return self.lengths.size

  @functools.cached_property
  def histogram(self) -> Histogram:
    """Of the lengths; they are counted once.

    Raises:
      InputError: there are no sequences.
    """
    longest = int(self.lengths.max(initial=1))
    return Histogram.from_lengths(self.lengths, max_sequence_length=longest)

  def records(self) -> Iterator[dict]:
    """Each sequence as a dictionary, with a few in memory at a time."""
    table = pa.Table.from_batches(self._batches())
    for batch in table.to_batches(max_chunksize=64):
      yield from batch.to_pylist()

  def gather(self, ids: np.ndarray, *, labels: bool = False) -> np.ndarray:
    """The tokens of some sequences, end to end.

    Args:
      ids: int[n]; sequence numbers.
      labels: gives the labels of the tokens instead, if `has_token_labels`.

    Returns:
      int32[sum of their lengths].
    """
    values = self._labels if labels else self._tokens
    starts, lengths = self._starts[ids], self.lengths[ids]
    if not starts.size:
      return np.zeros(0, np.int32)
    numbers = np.searchsorted(self._bounds[:-1], starts, side="right") - 1
    starts = starts - self._bounds[numbers]
    if (numbers == numbers[0]).all():
      found = values[numbers[0]][ranges(starts, lengths)]
    else:
      ends = (starts + lengths).tolist()
      parts = zip(numbers.tolist(), starts.tolist(), ends, strict=True)
      found = np.concatenate([values[number][i:j] for number, i, j in parts])
    return found.astype(np.int32, copy=False)

  def read_ahead(self, ids: np.ndarray):
    """Asks the system to read some sequences into memory, and does not wait for it.

    Otherwise each page is read when it is needed, one after the other.

    Args:
      ids: int[n]; sequence numbers.
    """
    starts, lengths = self._starts[ids], self.lengths[ids]
    numbers = np.searchsorted(self._bounds[:-1], starts, side="right") - 1
    size = self._tokens[0].itemsize
    addresses = self._addresses[numbers] + (starts - self._bounds[numbers]) * size
    read_soon(addresses, lengths * size)

  def read(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Tokens of parts of the stream, which is all sequences end to end.

    Args:
      starts: int64[n]; where each part begins, in tokens from the start of the stream.
      lengths: int[n]; in tokens.

    Returns:
      int32[sum of the lengths]; the parts, end to end.

    Example:
      >>> sequences = [StoredSequence([2, 7, 3], 3, 0), StoredSequence([5, 3], 2, 0)]
      >>> store = SequenceStore.from_sequences(sequences, SCHEMA)
      >>> store.read(np.array([3, 1]), np.array([1, 3])).tolist()
      [5, 7, 3, 5]
    """
    places = ranges(starts, lengths)
    numbers = np.searchsorted(self._bounds, places, side="right") - 1
    order = np.argsort(numbers, kind="stable")
    tokens = np.empty(places.size, np.int32)
    used, first = np.unique(numbers[order], return_index=True)
    for number, here in zip(used.tolist(), np.split(order, first[1:]), strict=False):
      tokens[here] = self._tokens[number][places[here] - self._bounds[number]]
    return tokens


def ranges(starts: np.ndarray | int, lengths: np.ndarray) -> np.ndarray:
  """int64[sum of the lengths]: the integers from each start, end to end.

  Args:
    starts: int[n], or one start of all.
    lengths: int[n]; how many integers from each start.

  Example:
    >>> ranges(np.array([7, 3]), np.array([2, 3])).tolist()
    [7, 8, 3, 4, 5]
    >>> ranges(0, np.array([2, 3])).tolist()
    [0, 1, 0, 1, 2]
  """
  ends = np.cumsum(lengths, dtype=np.int64)
  return np.repeat(starts - (ends - lengths), lengths) + np.arange(lengths.sum())


def read_batches(
  paths: Iterable[str | os.PathLike], *, reads_ahead: bool = False
) -> list[pa.RecordBatch]:
  """The record batches of Arrow files of sequences, memory-mapped.

  Args:
    paths: the files.
    reads_ahead: as of `SequenceStore`.

  Raises:
    InputError: a file is missing or is not an Arrow file of sequences, they have different
      columns, or there is none.
  """
  batches: list[pa.RecordBatch] = []
  for path in paths:
    try:
      schema, found = open_arrow(map_file(path) if reads_ahead else path)
      added = list(found)
    except (OSError, pa.ArrowInvalid) as error:
      raise InputError(
        f"Expected an Arrow file of sequences at {path}: {error}."
      ) from error
    base = pa.schema([schema.field(i) for i in range(min(3, len(schema)))])
    if base.names and base.field(0) == _SMALL_TOKENS:
      base = base.set(0, SCHEMA.field(0))
    if base not in (SCHEMA, REGRESSION_SCHEMA, MULTI_LABEL_SCHEMA) or not added:
      raise InputError(f"{path} has columns {schema.names}; expected {SCHEMA.names}.")
    if batches and not schema.equals(batches[0].schema):
      raise InputError(f"{path} has other columns than earlier files. Prepare them again.")
    batches += added
  if not batches:
    raise InputError("Expected at least one Arrow file of sequences; found none.")
  return batches
