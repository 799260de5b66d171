"""Packing algorithms that go through the histogram once, from long to short.

They work on groups of equal packs instead of single packs, so their time depends on the
number of lengths, not on the number of sequences. Each returns repeat counts and
strategies; equal strategies are not merged.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import itertools
from collections.abc import Callable

import numpy as np

from packing.errors import check, check_integer
from packing.problem import Problem, Solution, Strategy

Groups = list[tuple[int, Strategy]]  # (number of packs, content of each)


def none(problem: Problem) -> Solution:
  """Puts one sequence in each pack: ordinary padding."""
  return Solution([(n, (size,)) for size, n in _long_to_short(problem)])


class _OpenPacks:
  """Groups of equal open packs, by the space that is left in them."""

  def __init__(self, problem: Problem):
    self._depth = problem.depth
    self._smallest = int(problem.sizes[0])
    # Groups as (number of the first pack, number of packs, content), in ascending order.
    self._by_space: dict[int, list[tuple[int, int, Strategy]]]
    self._by_space = collections.defaultdict(list)
    self.spaces: list[int] = []  # the spaces that occur, ascending
    self.closed: Groups = []

  def put(self, first: int, count: int, strategy: Strategy, space: int):
    if space < self._smallest or len(strategy) == self._depth:
      self.closed.append((count, strategy))
      return
    if not self._by_space[space]:
      bisect.insort(self.spaces, space)
    bisect.insort(self._by_space[space], (first, count, strategy))

  def take(self, space: int, *, last: bool) -> tuple[int, int, Strategy]:
    """Removes and returns the first or the last group with this space."""
    groups = self._by_space[space]
    group = groups.pop(-1 if last else 0)
    if not groups:
      del self.spaces[bisect.bisect_left(self.spaces, space)]
    return group

  def all(self) -> Groups:
    still_open = [(n, s) for groups in self._by_space.values() for _, n, s in groups]
    return self.closed + still_open


def spfhp(problem: Problem) -> Solution:
  """Shortest-pack-first histogram packing: worst fit, from long to short.

  Unlike worst-fit decreasing, it opens a pack for each of the sequences of a length that
  fit nowhere, so equal ones do not share a new pack.

  Each length goes to the open packs with the most space left, as many at a time as there
  are sequences of that length or packs of that kind. Among packs with equal space, the one
  opened last is extended first, as in the reference code. The exact numbers of Tables 1, 5
  and 6 depend on that order.

  References:
    Krell et al., https://arxiv.org/abs/2107.02027, section 3.1.1 and Listing 3.
  """
  packs, numbers = _OpenPacks(problem), itertools.count()
  for size, remaining in _long_to_short(problem):
    start = problem.capacity  # packs extended by this size end up left of `start`
    while remaining:
      position = bisect.bisect_right(packs.spaces, start) - 1
      if position < 0 or packs.spaces[position] < size:
        packs.put(next(numbers), remaining, (size,), problem.capacity - size)
        break
      start = packs.spaces[position]
      first, available, strategy = packs.take(start, last=True)
      count = min(available, remaining)
      if count < available:
        packs.put(first, available - count, strategy, start)
      packs.put(next(numbers), count, (size, *strategy), start - size)
      remaining -= count
  return Solution(packs.all())


def lpfhp(problem: Problem, *, split_counts: str = "yes") -> Solution:
  """Longest-pack-first histogram packing: best fit, from long to short.

  Each length goes to the open pack with the least space that can hold it. With
  `split_counts`, a pack takes as many copies of a length as fit, so that 256 alone becomes
  (256, 256) in a row of 512.

  Args:
    problem: sizes to pack.
    split_counts: "yes" as in Table 7, or "no" for one copy of a length at a time.

  References:
    Krell et al., https://arxiv.org/abs/2107.02027, section R and Listing 8.
  """
  check(split_counts in ("yes", "no"), "split_counts", split_counts, '"yes" or "no"')
  packs, numbers = _OpenPacks(problem), itertools.count()
  for size, remaining in _long_to_short(problem):
    while remaining:
      position = bisect.bisect_left(packs.spaces, size)
      space, first, available = problem.capacity, 0, remaining
      strategy: Strategy = ()
      if position < len(packs.spaces):
        space = packs.spaces[position]
        first, available, strategy = packs.take(space, last=True)
      repeats = min(space // size, problem.depth - len(strategy), remaining)
      if split_counts == "no":
        repeats = 1
      count = min(remaining // repeats, available)
      if strategy and count < available:
        packs.put(first, available - count, strategy, space)
      packs.put(next(numbers), count, (size,) * repeats + strategy, space - repeats * size)
      remaining -= count * repeats
  return Solution(packs.all())


def bfd(problem: Problem) -> Solution:
  """Best-fit decreasing on the histogram; the same packs as sequence by sequence.

  A sequence goes to the pack with the least space that can hold it, and among equal packs
  to the one opened first. That pack is then the fullest that fits, so it also takes the
  next sequences of the same length, as many as fit.

  References:
    Johnson, Near-optimal bin packing algorithms (1973).
  """
  packs, opened = _OpenPacks(problem), 0
  for size, remaining in _long_to_short(problem):
    while remaining:
      position = bisect.bisect_left(packs.spaces, size)
      space, first, available = problem.capacity, opened, remaining
      strategy: Strategy = ()
      if position < len(packs.spaces):
        space = packs.spaces[position]
        first, available, strategy = packs.take(space, last=False)
      repeats = min(space // size, problem.depth - len(strategy))
      full = min(available, remaining // repeats)
      rest = min(remaining - full * repeats, repeats - 1) if full < available else 0
      if full:
        packs.put(first, full, (size,) * repeats + strategy, space - repeats * size)
      if rest:
        packs.put(first + full, 1, (size,) * rest + strategy, space - rest * size)
      used = full + bool(rest)
      remaining -= full * repeats + rest
      if not strategy:
        opened += used
      elif used < available:
        packs.put(first + used, available - used, strategy, space)
  return Solution(packs.all())


def ffd(problem: Problem) -> Solution:
  """First-fit decreasing on the histogram; the same packs as sequence by sequence.

  Of the packs that can hold a sequence, the one opened first takes it. That pack also takes
  the next sequences of the same length, as many as fit.

  References:
    Johnson, Near-optimal bin packing algorithms (1973).
  """
  closed: Groups = []
  # Groups of equal open packs in the order of opening.
  spaces, counts, depths = (np.empty(0, np.int64) for _ in range(3))
  contents: list[Strategy] = []
  for size, remaining in _long_to_short(problem):
    # How many sequences each group takes, and the group where the sequences run out.
    repeats = np.minimum(spaces // size, problem.depth - depths)
    candidates = np.flatnonzero(repeats)
    taken = np.cumsum(repeats[candidates] * counts[candidates])
    num_filled = int(np.searchsorted(taken, remaining, side="right"))
    filled = candidates[:num_filled]
    for g in filled.tolist():
      contents[g] = (size,) * int(repeats[g]) + contents[g]
    spaces[filled] -= size * repeats[filled]
    depths[filled] += repeats[filled]
    remaining -= int(taken[num_filled - 1]) if num_filled else 0
    if num_filled < candidates.size:
      at = int(candidates[num_filled])
      space, count, strategy = int(spaces[at]), int(counts[at]), contents[at]
      most = int(repeats[at])
    else:
      at, space, strategy = spaces.size, problem.capacity, ()
      most = min(space // size, problem.depth)
      count = -(-remaining // most)
    # In the last group, some packs are filled, one partly, and the others do not change.
    full, rest = divmod(remaining, most)
    parts = [(full, most), (bool(rest), rest), (count - full - bool(rest), 0)]
    parts = [(n, r) for n, r in parts if n]
    end = at + 1 if strategy else at

    def put(values, new, at=at, end=end):
      return np.concatenate([values[:at], new, values[end:]]).astype(np.int64)

    spaces = put(spaces, [space - r * size for _, r in parts])
    depths = put(depths, [len(strategy) + r for _, r in parts])
    counts = put(counts, [n for n, _ in parts])
    contents[at:end] = [(size,) * r + strategy for _, r in parts]
    # Groups that can take no more sequences are closed.
    done = (spaces < problem.sizes[0]) | (depths == problem.depth)
    if done.any():
      closed += [(int(counts[g]), contents[g]) for g in np.flatnonzero(done).tolist()]
      spaces, depths, counts = spaces[~done], depths[~done], counts[~done]
      contents = [contents[g] for g in np.flatnonzero(~done).tolist()]
  return Solution(closed + list(zip(counts.tolist(), contents, strict=True)))


def mffd(problem: Problem) -> Solution:
  """Modified first-fit decreasing: pairs medium and small sequences with long ones first.

  Long sequences take more than half of a row, medium ones more than a third, small ones
  more than a sixth. Each long sequence opens a pack. From the fullest pack to the emptiest,
  each takes the longest medium sequence that fits. Then, from the emptiest to the fullest,
  each pack without a medium one takes the shortest small sequence and the longest other
  small one that fits, if two fit. Last, each pack takes what fits, the longest first; FFD
  packs the rest.

  References:
    Johnson and Garey, A 71/60 theorem for bin packing (1985). Krell et al.,
    https://arxiv.org/abs/2107.02027, section F.2, names it.
  """
  row, depth = problem.capacity, problem.depth
  left = dict(_long_to_short(problem))
  groups: Groups = [(n, (size,)) for size, n in left.items() if 2 * size > row]
  left |= {content[0]: 0 for _, content in groups}

  def longest(space: int, *, above: int = 0) -> int:
    """The longest that is left, fits and exceeds `above` sixths of a row; 0 for none."""
    sizes = (s for s, n in left.items() if n and s <= space and 6 * s > above * row)
    return next(sizes, 0)

  def medium(content: Strategy) -> Strategy:
    size = longest(row - sum(content), above=2) if len(content) == 1 < depth else 0
    return (size,) if size else ()

  def two_small(content: Strategy) -> Strategy:
    small = [s for s, n in left.items() if n and row < 6 * s and 3 * s <= row]
    if len(content) > 1 or depth < 3 or not small:
      return ()
    left[small[-1]] -= 1
    other = longest(row - sum(content) - small[-1], above=1)
    left[small[-1]] += 1
    return (small[-1], other) if other else ()

  def any_size(content: Strategy) -> Strategy:
    space, room = row - sum(content), depth - len(content)
    size = longest(space) if room else 0
    return (size,) * min(space // size, room, left[size]) if size else ()

  def fill(groups: Groups, choose: Callable[[Strategy], Strategy]) -> Groups:
    """Gives the packs, in order, what `choose` takes for their content."""
    done: Groups = []
    while groups:
      packs, content = groups.pop(0)
      sizes = choose(content)
      used = min([packs, *(left[s] // sizes.count(s) for s in sizes)])
      for size in sizes:
        left[size] -= used
      if packs > used:
        groups.insert(0, (packs - used, content))
      if sizes:
        groups.insert(0, (used, (*sizes, *content)))
      else:
        done.append((packs, content))
    return done

  groups = fill(groups, medium)
  groups = fill(groups[::-1], two_small)[::-1]
  groups = fill(groups, any_size)
  counts = np.zeros_like(problem.counts)
  for size, n in left.items():
    counts[size - 1] = n
  rest = ffd(dataclasses.replace(problem, counts=counts)).packs if counts.any() else []
  return Solution(groups + rest)


def harmonic(problem: Problem, *, classes: int = 12) -> Solution:
  """Harmonic-k: sequences of a class share packs with their own class only.

  A sequence of more than 1 / (j + 1) and at most 1 / j of a row is of class j; `j` of them
  share a pack. Those of at most 1 / k of a row are packed by next-fit.

  Args:
    problem: sizes to pack.
    classes: k, at least 1.

  References:
    Lee and Lee, A simple on-line bin-packing algorithm (1985). Krell et al.,
    https://arxiv.org/abs/2107.02027, section F.2, names it.
  """
  check_integer("classes", classes, at_least=1)
  packs: Groups = []
  content: Strategy = ()  # of the pack that is open
  for size, remaining in _long_to_short(problem):
    kind = min(problem.capacity // size, classes)
    is_last = kind == classes
    if content and min(problem.capacity // content[-1], classes) != kind:
      packs.append((1, content))
      content = ()
    while remaining:
      space = problem.capacity - sum(content)
      room = min(
        (problem.depth if is_last else min(kind, problem.depth)) - len(content),
        space // size,
      )
      if not room:
        packs.append((1, content))
        content = ()
        continue
      if not content and remaining >= room:
        packs.append((remaining // room, (size,) * room))
        remaining %= room
        continue
      used = min(room, remaining)
      content += (size,) * used
      remaining -= used
  return Solution([*packs, (1, content)] if content else packs)


def _long_to_short(problem: Problem) -> list[tuple[int, int]]:
  return list(zip(problem.sizes[::-1].tolist(), problem.demand[::-1].tolist(), strict=True))
