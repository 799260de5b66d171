"""Packs examples in chunks: batches of few shapes for any number of examples."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa

import packing
from packing.errors import InputError, check_integer
from pipeline.batches.packed import PackedBatch, pack_rows
from pipeline.prediction.examples import Example
from pipeline.store import SequenceStore

CHUNK_SIZE = 4096  # sequences: enough to pack well, few enough to keep and to wait for
ORDINARY_ROW = 512  # tokens; only longer sequences get longer rows
_SHORTEST = 4  # tokens; if sequences are shorter, some rows are less full
_WORK = 10**8  # work limit of the search for a plan: a second or less
_STEPS = 96  # lengths are rounded up to multiples of at most a 96th of a row
_Output = TypeVar("_Output")


@dataclasses.dataclass(frozen=True)
class BatchShape:
  """The shapes of batches, and how their rows are filled.

  Attributes:
    length: S, the longest row, in tokens.
    batch_size: B, rows in a batch of rows of S tokens, or of `ORDINARY_ROW` tokens if S is
      more. Batches of other rows hold at most as many tokens, rounded down to a multiple of
      `batch_multiple` rows, but never fewer rows than that.
    max_sequences: M, the most sequences in a row. None allows one for every 4 tokens of
      such a row, which rarely limits packing.
    algorithm: a key of `packing.ALGORITHMS`; "none" for one sequence a row.
    row_costs: the cost of a row for each row length, including S; the plan of a chunk
      minimises the total cost. None for rows of S tokens only. Rows above `ORDINARY_ROW`
      are used only in chunks with a sequence that needs them.
    batch_multiple: a divisor of the rows of every batch, such as the number of devices.

  Raises:
    InputError: a value is invalid.
  """

  length: int
  batch_size: int = 8
  max_sequences: int | None = None
  algorithm: str = "optimal"
  row_costs: Mapping[int, int] | None = None
  batch_multiple: int = 1

  def __post_init__(self):
    packing.algorithm_options(self.algorithm)
    check_integer("max_sequence_length", self.length, at_least=1)
    check_integer("batch_size", self.batch_size, at_least=1)
    if self.row_costs is not None and max(self.row_costs) != self.length:
      raise InputError(
        f"The longest row has {max(self.row_costs)} tokens; expected {self.length}."
      )
    if self.max_sequences is not None:
      check_integer("max_sequences_per_pack", self.max_sequences, at_least=1)

  @property
  def slots(self) -> int:
    """M: the sequences that a row has room for."""
    if self.algorithm == "none":
      return 1
    hardly_a_limit = max(min(self.length, ORDINARY_ROW) // _SHORTEST, 1)
    return min(self.max_sequences or hardly_a_limit, self.length)

  def rows(self, row_length: int) -> int:
    """Rows in a batch of rows of this length."""
    most = self.batch_size * min(self.length, ORDINARY_ROW) // row_length
    return max(most // self.batch_multiple * self.batch_multiple, self.batch_multiple)

  def costs_for(self, longest: int) -> dict[int, int]:
    """Row lengths for sequences up to `longest` tokens, and the cost of a row of each."""
    costs = self.row_costs or {self.length: 1}
    needed = min(self.length, max(longest, ORDINARY_ROW))
    last = min(length for length in costs if length >= needed)
    return {length: cost for length, cost in costs.items() if length <= last}


def default_row_lengths(longest: int) -> tuple[int, ...]:
  """Four row lengths, from half the longest sequence up; docs/finetuning.md compares them.

  Above `ORDINARY_ROW`: the four for `ORDINARY_ROW`, its doublings that are shorter than
  `longest`, and `longest`.

  Example:
    >>> default_row_lengths(384)
    (192, 224, 288, 384)
    >>> default_row_lengths(3000)
    (256, 304, 384, 512, 1024, 2048, 3000)
  """
  ordinary = min(longest, ORDINARY_ROW)
  parts = (-(-ordinary * part // 12) for part in (6, 7, 9))
  lengths = {-(-length // 16) * 16 for length in parts} | {longest}
  while ordinary < longest:
    lengths.add(ordinary)
    ordinary *= 2
  return tuple(sorted(length for length in lengths if length <= longest))


@dataclasses.dataclass(frozen=True)
class Chunk:
  """Some examples, packed.

  Attributes:
    examples: in the order of their source.
    store: their sequences.
    packs: for each row length, ascending, the sequences of each pack.
    shape: the shape of the batches.
  """

  examples: list[Example]
  store: SequenceStore
  packs: dict[int, list[np.ndarray]]
  shape: BatchShape

  @property
  def num_packs(self) -> int:
    return sum(map(len, self.packs.values()))

  def batches(self) -> Iterator[PackedBatch]:
    """Batches with each sequence once.

    Packs that do not fill a batch move to the next longer rows. In the last batch of the
    longest rows, some rows may be empty.
    """
    left: list[np.ndarray] = []
    last = max(self.packs, default=0)
    for row_length, packs in self.packs.items():
      size, left = self.shape.rows(row_length), left + packs
      while len(left) >= size or (left and row_length == last):
        batch, left = left[:size], left[size:]
        sequence_ids = np.full((size, self.shape.slots), -1, np.int64)
        for row, ids in zip(sequence_ids, batch, strict=False):
          row[: ids.size] = ids
        yield pack_rows(self.store, sequence_ids, row_length=row_length)

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
    >>> [(len(c.examples), c.num_packs, len(list(c.batches()))) for c in chunks]
    [(3, 2, 1), (2, 1, 1)]
  """
  check_integer("chunk_size", chunk_size, at_least=1)
  held: list[Example] = []
  num_sequences = 0
  for example in examples:
    held.append(example)
    # An example without sequences takes memory too, and counts as one.
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
    return Chunk(list(examples), store, {}, shape)
  row_costs = shape.costs_for(int(store.lengths.max()))
  limited = "work_limit" in packing.algorithm_options(shape.algorithm)
  plan = packing.pack(
    packing.Histogram.from_lengths(store.lengths, max_sequence_length=max(row_costs)),
    algorithm=shape.algorithm,
    max_sequences_per_pack=shape.slots,
    row_length=tuple(row_costs),
    row_cost=tuple(row_costs.values()),
    length_multiple=_length_multiple(max(row_costs)),
    **({"work_limit": _WORK} if limited else {}),
  )
  parts = zip(plan.plans, plan.assign(store.lengths, seed=0), strict=True)
  packs = {part.row_length: list(assignment) for part, assignment in parts}
  return Chunk(list(examples), store, packs, shape)


def _length_multiple(row_length: int) -> int:
  """Lengths are rounded up to multiples of it for quick plans; divides the row length."""
  if row_length <= ORDINARY_ROW:
    return math.gcd(row_length, max(row_length // _STEPS, 1))
  most = row_length // ORDINARY_ROW
  return next(n for n in range(most, 0, -1) if row_length % n == 0)
