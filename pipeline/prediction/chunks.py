"""Examples packed a chunk at a time: batches of one shape for any number of examples."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa

import packing
from packing.errors import check_integer
from pipeline.batches.packed import PackedBatch, pack_rows
from pipeline.prediction.examples import Example
from pipeline.store import SequenceStore

CHUNK_SIZE = 4096  # sequences: enough to pack well, few enough to hold and to wait for
_SHORTEST = 4  # tokens; if sequences are shorter, some rows are less full
_Output = TypeVar("_Output")


@dataclasses.dataclass(frozen=True)
class BatchShape:
  """The shape of batches, and how their rows are filled.

  Attributes:
    length: S, in tokens.
    batch_size: B, rows in a batch.
    max_sequences: M, the most sequences in a row; None for S / 4, which hardly limits.
    algorithm: a key of `packing.ALGORITHMS`; "none" for one sequence a row.

  Raises:
    InputError: a value is invalid.
  """

  length: int
  batch_size: int = 8
  max_sequences: int | None = None
  algorithm: str = "lpfhp"

  def __post_init__(self):
    packing.algorithm_options(self.algorithm)
    check_integer("max_sequence_length", self.length, at_least=1)
    check_integer("batch_size", self.batch_size, at_least=1)
    if self.max_sequences is not None:
      check_integer("max_sequences_per_pack", self.max_sequences, at_least=1)

  @property
  def slots(self) -> int:
    """M: the sequences that a row has room for."""
    if self.algorithm == "none":
      return 1
    return min(self.max_sequences or max(self.length // _SHORTEST, 1), self.length)


@dataclasses.dataclass(frozen=True)
class Chunk:
  """Some examples, packed.

  Attributes:
    examples: in the order of their source.
    store: their sequences.
    assignment: of the sequences to packs; None if there are no sequences.
    shape: of the batches.
  """

  examples: list[Example]
  store: SequenceStore
  assignment: packing.Assignment | None
  shape: BatchShape

  @property
  def num_packs(self) -> int:
    return self.assignment.num_packs if self.assignment else 0

  def batches(self) -> Iterator[PackedBatch]:
    """Batches with each sequence once; the last rows are empty."""
    if self.assignment is None:
      return
    size, slots = self.shape.batch_size, self.shape.slots
    num_rows = -(-self.num_packs // size) * size
    sequence_ids = np.full((num_rows, slots), -1, np.int64)
    depths = np.zeros(num_rows, np.int64)
    depths[: self.num_packs] = np.diff(self.assignment.offsets)
    filled = np.arange(slots) < depths[:, None]
    sequence_ids[filled] = self.assignment.sequence_ids
    for start in range(0, num_rows, size):
      ids = sequence_ids[start : start + size]
      yield pack_rows(self.store, ids, row_length=self.shape.length)

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
  """Packs examples as they come, and holds at most a chunk of them.

  Args:
    examples: from `read_examples`.
    schema: of their sequences, as the task has it.
    shape: of the batches.
    chunk_size: sequences in a chunk; the windows of one question stay together.

  Raises:
    InputError: an example is invalid.

  Example:
    >>> from pipeline.store import SCHEMA
    >>> examples = [Example(str(n), [([2, 5, 3], 3, 0)], "") for n in range(5)]
    >>> shape = BatchShape(8, batch_size=2)
    >>> chunks = pack_examples(examples, SCHEMA, shape=shape, chunk_size=3)
    >>> [(len(c.examples), c.num_packs, len(list(c.batches()))) for c in chunks]
    [(3, 2, 1), (2, 1, 1)]
  """
  check_integer("chunk_size", chunk_size, at_least=1)
  held: list[Example] = []
  num_sequences = 0
  for example in examples:
    held.append(example)
    # An example without sequences is held too, and counts as one.
    num_sequences += max(len(example.sequences), 1)
    if num_sequences >= chunk_size:
      yield _pack(held, schema, shape)
      held, num_sequences = [], 0
  if held:
    yield _pack(held, schema, shape)


def _pack(examples: Sequence[Example], schema: pa.Schema, shape: BatchShape) -> Chunk:
  sequences = [sequence for example in examples for sequence in example.sequences]
  store = SequenceStore.from_sequences(sequences, schema)
  if not len(store):
    return Chunk(list(examples), store, None, shape)
  plan = packing.pack(
    packing.Histogram.from_lengths(store.lengths, max_sequence_length=shape.length),
    algorithm=shape.algorithm,
    max_sequences_per_pack=shape.slots,
  )
  assignment = plan.assign(store.lengths, seed=0)
  return Chunk(list(examples), store, assignment, shape)
