"""Which sequences share a pack: a plan's slots, filled with sequence numbers."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterator, Sequence
from typing import SupportsIndex

import numpy as np

from packing.histogram import CHUNK, Histogram, count_lengths
from packing.permutation import permute
from packing.problem import Strategy
from packing.splitmix import GAMMA, mix

_AT_ONCE = 1 << 14  # slots whose sequences are computed together; they fit into the cache


def sort_by_length(lengths: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
  """The numbers of sequences, from the shortest to the longest; equal ones in order.

  Beside the result it takes memory for a million sequences, and for a number for each
  length up to the longest.

  Args:
    lengths: int[N], in tokens.
    out: where to write; None for a new array. May be mapped from a file.

  Returns:
    uint32[N], or uint64[N] if there are more than 2^32 sequences.

  Example:
    >>> sort_by_length(np.array([3, 5, 2, 3])).tolist()
    [2, 0, 3, 1]
  """
  if out is None:
    out = np.empty(lengths.size, number_type(lengths.size))
  longest = int(lengths.max(initial=0))
  counts = count_lengths(lengths, longest)
  empty = lengths.size - int(counts.sum())
  # of the next sequence of each length
  places = np.append(0, empty + np.cumsum(counts) - counts)
  # NumPy sorts 16-bit integers by counting; longer ones fall back to a merge sort.
  small = np.uint16 if longest < 2**16 else np.uint32
  for first in range(0, lengths.size, CHUNK):
    chunk = lengths[first : first + CHUNK].astype(small, copy=False)
    order = np.argsort(chunk, kind="stable")
    ordered = chunk[order]
    begins = np.append(0, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1)
    sizes, values = np.diff(begins, append=chunk.size), ordered[begins]
    out[np.repeat(places[values] - begins, sizes) + np.arange(chunk.size)] = order + first
    places[values] += sizes
  return out


def number_type(count: int) -> type[np.unsignedinteger]:
  """`uint32` if it can number this many sequences, and otherwise `uint64`."""
  return np.uint32 if count <= 2**32 else np.uint64


class Slots:
  """The places of a plan's packs, in order; what all its assignments share.

  Its size depends on the number of different packs and on the longest length, not on the
  number of sequences.

  Args:
    histogram: the lengths of the plan.
    strategies: K different tuples of lengths in tokens.
    repeat_counts: int64[K]; how many packs use each strategy.

  Attributes:
    counts: int64[R]; the sequences of each length.
    starts: int64[R + 1]; where each length begins when sequences are sorted by length.
    first_packs: int64[K + 1]; where the packs of each strategy begin.
    first_ids: int64[K]; where the sequences of each strategy begin, packs end to end.
    first_slots: int64[K + 1]; where each strategy begins in the next two.
    lengths: int64[T]; the lengths of all strategies, end to end.
    first_ranks: int64[T]; pack `j` of a strategy takes sequence `first_ranks + j` of the
      slot's length.
    depth: the most sequences of a pack.
  """

  def __init__(
    self, histogram: Histogram, strategies: Sequence[Strategy], repeat_counts: np.ndarray
  ):
    self.counts = histogram.counts
    self.starts = np.concatenate([[0], np.cumsum(histogram.counts)])
    self.first_packs = np.concatenate([[0], np.cumsum(repeat_counts)])
    depths = np.array([len(s) for s in strategies], np.int64)
    self.first_slots = np.concatenate([[0], np.cumsum(depths)])
    self.first_ids = np.cumsum(depths * repeat_counts) - depths * repeat_counts
    self.depth = int(depths.max())
    self.lengths = np.fromiter((n for s in strategies for n in s), np.int64)
    repeats = np.repeat(repeat_counts, depths)
    by_length = np.argsort(self.lengths, kind="stable")
    taken = np.cumsum(repeats[by_length]) - repeats[by_length]
    self.first_ranks = np.empty_like(self.lengths)
    self.first_ranks[by_length] = taken - self.starts[self.lengths[by_length] - 1]
    for array in vars(self).values():
      if isinstance(array, np.ndarray):
        array.flags.writeable = False


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Assignment:
  """Which sequences share a pack.

  `len(assignment)` is the number of packs; `assignment[i]` holds the sequence numbers of
  pack `i`. Each pack is computed when it is asked for: a keyed permutation says which of
  the sequences of a length goes where (`packing.permutation`). So assignments with the same
  `slots` and `by_length` take neither time nor memory of their own.

  Attributes:
    slots: the places of the plan.
    by_length: uint32[num_sequences] or uint64; sequence numbers by length, from
      `sort_by_length`. May be mapped from a file.
    seed: selects the permutations.
  """

  slots: Slots
  by_length: np.ndarray
  seed: int

  def __repr__(self) -> str:
    return f"<Assignment: {self.by_length.size:,} sequences in {self.num_packs:,} packs>"

  @property
  def num_packs(self) -> int:
    return int(self.slots.first_packs[-1])

  def __len__(self) -> int:
    return self.num_packs

  def __getitem__(self, pack: SupportsIndex) -> np.ndarray:
    row = self.sequences([operator.index(pack)])[0]
    return row[row >= 0]

  def __iter__(self) -> Iterator[np.ndarray]:
    step = max(_AT_ONCE // self.slots.depth, 1)
    for first in range(0, self.num_packs, step):
      rows = self.sequences(np.arange(first, min(first + step, self.num_packs)))
      inside = rows >= 0
      yield from np.split(rows[inside], np.cumsum(inside.sum(1))[:-1])

  def sequences(self, packs) -> np.ndarray:
    """The sequence numbers of some packs.

    Args:
      packs: int[n]; numbers of packs, in any order.

    Returns:
      int64[n, depth]; a row for each pack, filled up with -1 behind its sequences. `depth`
      is the most sequences of a pack of the plan.

    Raises:
      IndexError: there is no pack of that number.

    Example:
      >>> import packing
      >>> plan = packing.pack([3, 5, 2], max_sequence_length=5)
      >>> plan.assign([3, 5, 2]).sequences([1, 0]).tolist()
      [[1, -1], [2, 0]]
    """
    slots, packs = self.slots, np.asarray(packs)
    if packs.ndim != 1 or (packs.size and packs.dtype.kind not in "iu"):
      raise IndexError(f"The numbers of packs are {packs!r}; expected a list of integers.")
    for wrong in packs[(packs < 0) | (packs >= self.num_packs)][:1]:
      raise IndexError(f"There are {self.num_packs} packs, numbered from 0; found {wrong}.")
    packs = packs.astype(np.int64)
    strategies = np.searchsorted(slots.first_packs, packs, side="right") - 1
    firsts, ends = slots.first_slots[strategies], slots.first_slots[strategies + 1]
    inside = np.arange(slots.depth) < (ends - firsts)[:, None]
    found = np.full(inside.shape, -1, np.int64)
    repeats = packs - slots.first_packs[strategies]  # packs before it of its strategy
    if "sequence_ids" in vars(self):  # it has been computed
      firsts = slots.first_ids[strategies] + repeats * (ends - firsts)
      found[inside] = self.sequence_ids[(firsts[:, None] + np.arange(slots.depth))[inside]]
      return found
    places = (firsts[:, None] + np.arange(slots.depth))[inside]
    of_length = slots.lengths[places] - 1
    ranks = slots.first_ranks[places] + np.repeat(repeats, ends - firsts)
    counts = slots.counts[of_length].view(np.uint64)
    shuffled = permute(ranks.view(np.uint64), counts, self._keys(of_length))
    found[inside] = self.by_length[slots.starts[of_length] + shuffled.view(np.int64)]
    return found

  def _keys(self, of_length: np.ndarray) -> np.ndarray:
    """uint64[n]; the keys of some lengths, counted from 0."""
    (key,) = np.random.SeedSequence(self.seed).generate_state(1, np.uint64)
    return mix(of_length.astype(np.uint64) * np.uint64(GAMMA) + key)

  @property
  def offsets(self) -> np.ndarray:
    """int64[num_packs + 1]; pack `i` is `sequence_ids[offsets[i]:offsets[i + 1]]`."""
    repeats, depths = np.diff(self.slots.first_packs), np.diff(self.slots.first_slots)
    return np.append(0, np.cumsum(np.repeat(depths, repeats)))

  @functools.cached_property
  def sequence_ids(self) -> np.ndarray:
    """int64[num_sequences]; the sequence numbers of all packs, end to end.

    This takes memory for all sequences; `sequences` gives those of some packs. Once it has
    been asked for, `sequences` reads from it, which is faster than to compute a few packs.
    """
    slots = self.slots
    shuffled = np.empty(self.by_length.size, self.by_length.dtype)
    for index in np.flatnonzero(slots.counts).tolist():
      start, count = int(slots.starts[index]), int(slots.counts[index])
      size, key = np.array([count], np.uint64), self._keys(np.array([index]))
      for first in range(0, count, _AT_ONCE):
        ranks = np.arange(first, min(first + _AT_ONCE, count), dtype=np.uint64)
        taken = self.by_length[start + permute(ranks, size, key).view(np.int64)]
        shuffled[start + first : start + first + ranks.size] = taken
    ids = np.empty(shuffled.size, np.int64)
    at = 0
    for number, repeats in enumerate(np.diff(slots.first_packs).tolist()):
      first, end = slots.first_slots[number : number + 2].tolist()
      packs = ids[at : at + repeats * (end - first)].reshape(repeats, end - first)
      begins = slots.starts[slots.lengths[first:end] - 1] + slots.first_ranks[first:end]
      for slot, begin in enumerate(begins.tolist()):
        packs[:, slot] = shuffled[begin : begin + repeats]
      at += packs.size
    return ids
