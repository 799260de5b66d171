"""Packs examples in chunks: batches of one shape for any number of examples."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np
import pyarrow as pa

import packing
from packing.errors import check_integer
from pipeline.batches.packed import PackedBatch, pack_rows
from pipeline.prediction.examples import Example
from pipeline.store import SequenceStore

CHUNK_SIZE = 4096  # sequences: enough to pack well, few enough to keep and to wait for
ORDINARY_ROW = 512  # tokens; batches of longer rows have fewer rows
ROW_MULTIPLE = 64  # tokens; rows are rounded up to it, so that few shapes are compiled
_SHORTEST = 4  # tokens; if sequences are shorter, some rows are less full
_Output = TypeVar("_Output")


@dataclasses.dataclass(frozen=True)
class BatchShape:
  """The shape of batches, and how their rows are filled.

  Rows are as long as the longest sequence so far, rounded up to `row_multiple`, and at most
  `length`.

  Attributes:
    length: S, the most tokens of a row.
    batch_size: B, rows in a batch of rows of S tokens, or of `ORDINARY_ROW` tokens if S is
      more. Batches of other rows hold at most as many tokens, rounded down to a multiple of
      `batch_multiple` rows, but never fewer rows than that.
    max_sequences: M, the most sequences in a row. None allows one for every 4 tokens of a
      row, of at most `ORDINARY_ROW`, which rarely limits packing.
    algorithm: a key of `packing.ALGORITHMS`; "none" for one sequence a row. By default a
      heuristic, since a search takes longer than the rows that it saves.
    row_multiple: a divisor of the row length, unless that is S.
    batch_multiple: a divisor of the rows of every batch, such as the number of devices.

  Raises:
    InputError: a value is invalid.
  """

  length: int
  batch_size: int = 8
  max_sequences: int | None = None
  algorithm: str = "mbs"
  row_multiple: int = ROW_MULTIPLE
  batch_multiple: int = 1

  def __post_init__(self):
    packing.algorithm_options(self.algorithm)
    check_integer("max_sequence_length", self.length, at_least=1)
    check_integer("batch_size", self.batch_size, at_least=1)
    if self.max_sequences is not None:
      check_integer("max_sequences_per_pack", self.max_sequences, at_least=1)

  def row_length(self, longest: int) -> int:
    """Tokens of a row that holds the longest sequence.

    Example:
      >>> [BatchShape(384).row_length(longest) for longest in (20, 65, 350)]
      [64, 128, 384]
    """
    return min(-(-longest // self.row_multiple) * self.row_multiple, self.length)

  def slots(self, row_length: int) -> int:
    """M: the sequences that a row has room for."""
    if self.algorithm == "none":
      return 1
    hardly_a_limit = max(min(row_length, ORDINARY_ROW) // _SHORTEST, 1)
    return min(self.max_sequences or hardly_a_limit, row_length)

  def rows(self, row_length: int) -> int:
    """Rows in a batch of rows of this length."""
    most = self.batch_size * min(self.length, ORDINARY_ROW) // row_length
    return max(most // self.batch_multiple * self.batch_multiple, self.batch_multiple)


@dataclasses.dataclass(frozen=True)
class Chunk:
  """Some examples, packed.

  Attributes:
    examples: in the order of their source.
    store: their sequences.
    packs: the sequences of each pack.
    row_length: tokens of a row.
    shape: the shape of the batches.
  """

  examples: list[Example]
  store: SequenceStore
  packs: list[np.ndarray]
  row_length: int
  shape: BatchShape

  def batches(self) -> Iterator[PackedBatch]:
    """Batches with each sequence once. In the last one, some rows may be empty."""
    size, slots = self.shape.rows(self.row_length), self.shape.slots(self.row_length)
    for first in range(0, len(self.packs), size):
      sequence_ids = np.full((size, slots), -1, np.int64)
      for row, ids in zip(sequence_ids, self.packs[first : first + size], strict=False):
        row[: ids.size] = ids
      yield pack_rows(self.store, sequence_ids, row_length=self.row_length)

  def by_example(self, outputs: Iterable[_Output]) -> Iterator[list[_Output]]:
    """Outputs of all sequences, in the order of their numbers, for each example."""
    left = iter(outputs)
    for example in self.examples:
      yield list(itertools.islice(left, len(example.sequences)))


def pack_examples(
  examples: Iterable[Example],
  schema: pa.Schema,
  *,
  shape: BatchShape,
  chunk_size: int = CHUNK_SIZE,
) -> Iterator[Chunk]:
  """Packs examples as they arrive, with at most one chunk in memory.

  Rows get longer if a later chunk has a longer sequence, and never shorter.

  Args:
    examples: from `read_examples`.
    schema: the task's schema of sequences.
    shape: the shape of the batches.
    chunk_size: sequences in a chunk; the windows of one question stay together.

  Raises:
    InputError: an example is invalid.

  Example:
    >>> from pipeline.store import SCHEMA
    >>> examples = [Example(str(n), [([2, 5, 3], 3, 0)], "") for n in range(5)]
    >>> shape = BatchShape(8, batch_size=2)
    >>> chunks = pack_examples(examples, SCHEMA, shape=shape, chunk_size=3)
    >>> [(len(c.examples), len(c.packs), len(list(c.batches()))) for c in chunks]
    [(3, 2, 1), (2, 1, 1)]
  """
  check_integer("chunk_size", chunk_size, at_least=1)
  held: list[Example] = []
  num_sequences = row_length = 0
  for example in examples:
    held.append(example)
    # An example without sequences takes memory too, and counts as one.
    num_sequences += max(len(example.sequences), 1)
    if num_sequences >= chunk_size:
      chunk = _pack(held, schema, shape, row_length)
      row_length = chunk.row_length
      yield chunk
      held, num_sequences = [], 0
  if held:
    yield _pack(held, schema, shape, row_length)


def _pack(
  examples: list[Example], schema: pa.Schema, shape: BatchShape, at_least: int
) -> Chunk:
  sequences = [sequence for example in examples for sequence in example.sequences]
  store = SequenceStore.from_sequences(sequences, schema)
  if not len(store):
    return Chunk(examples, store, [], at_least, shape)
  row_length = max(at_least, shape.row_length(int(store.lengths.max())))
  plan = packing.pack(
    packing.Histogram.from_lengths(store.lengths, max_sequence_length=row_length),
    algorithm=shape.algorithm,
    max_sequences_per_pack=shape.slots(row_length),
  )
  packs = list(plan.assign(store.lengths, seed=0))
  return Chunk(examples, store, packs, row_length, shape)
