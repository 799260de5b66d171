"""Sequences that fill the batches of every way to train or to predict."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

import packing
from benchmarks.lengths import draw_lengths
from lab.timing.models import VOCAB_SIZE
from lab.timing.steps import MASK_RATE
from pipeline.batches.masking import Masking, mask_tokens
from pipeline.batches.packed import PackedBatch, pack_rows
from pipeline.store import SCHEMA, SequenceStore, StoredSequence

PAD, CLS, SEP, MASK, FIRST_WORD = 0, 101, 102, 103, 999
DEPTH = 3  # most sequences in a pack
BUCKETS = 4


@dataclasses.dataclass
class Sample:
  """Sequences and their layouts.

  Attributes:
    store: the sequences.
    vocab_size: of their tokens.
    batches: by layout, all batches: int64[B, M] sequence numbers, -1 in empty slots, and
      the length of the rows.
    check: int64[C], the sequences of the first few packs; they fit into one batch with one
      sequence a row.
  """

  store: SequenceStore
  vocab_size: int
  batches: dict[str, list[tuple[np.ndarray, int]]]
  check: np.ndarray

  def lay_out(self, ids: np.ndarray, row_length: int) -> PackedBatch:
    """The masked rows of a batch; a sequence has the same masked tokens in all layouts."""
    masking = Masking(MASK_RATE, 0, MASK, (PAD, CLS, SEP, MASK), self.vocab_size)
    rows = pack_rows(self.store, ids, row_length=row_length)
    return mask_tokens(rows, masking, epochs=np.zeros(len(ids), np.int64))

  def check_batch(self, layout: str) -> PackedBatch:
    """The sequences of `check`, in the shape of the layout's largest batches."""
    ids, row_length = max(self.batches[layout], key=lambda batch: batch[1])
    rows = np.full_like(ids, -1)
    if layout == "packs":
      taken = np.isin(ids, self.check).any(axis=1)
      rows[taken] = ids[taken]
    else:
      rows[: self.check.size, 0] = self.check
    return self.lay_out(rows, row_length)


def draw(
  histogram: packing.Histogram,
  *,
  sequences: int,
  batch_size: int,
  vocab_size: int,
) -> Sample:
  """Draws sequences that fill the batches of every layout.

  A large sample is packed, and packs are drawn at random until they fill all batches. So no
  layout pays for a last batch that is partly empty, which a whole dataset has only once.

  Args:
    histogram: of lengths, in tokens; the longest is S.
    sequences: N, a multiple of `batch_size`.
    batch_size: sequences in a batch with one sequence a row; even, and above `DEPTH`.
      Batches of packs have half as many rows.
    vocab_size: of random tokens.

  Raises:
    InputError: the numbers do not fit together, or none of many draws fits.
  """
  if batch_size <= DEPTH or batch_size % 2:
    raise packing.InputError(
      f"The batch size is {batch_size}; expected an even number above {DEPTH}, the "
      "sequences of one pack."
    )
  if sequences < batch_size or sequences % batch_size:
    raise packing.InputError(
      f"{sequences} sequences do not fill batches of {batch_size}; expected a multiple."
    )
  rng = np.random.default_rng(0)
  row = histogram.max_sequence_length
  lengths = np.maximum(draw_lengths(histogram, 64 * sequences, rng), 4)
  pool = packing.Histogram.from_lengths(lengths, max_sequence_length=row)
  plan = packing.pack(pool, algorithm="optimal", max_sequences_per_pack=DEPTH)
  assignment = plan.assign(lengths, seed=0)
  packs = np.full((assignment.num_packs, DEPTH), -1, np.int64)
  sizes = np.diff(assignment.offsets)
  packs[np.arange(DEPTH) < sizes[:, None]] = assignment.sequence_ids
  edges = -(-row * np.arange(1, BUCKETS + 1) // BUCKETS)
  bucket = np.append(np.searchsorted(edges, lengths), BUCKETS)  # the last: an empty slot
  counts = (bucket[packs][:, :, None] == np.arange(BUCKETS)).sum(axis=1)
  half = batch_size // 2
  rows = half * max(1, round(sequences * len(packs) / lengths.size / half))
  chosen = _full_batches(counts, sequences, rows, batch_size, rng)

  packs = packs[chosen]
  old = packs[packs >= 0]
  new = np.full(lengths.size, -1)
  new[old] = rng.permutation(old.size)
  packs = np.where(packs >= 0, new[packs], -1)
  lengths = lengths[old[np.argsort(new[old])]]
  sequences_of = random_sequences(lengths, rng, vocab_size)
  store = SequenceStore.from_sequences(sequences_of, SCHEMA)

  def one_a_row(ids: np.ndarray, longest: Callable[[np.ndarray], int]) -> list:
    batches = ids.reshape(-1, batch_size, 1)
    return [(batch, int(longest(store.lengths[batch]))) for batch in batches]

  numbers = np.arange(sequences)
  by_length = np.argsort(lengths, kind="stable")
  batches = {
    "packs": [(ids, row) for ids in packs.reshape(-1, half, DEPTH)],
    "rows": one_a_row(numbers, lambda _: row),
    "buckets": one_a_row(by_length, lambda x: edges[np.searchsorted(edges, x.max())]),
    "longest": one_a_row(numbers, np.max),
    "sorted": one_a_row(by_length, np.max),
  }
  first = packs[:half]
  few = first[(first >= 0).sum(axis=1).cumsum() <= batch_size]
  return Sample(store, vocab_size, batches, np.sort(few[few >= 0]))


def _full_batches(
  counts: np.ndarray, sequences: int, rows: int, batch_size: int, rng: np.random.Generator
) -> np.ndarray:
  """Numbers of `rows` packs that fill all batches.

  `counts` has, for each pack, its sequences in each bucket, int[packs, buckets].
  """
  for _ in range(500):
    order = rng.permutation(len(counts))
    sums = np.cumsum(np.pad(counts[order], ((1, 0), (0, 0))), axis=0)
    windows = sums[rows:] - sums[:-rows]  # neighbours in a random order are a random draw
    full = (windows.sum(axis=1) == sequences) & (windows % batch_size == 0).all(axis=1)
    if full.any():
      return order[(start := int(full.argmax())) : start + rows]
  raise packing.InputError(
    f"No draw of {sequences} sequences in {rows} packs fills batches of {batch_size} in "
    f"each of {BUCKETS} buckets. Take more sequences, or smaller batches."
  )


def random_sequences(
  lengths: np.ndarray, rng: np.random.Generator, vocab_size: int = VOCAB_SIZE
) -> Iterator[StoredSequence]:
  """Sequences of these lengths, at least 2 tokens: random words between [CLS] and [SEP]."""
  for length in lengths.tolist():
    words = rng.integers(min(FIRST_WORD, vocab_size // 2), vocab_size, length - 2)
    yield StoredSequence([CLS, *words.tolist(), SEP], length // 2, int(rng.integers(2)))
