"""Next-fit: a sequence that does not fit in the current pack starts the next one."""

from __future__ import annotations

import collections

import numpy as np

from packing.errors import UnsolvedError
from packing.problem import Problem, Solution, Strategy

MOST = 2**31  # sequences, which are held in memory one by one
_CHUNK = 2**20  # sequences


def greedy(problem: Problem, *, order: np.ndarray | None = None, seed: int = 0) -> Solution:
  """Packs sequences in their order of arrival, as T5 and others do.

  A sequence joins the current pack if it fits; otherwise that pack is closed, and the
  sequence starts a new one.

  Args:
    problem: sizes to pack.
    order: int[num_sequences]; the sizes in their order of arrival; None for a random
      order, as in section H. (`packing.pack` takes lengths here.)
    seed: the seed of the random order.

  Returns:
    Repeat counts and strategies, with equal strategies merged.

  Raises:
    UnsolvedError: without an order, there are more than `MOST` sequences.

  References:
    Krell et al., https://arxiv.org/abs/2107.02027, section H.
  """
  if order is None:
    if (number := sum(problem.demand.tolist())) > MOST:
      raise UnsolvedError(
        f"greedy takes at most {MOST:,} sequences; found {number:,}. Use lpfhp or another."
      )
    small = np.uint16 if problem.capacity < 2**16 else np.uint32
    order = np.repeat(problem.sizes.astype(small), problem.demand)
    np.random.default_rng(seed).shuffle(order)
  ends = np.cumsum(order, dtype=np.int64)
  starts = _pack_starts(ends, problem)
  depths = np.diff(starts, append=order.size)
  packs: collections.Counter[Strategy] = collections.Counter()
  for depth in np.unique(depths).tolist():
    first = starts[depths == depth]
    content = np.sort(order[first[:, None] + np.arange(depth)], axis=1)
    kinds, counts = _count_packs(content, problem.capacity)
    packs.update(dict(zip(map(tuple, kinds.tolist()), counts.tolist(), strict=True)))
  return Solution([(n, strategy) for strategy, n in packs.items()])


def _pack_starts(ends: np.ndarray, problem: Problem) -> np.ndarray:
  """int64[num_packs]; the index of the first sequence of each pack.

  Args:
    ends: int64[num_sequences]; tokens up to the end of each sequence.
    problem: gives the capacity and the depth.
  """
  starts, at, number = [], 0, ends.size
  while at < number:
    # For many sequences at once: where would a pack that starts here end?
    base = at
    stop = min(base + _CHUNK, number)
    before = np.concatenate([ends[base - 1 : base] if base else [0], ends[base : stop - 1]])
    after = np.searchsorted(ends, before + problem.capacity, side="right")
    following = np.minimum(after, np.arange(base, stop) + problem.depth).tolist()
    while at < stop:
      starts.append(at)
      at = following[at - base]
  return np.array(starts, np.int64)


def _count_packs(packs: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
  """The different packs of one depth, and how often each occurs."""
  bits = int(capacity).bit_length()
  if bits * packs.shape[1] > 63:
    kinds, counts = np.unique(packs, axis=0, return_counts=True)
    return kinds, counts
  keys = np.zeros(packs.shape[0], np.int64)  # one integer per pack sorts faster
  for slot in packs.T:
    keys = (keys << bits) | slot
  _, index, counts = np.unique(keys, return_index=True, return_counts=True)
  return packs[index], counts
