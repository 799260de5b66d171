"""Rounds the fractional solution of the relaxation to a plan of whole packs."""

from __future__ import annotations

import collections
import dataclasses
import math

import numpy as np

from packing.algorithms import heuristics
from packing.algorithms.effort import Effort
from packing.algorithms.highs import SolverError
from packing.algorithms.pricing import Knapsack, weight_scale
from packing.algorithms.relaxation import Relaxation, integer_weights
from packing.problem import Problem, Strategy, Usage, usage_of

_DIVES = 4
_AT_ONCE = 4  # the first dive rounds up a quarter of the remaining packs at a time
_INTEGRAL = 1e-6
# Units of `Effort` that the dives may take, in addition to twice those of the relaxation.
_DIVES_WORK = 5 * 10**8
# Units spent on trying to save the last pack above the bound, which usually fails.
LAST_PACK_WORK = 10**8


def cover(demand: np.ndarray, slots: np.ndarray) -> np.ndarray:
  """The demand that is left after each slot takes a sequence of its size or shorter.

  Args:
    demand: int64[R]; sequences of each size, ascending in size.
    slots: int64[R]; slots of each size.

  Returns:
    int64[R]; sequences of each size that have no slot.
  """
  # From the largest size down, spare slots are handed to the next smaller size.
  surplus = np.cumsum((slots - demand)[::-1])
  lowest = np.minimum(np.minimum.accumulate(surplus), 0)
  return -np.diff(lowest, prepend=0)[::-1]


def fill(problem: Problem, usage: Usage) -> list[tuple[int, Strategy]]:
  """Puts the sequences into the slots of a plan, the longest into the largest.

  Args:
    problem: the sequences.
    usage: the packs, as slots; they must cover all sequences.

  Returns:
    Repeat counts and strategies that use every sequence exactly once. Slots and packs that
    stay empty are dropped.
  """
  blocks = [(slots, n) for slots, n in usage.items() if n]
  # All slots in descending order; equal ones in the order of their blocks.
  order = sorted(
    ((size, b, j) for b, (slots, _) in enumerate(blocks) for j, size in enumerate(slots)),
    key=lambda slot: -slot[0],
  )
  # The longest sequences are at the end.
  remaining = list(zip(problem.sizes.tolist(), problem.demand.tolist(), strict=True))
  # For each block and slot: the sequences in its copies, as (end of the copies, size).
  runs: list[list[list[tuple[int, int]]]] = [[[] for _ in slots] for slots, _ in blocks]
  for slot_size, b, j in order:
    copies, at = blocks[b][1], 0
    while at < copies and remaining:
      size, left = remaining.pop()
      if size > slot_size:
        raise AssertionError("the slots do not cover the sequences")
      used = min(left, copies - at)
      if left > used:
        remaining.append((size, left - used))
      at += used
      runs[b][j].append((at, size))
    if at < copies:
      runs[b][j].append((copies, 0))
  if remaining:
    raise AssertionError("the slots do not cover the sequences")
  packs: collections.Counter[Strategy] = collections.Counter()
  for block in runs:
    at, positions = 0, [0] * len(block)
    for end in sorted({end for run in block for end, _ in run}):
      content = [run[i][1] for run, i in zip(block, positions, strict=True)]
      packs[tuple(sorted([size for size in content if size]))] += end - at
      positions = [i + (run[i][0] == end) for run, i in zip(block, positions, strict=True)]
      at = end
  return [(n, strategy) for strategy, n in packs.items() if strategy]


class Rounding:
  """Searches for a plan of whole packs near a solution of the relaxation.

  Args:
    problem: sizes to pack.
    relaxation: the linear relaxation of the problem.
    best: a plan to begin with, as slots.
    target_gap: the number of packs above the bound that is good enough. None for a
      millionth of the bound, or for one pack if a little work (`LAST_PACK_WORK`) does not
      save it.
    effort: limits how long the search may last; so far only the relaxation has spent it.
    seed: the seed of the later dives.

  Attributes:
    best: the best plan so far, as slots.
    packs: the number of packs of `best`.
    failure: why the solver failed; None if it did not.
  """

  def __init__(
    self,
    problem: Problem,
    relaxation: Relaxation,
    *,
    best: Usage,
    target_gap: int | None,
    effort: Effort,
    seed: int,
  ):
    self._problem = problem
    self._master = relaxation.master
    self._usage = relaxation.usage
    self._bound = relaxation.bound
    gap = relaxation.bound // 10**6 if target_gap is None else target_gap
    self._enough = relaxation.bound + gap
    self._effort = effort
    self._last_pack_until = math.inf
    if target_gap is None:
      self._last_pack_until = effort.spent + LAST_PACK_WORK
    self._dives_until = 3 * effort.spent + _DIVES_WORK
    self._rng = np.random.default_rng(seed)
    self._scale = weight_scale(problem)
    self.best = best
    self.packs = best.total()
    self.failure: str | None = None

  @property
  def _dived(self) -> bool:
    """Whether the plan is good enough or the effort is over."""
    gap, spent = self.packs - self._bound, self._effort.spent
    is_near = gap <= 1 and spent > self._last_pack_until
    return gap <= 0 or is_near or spent > self._dives_until or self._effort.over

  def run(self):
    """Dives until the plan is good enough. If the solver fails, the best so far is kept."""
    if self.packs <= self._bound:
      return
    try:
      for dive in range(_DIVES):
        # Even if the effort is over, the first dive makes its first step.
        if dive and (self._dived or self.packs <= self._enough):
          break
        self._dive(dive)
    except SolverError as error:
      self.failure = str(error)

  def _dive(self, number: int):
    """Fixes the integral part, or else a few packs, solves for the rest, and repeats.

    The first dive rounds up several packs at a time, the others one pack. From the third
    dive on, the choice is partly random.
    """
    demand = self._problem.demand
    usage = self._usage
    fixed: Usage = collections.Counter()
    tried = 4 * int(demand.sum())
    while True:
      whole = np.floor(usage + _INTEGRAL).astype(np.int64)
      if not whole.any():
        fraction = usage
        if number > 1:
          fraction = usage * self._rng.uniform(0.7, 1, usage.size)
        few = 1 if number else max(int(usage.sum()) // _AT_ONCE, 1)
        whole[np.argpartition(fraction, -few)[-few:]] = 1
      self._fix(fixed, whole)
      demand = cover(demand, self._master.slots(whole))
      left = int(demand.sum())
      if 4 * left <= tried:  # not at each step: heuristics take time too
        tried = left
        self._complete(demand, fixed)
      if not left or self._dived:
        return
      solved = self._solve(demand, self.packs - 1 - fixed.total())
      if solved is None:
        return
      usage = solved

  def _complete(self, demand: np.ndarray, fixed: Usage):
    """Completes a plan: heuristics pack the remaining sequences, if there are any."""
    if not demand.any():
      self._keep(fixed)
      return
    counts = np.zeros(self._problem.capacity, np.int64)
    counts[self._problem.sizes - 1] = demand
    rest = dataclasses.replace(self._problem, counts=counts)
    for algorithm in (heuristics.lpfhp, heuristics.spfhp):
      self._keep(fixed + usage_of(algorithm(rest).packs))

  def _fix(self, fixed: Usage, counts: np.ndarray):
    """Adds `counts[p]` packs of each pattern `p`."""
    for p in np.flatnonzero(counts).tolist():
      fixed[self._master.patterns[p]] += int(counts[p])

  def _keep(self, usage: Usage):
    """Keeps a plan if it is the best so far."""
    packs = usage.total()
    if packs < self.packs:
      self.best, self.packs = usage.copy(), packs
      self._effort.report(packs=packs)

  def _solve(self, demand: np.ndarray, most: int) -> np.ndarray | None:
    """Solves the relaxation for a demand; None if it needs more packs than `most`.

    New patterns are generated only if the known ones need too many packs.
    """
    self._master.set_demand(demand)
    method = "dual"  # the last basis is still dual feasible
    while (solved := self._master.solve(method=method)) is not None:
      objective, usage, duals = solved
      if objective <= most + _INTEGRAL:
        return usage
      if self.packs <= self._enough or self._dived:
        return None
      pricing = Knapsack(self._problem, integer_weights(duals, self._scale))
      self._effort.spend(pricing.work)
      if not self._master.add_worthwhile(pricing, self._scale):
        return None
      method = "primal"
    return None
