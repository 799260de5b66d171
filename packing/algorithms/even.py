"""Finds a plan with the same number of packs, whose packs cost attention nearly the same.

The objective is the sum over packs of the squared distance of a pack's squares (`spread`)
from their mean. Column generation solves the linear relaxation, in which each size is used
as often as it occurs and the number of packs is fixed. A pack's cost is convex in its
squares, so a tangent underestimates it, and a knapsack finds the best pack under a tangent.
The best packs under several tangents become columns. If none of them improves the solution,
a table of all sums of squares finds packs that do.

The solution is rounded down, and the remaining sequences are packed into the remaining
packs. If that fails, more packs are dissolved, in the end all of them: then the plan stays
as it was.
"""

from __future__ import annotations

import collections
import dataclasses
import math

import highspy
import numpy as np

from packing.algorithms import highs
from packing.algorithms.effort import Effort
from packing.algorithms.highs import SolverError
from packing.algorithms.optimal import optimal
from packing.algorithms.pricing import Knapsack, most_items
from packing.algorithms.progress import Progress
from packing.algorithms.spread import Squares, Table, weight_scale
from packing.errors import InputError
from packing.problem import Problem, Solution, Strategy, Usage, usage_of

MAX_SQUARES = 2**29  # of a pack; its square, with a sign, must fit in 61 bits
_WORK = 6 * 10**9  # units of `Effort`: about a minute
_TANGENTS = 16
_FEW_PATTERNS = 5_000  # up to so many possible packs, all are listed
_PROGRAMME = 2_000  # up to so many packs, an integer programme is worth its time
_PROGRAMME_WORK = 5 * 10**8
_INTEGRAL = 1e-6


def check_squares(squares: Squares):
  """Refuses what `even` cannot compute.

  Raises:
    InputError: rows are too long for sums of squares in 64 bits.
  """
  if squares.most > MAX_SQUARES:
    raise InputError(
      f"A pack can have {squares.most:,} pairs of tokens; expected at most {MAX_SQUARES:,} "
      f"for even packs, rows of about {math.isqrt(MAX_SQUARES):,} tokens."
    )


def even(
  squares: Squares, solution: Solution, *, seed: int = 0, progress: Progress | None = None
) -> tuple[Solution, np.ndarray | None]:
  """Packs the same sequences into the same number of packs, of nearly equal cost.

  Args:
    squares: the squares of the problem; `num_packs` is that of the solution.
    solution: a plan to start from. Its weights and details remain valid and are kept.
    seed: the seed of the search for a plan of the sequences that rounding leaves over.
    progress: shows the spread so far; with it, the first Ctrl-C ends the search.

  Returns:
    The plan, and the weights for `spread_bound`: int64[R], or None if there are none.
  """
  effort = Effort(work=_WORK, progress=progress)
  before = usage_of(solution.packs)
  with effort.stoppable():
    try:
      search = _Search(squares, before, effort, seed)
      after, weights = search.run()
    except SolverError as error:
      details = solution.details | {"even": "failed", "even_failure": str(error)}
      return dataclasses.replace(solution, details=details), None
  details = {"even": "column generation", "even_patterns": len(search.master.patterns)}
  if effort.over:
    details["even_stopped_by"] = effort.stopped_by
  packs = [(n, pack) for pack, n in after.items()]
  return Solution(packs, solution.weights, solution.details | details), weights


class _Master:
  """The linear programme over the packs known so far; squares are relative to the mean."""

  def __init__(self, squares: Squares, demand: np.ndarray, num_packs: int):
    self.squares = squares
    self.patterns: list[Strategy] = []
    self.known: set[Strategy] = set()
    self.rows = demand.size
    self.mean = squares.total / squares.num_packs
    self.unit = 2.0 ** max(int(demand.max()).bit_length() - 20, 0)
    right = np.append(demand, num_packs) / self.unit
    # Primal simplex: new columns keep the last basis feasible.
    self.lp = highs.new_programme(right, right, simplex_strategy=4)

  def cost(self, pack: Strategy) -> float:
    return (self.squares.of(pack) / self.mean - 1) ** 2

  def add(self, packs) -> int:
    """Adds the packs that are not known yet; returns their number."""
    new = [pack for pack in dict.fromkeys(map(_key, packs)) if pack not in self.known]
    if not new:
      return 0
    self.known.update(new)
    self.patterns += new
    starts: list[int] = []
    rows: list[int] = []
    values: list[int] = []
    for pack in new:
      starts.append(len(rows))
      held = collections.Counter(pack)
      rows += [*np.searchsorted(self.squares.problem.sizes, list(held)), self.rows]
      values += [*held.values(), 1]
    costs = np.array([self.cost(pack) for pack in new])
    highs.add_columns(self.lp, costs, starts=starts, rows=rows, values=values)
    return len(new)

  def solve(self, effort: Effort) -> tuple[np.ndarray, np.ndarray] | None:
    """The usage, float64[P], and the duals, float64[R + 1]; None if the effort is over.

    Raises:
      SolverError: HiGHS failed.
    """
    status = highs.run(self.lp, effort, columns=self.rows + len(self.patterns))
    if status is None:
      return None
    if status != highspy.HighsModelStatus.kOptimal:
      raise SolverError(f"HiGHS ended with {self.lp.modelStatusToString(status)}.")
    solution = self.lp.getSolution()
    return np.array(solution.col_value) * self.unit, np.array(solution.row_dual)

  def solve_whole(self, start: Usage, effort: Effort) -> Usage | None:
    """The best integer solution found within the limit of work, starting from a guess."""
    highs.set_options(self.lp, mip_rel_gap=1e-6, simplex_iteration_limit=highspy.kHighsIInf)
    guess = highspy.HighsSolution()
    guess.col_value = [float(start[pack]) for pack in self.patterns]
    highs.check(self.lp.setSolution(guess))
    values = highs.solve_integers(
      self.lp,
      range(len(self.patterns)),
      effort,
      rows=self.rows,
      work_limit=_PROGRAMME_WORK,
    )
    if values is None:
      return None
    return collections.Counter(
      {pack: n for pack, n in zip(self.patterns, values.tolist(), strict=True) if n}
    )


class _Search:
  """Searches for even packs, given a plan to start from."""

  def __init__(self, squares: Squares, before: Usage, effort: Effort, seed: int):
    self.squares, self.before, self.effort, self.seed = squares, before, effort, seed
    self.problem = squares.problem
    self.master = _Master(squares, self.problem.demand, squares.num_packs)

  def run(self) -> tuple[Usage, np.ndarray | None]:
    """The most even plan found, and the weights that prove the best bound.

    Raises:
      SolverError: HiGHS failed.
    """
    everything = _all_patterns(self.problem)
    self.master.add([*self.before, *(everything or ())])
    usage, weights = None, None
    while (solved := self.master.solve(self.effort)) is not None:
      usage, duals = solved
      costs = np.array([self.master.cost(pack) for pack in self.master.patterns])
      spread = math.sqrt(max(costs @ usage, 0) / self.squares.num_packs)
      self.effort.show(f"spread {spread:.4f} of the mean")
      weights = self._weights(duals)
      if everything is not None:
        break
      better = self._by_tangents(duals, weights) or self._by_table(duals, weights)
      if not self.master.add(better):
        break
    if usage is None:
      return self.before, None
    usage = np.concatenate([usage, np.zeros(len(self.master.patterns) - usage.size)])
    after = self._round(usage)
    return min(self.before, after, key=self.squares.distance), weights

  def _weights(self, duals: np.ndarray) -> np.ndarray:
    """Duals of the sizes as integers; what is equal for all packs needs no weight."""
    squares, mean = self.squares, self.master.mean
    most = 2**60 // most_items(self.problem)
    exact = duals[:-1] * mean**2 + 2 * (mean - squares.centre) * squares.of_size
    exact *= weight_scale(squares)
    return np.rint(np.clip(exact, -most, most)).astype(np.int64)

  def _by_tangents(self, duals: np.ndarray, weights: np.ndarray) -> list[Strategy]:
    """For each size and range of squares, the pack that improves the solution most."""
    problem, squares, scale = self.problem, self.squares, weight_scale(self.squares)
    own = np.append(duals[:-1], 0.0)
    of_size = np.append(squares.of_size, 0).astype(float)
    largest = int(squares.lengths[-1]) * problem.capacity
    step = max(largest // _TANGENTS, 1)
    found: dict[tuple[int, int], tuple[float, Strategy]] = {}
    for at in range(step // 2, largest + 1, step):
      slope = 2 * scale * (at - squares.centre)
      knapsack = Knapsack(problem, weights - slope * squares.of_size)
      self.effort.spend(knapsack.work)
      packs = knapsack.packs(np.arange(problem.sizes.size))
      rows = np.where(packs > 0, np.searchsorted(problem.sizes, packs), problem.sizes.size)
      held = of_size[rows].sum(axis=1)
      reduced = (held / self.master.mean - 1) ** 2 - own[rows].sum(axis=1) - duals[-1]
      for i in np.flatnonzero(reduced < -1e-8).tolist():
        key = int(packs[i, 0]), int(held[i]) // step
        if key not in found or reduced[i] < found[key][0]:
          found[key] = reduced[i], tuple(packs[i].tolist())
    return [pack for _, pack in sorted(found.values())]

  def _by_table(self, duals: np.ndarray, weights: np.ndarray) -> list[Strategy]:
    """Packs that improve the solution but that no tangent finds."""
    table = Table.make(self.squares, weights)
    if table is None:
      return []
    self.effort.spend(table.work)
    found = []
    for pack in table.packs(self.problem.sizes.size):
      rows = np.searchsorted(self.problem.sizes, pack)
      if self.master.cost(pack) - duals[rows].sum() - duals[-1] < -1e-8:
        found.append(pack)
    return found

  def _round(self, usage: np.ndarray) -> Usage:
    """An integer solution near `usage`; the packs of the start if there is no other."""
    back = 1
    while True:
      whole = np.floor(usage + _INTEGRAL).astype(np.int64)
      kept = np.maximum(whole - back, 0) if back > 1 or self._is_small else whole
      fixed = collections.Counter(
        {self.master.patterns[p]: int(kept[p]) for p in np.flatnonzero(kept).tolist()}
      )
      if not fixed:
        return self._programme(self.before, fixed)
      rest = self._rest(fixed)
      if rest is not None:
        return fixed + self._programme(rest, fixed)
      back *= 2

  @property
  def _is_small(self) -> bool:
    return self.squares.num_packs <= _PROGRAMME

  def _rest(self, fixed: Usage) -> Usage | None:
    """Packs for the sequences that `fixed` leaves; None if they would be too many."""
    left = self._left(fixed)
    if not left.any():
      return collections.Counter()
    counts = np.zeros(self.problem.capacity, np.int64)
    counts[self.problem.sizes - 1] = left
    part = dataclasses.replace(self.problem, counts=counts)
    rest = usage_of(optimal(part, work_limit=_PROGRAMME_WORK, seed=self.seed).packs)
    missing = self.squares.num_packs - fixed.total() - rest.total()
    for _ in range(missing):  # the plan to match is not the smallest, so split packs
      pack = max((p for p in rest if len(p) > 1), key=self.squares.of)
      rest += collections.Counter({pack[:1]: 1, pack[1:]: 1})
      rest -= collections.Counter({pack: 1})
    return rest if missing >= 0 else None

  def _left(self, fixed: Usage) -> np.ndarray:
    left = self.problem.demand.copy()
    for pack, n in fixed.items():
      np.subtract.at(left, np.searchsorted(self.problem.sizes, pack), n)
    return left

  def _programme(self, rest: Usage, fixed: Usage) -> Usage:
    """The remaining packs, made more even by an integer programme if they are few."""
    number = rest.total()
    if not 1 < number <= _PROGRAMME:
      return rest
    part = _Master(self.squares, self._left(fixed), number)
    if part.unit != 1:
      return rest
    part.add([*rest, *self._cheapest()])
    better = part.solve_whole(rest, self.effort)
    if better is None or self._left(fixed + better).any() or better.total() != number:
      return rest
    return min(rest, better, key=self.squares.distance)

  def _cheapest(self) -> list[Strategy]:
    """The known packs of least reduced cost, four for each size; all if they are few."""
    patterns = self.master.patterns
    if len(patterns) <= _FEW_PATTERNS:
      return patterns
    values = self.master.lp.getSolution().col_dual
    reduced = np.append(values, np.full(len(patterns) - len(values), np.inf))
    chosen = np.argsort(reduced, kind="stable")[: 4 * self.problem.sizes.size]
    return [patterns[p] for p in chosen.tolist()]


def _all_patterns(problem: Problem) -> list[Strategy] | None:
  """All possible packs, or None if there are more than a few thousand."""
  sizes, demand = problem.sizes.tolist(), problem.demand.tolist()
  found: list[Strategy] = []
  open_packs: list[tuple[Strategy, int, int]] = [((), len(sizes) - 1, problem.capacity)]
  while open_packs:
    pack, last, space = open_packs.pop()
    if pack:
      found.append(pack)
    if len(found) + len(open_packs) > _FEW_PATTERNS:
      return None
    if len(pack) < problem.depth:
      open_packs += [
        ((*pack, sizes[r]), r, space - sizes[r])
        for r in range(last + 1)
        if sizes[r] <= space and pack.count(sizes[r]) < demand[r]
      ]
  return found


def _key(pack) -> Strategy:
  """A pack as sizes in descending order, without zeros."""
  return tuple(sorted((int(size) for size in pack if size), reverse=True))
