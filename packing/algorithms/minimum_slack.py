"""Minimum bin slack: each pack is filled to the end by looking two sequences ahead.

Best fit takes the largest sequence that fits and lives with the gap that is left. Here a
pack begins with the longest sequence left, and each next one is the larger of the best
*pair* that fits, so the last two fill the pack exactly where any two can. Packs are made on
groups of equal sequences, as in `heuristics`, so the time depends on the number of lengths.

Where the depth limit binds, long sequences must share their packs with many short ones.
Then a pack first takes sequences of about the mean size that its space and its share of the
sequences left allow.
"""

from __future__ import annotations

import collections
import math

import numpy as np

from packing.algorithms.effort import Effort
from packing.problem import Problem, Solution, Strategy

# How a pack is filled, as `spare` of `fill` and the power of the sizes that are its values.
# Each is the best for some data.
_BY_PAIRS: list[tuple[int | None, float]] = [(None, 1.0), (None, 3.0)]
_EVENLY: list[tuple[int | None, float]] = [(1, 0.9), (2, 1.0), (1, 1.0)]
_LAST: list[tuple[int | None, float]] = [(1, 1.05), (None, 1.2), (None, 2.0), (None, 4.0)]
_DEEP = 4  # times the mean number of sequences in a pack; such a depth limit hardly binds
_BINDING = 0.98  # the share of all slots that must be used for the depth limit to bind
_WORK = 25  # units of `Effort` for each size in each pattern


def mbs(problem: Problem) -> Solution:
  """Minimum bin slack, in the best of nine variants.

  Args:
    problem: sizes to pack.

  Returns:
    The plan with the fewest packs; `details` has the variant that made it.

  References:
    Gupta and Ho, A new heuristic algorithm for the one-dimensional bin-packing problem
    (1999). Fleszar and Hindi (2002) begin each pack with the longest item.
  """
  best = best_of(problem, effort=Effort())
  assert best is not None
  return best


def best_of(problem: Problem, *, effort: Effort, most: float = math.inf) -> Solution | None:
  """The best plan of the variants; the first at the simple bound ends them.

  Args:
    problem: sizes to pack.
    effort: ends the variants, too.
    most: the most work for all variants. None is returned if it is too little for one.
  """
  number, bound = int(problem.demand.sum()), problem.simple_bound
  is_deep = problem.depth * bound >= _DEEP * number
  patterns = min(problem.sizes.size, bound)  # about
  work = _WORK * problem.sizes.size * patterns
  best: Solution | None = None
  first = _BY_PAIRS + _EVENLY if is_deep else _EVENLY + _BY_PAIRS
  for spare, power in first + _LAST:
    most -= work
    if most < 0 or effort.over:
      break
    effort.spend(work)
    packs = fill(problem, (problem.sizes / problem.capacity) ** power, spare=spare)
    solution = Solution(packs, details={"spare": spare, "power": power})
    if best is None or solution.num_packs < best.num_packs:
      best = solution
    if best.num_packs == bound:
      break
  return best


def fill(
  problem: Problem, values: np.ndarray, *, spare: int | None = None
) -> list[tuple[int, Strategy]]:
  """One variant.

  Args:
    problem: sizes to pack.
    values: float64[R]; what a sequence of each size is worth, ascending. A pair is worth
      their sum. With sizes as values it leaves the smallest gap; a higher power of them
      prefers one long sequence, a lower one two equal ones.
    spare: a pack aims at the mean number of sequences in the packs still to be made, less
      `spare`, so that short sequences are left for the last packs. None for no aim.
  """
  capacity, depth = problem.capacity, problem.depth
  sizes, left = problem.sizes, problem.demand.copy()
  number, tokens = int(left.sum()), int(sizes @ left)
  packs: list[tuple[int, Strategy]] = []
  while number:
    if not left.all():
      sizes, left, values = (x[left > 0] for x in (sizes, left, values))
    pack = _Pack(sizes, left.copy(), values, capacity, depth)
    pack.add(sizes.size - 1)
    if spare is not None:
      rest = max(-(-tokens // capacity), -(-number // depth))  # packs still to be made
      aim = min(-(-number // rest) - spare, depth)
      if number >= _BINDING * rest * depth:
        aim = depth
      pack.fill_evenly(aim - 1)
    pack.fill_by_pairs()
    content = collections.Counter(pack.content)
    repeats = min(int(left[i]) // times for i, times in content.items())
    for i, times in content.items():
      left[i] -= times * repeats
    packs.append((repeats, tuple(sizes[pack.content].tolist())))
    number -= repeats * len(pack.content)
    tokens -= repeats * (capacity - pack.space)
  return packs


class _Pack:
  """A pack that is being filled, and the sequences that are left for it."""

  def __init__(self, sizes, left, values, capacity: int, depth: int):
    self.sizes, self.left, self.values = sizes, left, values
    self.space, self.room = capacity, depth
    self.content: list[int] = []  # indices of sizes

  def add(self, i: int):
    self.content.append(i)
    self.left[i] -= 1
    self.space -= int(self.sizes[i])
    self.room -= 1

  def fitting(self) -> np.ndarray:
    """The indices of sizes that are left and fit, ascending."""
    return np.flatnonzero(self.left[: self.sizes.searchsorted(self.space, side="right")])

  def fill_evenly(self, count: int):
    """Adds sequences of the mean size that `count` of them may have, but the last two."""
    while count > 2 and (fit := self.fitting()).size:
      self.add(int(fit[np.abs(self.sizes[fit] - self.space / count).argmin()]))
      count -= 1

  def fill_by_pairs(self):
    """Adds the larger of the best pair until nothing fits."""
    while self.room and (fit := self.fitting()).size:
      self.add(self._larger_of_best_pair(fit) if self.room > 1 else int(fit[-1]))

  def _larger_of_best_pair(self, fit: np.ndarray) -> int:
    """Of the one or two sequences of the highest value that fit together, the larger."""
    sizes, values = self.sizes[fit], self.values[fit]
    at_most = np.arange(fit.size) - (self.left[fit] < 2)  # the second is not the larger
    second = np.minimum(sizes.searchsorted(self.space - sizes, side="right") - 1, at_most)
    total = values + np.where(second >= 0, values[second], 0)
    return int(fit[fit.size - 1 - total[::-1].argmax()])  # of equal pairs, the largest
