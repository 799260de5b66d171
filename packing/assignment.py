"""Which sequences share a pack: a plan's slots, filled with sequence numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from packing.errors import check_integer
from packing.histogram import Histogram, check_same_lengths
from packing.problem import Strategy


@dataclasses.dataclass(frozen=True, eq=False)
class Assignment:
  """Which sequences share a pack, in compressed sparse row form.

  `len(assignment)` is the number of packs; `assignment[i]` holds the sequence numbers of
  pack `i`.

  Attributes:
    offsets: int64[num_packs + 1]; pack `i` holds `sequence_ids[offsets[i]:offsets[i + 1]]`.
    sequence_ids: int64[num_sequences]; holds each sequence number exactly once.
  """

  offsets: np.ndarray
  sequence_ids: np.ndarray

  @property
  def num_packs(self) -> int:
    return self.offsets.size - 1

  def __len__(self) -> int:
    return self.num_packs

  def __getitem__(self, pack: int) -> np.ndarray:
    if not 0 <= pack < self.num_packs:
      raise IndexError(f"There are {self.num_packs} packs, numbered from 0; found {pack}.")
    return self.sequence_ids[self.offsets[pack] : self.offsets[pack + 1]]

  def __iter__(self) -> Iterator[np.ndarray]:
    return iter(np.split(self.sequence_ids, self.offsets[1:-1]) if len(self) else [])


def assign(
  histogram: Histogram,
  strategies: list[Strategy],
  repeat_counts: np.ndarray,
  lengths,
  *,
  seed: int,
) -> Assignment:
  """Implements `Plan.assign`.

  The sequences are sorted by length in one counting sort and shuffled within each length.
  Then each slot of each strategy takes the next sequences of its length. Every assignment
  of sequences to slots of their length is equally likely.
  """
  seed = check_integer("seed", seed, at_least=0)
  lengths, counts = check_same_lengths(lengths, histogram), histogram.counts
  # NumPy sorts 16-bit integers by counting; longer rows fall back to a merge sort.
  small = np.uint16 if counts.size < 2**16 else np.uint32
  by_length = np.argsort(lengths.astype(small, copy=False), kind="stable")
  starts = np.concatenate([[0], np.cumsum(counts)])
  rng = np.random.default_rng(seed)
  for index in np.flatnonzero(counts > 1).tolist():
    rng.shuffle(by_length[starts[index] : starts[index + 1]])
  sequence_ids = np.empty(lengths.size, np.int64)
  taken = starts[:-1].tolist()
  at = 0
  for strategy, count in zip(strategies, repeat_counts.tolist(), strict=True):
    depth = len(strategy)
    packs = sequence_ids[at : at + count * depth].reshape(count, depth)
    for slot, length in enumerate(strategy):
      first = taken[length - 1]
      packs[:, slot] = by_length[first : first + count]
      taken[length - 1] = first + count
    at += count * depth
  depths = np.repeat(np.array([len(s) for s in strategies], np.int64), repeat_counts)
  offsets = np.zeros(depths.size + 1, np.int64)
  np.cumsum(depths, out=offsets[1:])
  return Assignment(offsets, sequence_ids)
