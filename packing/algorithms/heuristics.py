"""Packing algorithms that walk the histogram once, from long to short.

They work on groups of equal packs instead of single packs, so that their time depends
on the number of lengths, not on the number of sequences.
"""

from __future__ import annotations

import bisect
import collections

import numpy as np

from packing.errors import InputError
from packing.problem import Problem, Solution, Strategy

Groups = list[tuple[int, Strategy]]  # (number of packs, what is in each of them)


def none(problem: Problem) -> Solution:
  """One sequence a pack: what padding does."""
  return Solution([(n, (size,)) for size, n in _long_to_short(problem)])


class _OpenPacks:
  """Groups of open packs by the space they have left."""

  def __init__(self, problem: Problem):
    self._depth = problem.depth
    self._smallest = int(problem.sizes[0])
    self._by_space: dict[int, Groups] = collections.defaultdict(list)
    self.spaces: list[int] = []  # that occur, ascending
    self.closed: Groups = []

  def put(self, count: int, strategy: Strategy, space: int):
    if space < self._smallest or len(strategy) == self._depth:
      self.closed.append((count, strategy))
      return
    if not self._by_space[space]:
      bisect.insort(self.spaces, space)
    self._by_space[space].append((count, strategy))

  def take(self, space: int, most: int) -> tuple[int, Strategy]:
    """Takes up to `most` packs out of the group opened last with this space."""
    groups = self._by_space[space]
    available, strategy = groups.pop()
    count = min(available, most)
    if available > count:
      groups.append((available - count, strategy))
    elif not groups:
      del self.spaces[bisect.bisect_left(self.spaces, space)]
    return count, strategy

  def peek(self, space: int) -> Strategy:
    return self._by_space[space][-1][1]

  def all(self) -> Groups:
    return self.closed + [pack for packs in self._by_space.values() for pack in packs]


def spfhp(problem: Problem) -> Solution:
  """Shortest-pack-first histogram packing: worst fit, from long to short.

  Each length goes to the open pack with the most space left, as many at a time as
  there are sequences of that length or packs of that kind. Of packs with equal space
  the one opened last is extended first, as in the reference; the exact numbers of
  Tables 1, 5 and 6 depend on it.

  Args:
    problem: sizes to pack.

  Returns:
    Repeat counts and strategies, not merged.

  References:
    Krell et al., https://arxiv.org/abs/2107.02027, section 3.1.1 and Listing 3.
  """
  packs = _OpenPacks(problem)
  for size, remaining in _long_to_short(problem):
    start = problem.capacity  # packs of this very size are extended only to the right
    while remaining:
      position = bisect.bisect_right(packs.spaces, start) - 1
      if position < 0 or packs.spaces[position] < size:
        packs.put(remaining, (size,), problem.capacity - size)
        break
      start = packs.spaces[position]
      count, strategy = packs.take(start, remaining)
      packs.put(count, (size, *strategy), start - size)
      remaining -= count
  return Solution(packs.all())


def lpfhp(problem: Problem, *, split_counts: str = "yes") -> Solution:
  """Longest-pack-first histogram packing: best fit, from long to short.

  Each length goes to the open pack with the least space left that it fits into. With
  `split_counts`, as many copies of a length go into one pack as fit there, so that 256
  alone becomes (256, 256) in a row of 512.

  Args:
    problem: sizes to pack.
    split_counts: "yes" as in Table 7, or "no" for one copy of a length at a time.

  Returns:
    Repeat counts and strategies, not merged.

  References:
    Krell et al., https://arxiv.org/abs/2107.02027, section R and Listing 8.
  """
  if split_counts not in ("yes", "no"):
    raise InputError(f'split_counts is {split_counts!r}; expected "yes" or "no".')
  packs = _OpenPacks(problem)
  for size, remaining in _long_to_short(problem):
    while remaining:
      position = bisect.bisect_left(packs.spaces, size)
      if position == len(packs.spaces):
        space, held = problem.capacity, 0
      else:
        space = packs.spaces[position]
        held = len(packs.peek(space))
      repeats = min(space // size, problem.depth - held, remaining)
      if split_counts == "no":
        repeats = 1
      count = remaining // repeats
      strategy: Strategy = ()
      if held:
        count, strategy = packs.take(space, count)
      packs.put(count, (size,) * repeats + strategy, space - repeats * size)
      remaining -= count * repeats
      if not held and split_counts == "no":
        break
  return Solution(packs.all())


def bfd(problem: Problem) -> Solution:
  """Best-fit decreasing: what it does sequence by sequence, on the histogram.

  A sequence goes to the pack with the least space that can hold it, of those to the
  one opened first. That pack is then the fullest that fits, so it takes the next
  sequence of the same length too, as long as it fits.

  Args:
    problem: sizes to pack.

  Returns:
    Repeat counts and strategies, not merged.

  References:
    Johnson, Near-optimal bin packing algorithms (1973).
  """
  smallest = int(problem.sizes[0])
  closed: Groups = []
  opened = 0
  # By space left: groups of packs (number of the first, number of packs, content).
  by_space: dict[int, list[tuple[int, int, Strategy]]] = collections.defaultdict(list)
  spaces: list[int] = []

  def put(first: int, count: int, strategy: Strategy, space: int):
    if space < smallest or len(strategy) == problem.depth:
      closed.append((count, strategy))
      return
    if not by_space[space]:
      bisect.insort(spaces, space)
    bisect.insort(by_space[space], (first, count, strategy))

  for size, remaining in _long_to_short(problem):
    while remaining:
      position = bisect.bisect_left(spaces, size)
      if position == len(spaces):
        space, first, available = problem.capacity, opened, remaining
        strategy: Strategy = ()
      else:
        space = spaces[position]
        first, available, strategy = by_space[space].pop(0)
        if not by_space[space]:
          del spaces[position]
      repeats = min(space // size, problem.depth - len(strategy))
      full = min(available, remaining // repeats)
      rest = remaining - full * repeats if full < available else 0
      if full:
        put(first, full, (size,) * repeats + strategy, space - repeats * size)
      if 0 < rest < repeats:
        put(first + full, 1, (size,) * rest + strategy, space - rest * size)
      else:
        rest = 0
      used = full + bool(rest)
      remaining -= full * repeats + rest
      if not strategy:
        opened += used
      elif used < available:
        put(first + used, available - used, strategy, space)
  still_open = [(n, s) for groups in by_space.values() for _, n, s in groups]
  return Solution(closed + still_open)


def ffd(problem: Problem) -> Solution:
  """First-fit decreasing: what it does sequence by sequence, on the histogram.

  A sequence goes to the first pack opened that can hold it. That pack takes the next
  sequence of the same length too, as long as it fits.

  Args:
    problem: sizes to pack.

  Returns:
    Repeat counts and strategies, not merged.

  References:
    Johnson, Near-optimal bin packing algorithms (1973).
  """
  closed: Groups = []
  # Groups of open packs in the order of opening.
  spaces = np.empty(0, np.int64)
  counts = np.empty(0, np.int64)
  held: list[Strategy] = []
  depths = np.empty(0, np.int64)
  for size, remaining in _long_to_short(problem):
    # How many sequences each group takes, and where they run out.
    repeats = np.minimum(spaces // size, problem.depth - depths)
    candidates = np.flatnonzero(repeats)
    taken = np.cumsum(repeats[candidates] * counts[candidates])
    whole = int(np.searchsorted(taken, remaining, side="right"))
    for g in candidates[:whole].tolist():
      held[g] = (size,) * int(repeats[g]) + held[g]
    spaces[candidates[:whole]] -= size * repeats[candidates[:whole]]
    depths[candidates[:whole]] += repeats[candidates[:whole]]
    remaining -= int(taken[whole - 1]) if whole else 0
    if whole < candidates.size:
      at = int(candidates[whole])
      space, count, strategy = int(spaces[at]), int(counts[at]), held[at]
      most = int(repeats[at])
    else:
      at, space, strategy = spaces.size, problem.capacity, ()
      most = min(space // size, problem.depth)
      count = -(-remaining // most)
    # Within the last group: some packs full, one partly, the others as they were.
    full, rest = divmod(remaining, most)
    parts = [(full, most), (bool(rest), rest), (count - full - bool(rest), 0)]
    parts = [(n, r) for n, r in parts if n]
    end = at + 1 if strategy else at
    new_spaces = [space - r * size for _, r in parts]
    new_depths = [len(strategy) + r for _, r in parts]
    spaces = np.concatenate([spaces[:at], new_spaces, spaces[end:]]).astype(np.int64)
    depths = np.concatenate([depths[:at], new_depths, depths[end:]]).astype(np.int64)
    counts = np.concatenate([counts[:at], [n for n, _ in parts], counts[end:]])
    counts = counts.astype(np.int64)
    held[at:end] = [(size,) * r + strategy for _, r in parts]
    # Groups that take nothing any more are closed.
    done = (spaces < problem.sizes[0]) | (depths == problem.depth)
    if done.any():
      closed += [(int(counts[g]), held[g]) for g in np.flatnonzero(done).tolist()]
      spaces, depths, counts = spaces[~done], depths[~done], counts[~done]
      held = [held[g] for g in np.flatnonzero(~done).tolist()]
  return Solution(closed + list(zip(counts.tolist(), held, strict=True)))


def _long_to_short(problem: Problem) -> list[tuple[int, int]]:
  return list(zip(problem.sizes[::-1].tolist(), problem.demand[::-1].tolist(), strict=True))
