"""The linear relaxation of packing: column generation, and the bound it proves.

There are far too many patterns of packs to list. Column generation keeps a few thousand,
solves the linear programme over them (the master problem), and uses the knapsack of
`pricing` to find patterns that, by the duals, are worth more than the one pack they cost.
If there are none, the programme over all patterns is solved.

Three things make this fast. First, a slot may hold any shorter sequence: the master has a
free column from each size to the next smaller one. So patterns need not distinguish which
short sequence they end with, and the duals rise with size. Second, each pricing adds the
best pattern for every size, not just one pattern. Third, the first patterns come from LPFHP
and from pricing under random duals near typical ones.

References:
  Gilmore and Gomory, A linear programming approach to the cutting-stock problem (1961).
  Valerio de Carvalho, Using extra dual cuts to accelerate column generation (2005).
"""

from __future__ import annotations

import bisect
import dataclasses
import math

import highspy
import numpy as np

from packing.algorithms import highs
from packing.algorithms.effort import Effort
from packing.algorithms.highs import SolverError
from packing.algorithms.pricing import Knapsack, weight_scale
from packing.problem import Problem

_ROUNDS, _NOISE = 4, 0.1


@dataclasses.dataclass
class Relaxation:
  """The result of column generation.

  Attributes:
    bound: a lower bound on the packs of any plan, proven by `weights`.
    weights: int64[R]; integer duals, see `pricing.dual_bound`. None if the simple bound is
      at least as good.
    master: the linear programme, ready to be solved for another demand.
    usage: float64[P]; how often the solution uses each pattern of the master.
    objective: the number of packs in `usage`.
  """

  bound: int
  weights: np.ndarray | None
  master: Master
  usage: np.ndarray
  objective: float


class Master:
  """The linear programme over the patterns known so far.

  It minimises the number of packs. There is one constraint for each size: its slots, plus
  those handed down from the next larger size, minus those handed down to the next smaller
  one, are at least as many as its sequences.

  Args:
    problem: sizes to pack.
    effort: limits how long the solver may run.

  Attributes:
    patterns: tuples of sizes, in the order of the columns.
  """

  def __init__(self, problem: Problem, effort: Effort):
    self.patterns: list[tuple[int, ...]] = []
    self._problem = problem
    self._effort = effort
    self._known: set[tuple[int, ...]] = set()
    self._sizes = problem.sizes.tolist()
    self._rows = rows = problem.sizes.size
    self._right, self._unit = _right_hand_side(problem.demand)
    self._lp = highs.new_programme(self._right, np.full(rows, highspy.kHighsInf))
    if rows > 1:
      down = np.arange(1, rows)  # from row i to row i - 1, at no cost
      highs.add_columns(
        self._lp,
        np.zeros(rows - 1),
        starts=np.arange(0, 2 * (rows - 1), 2),
        rows=np.stack([down - 1, down], axis=1).ravel(),
        values=np.tile([1.0, -1.0], rows - 1),
      )

  def add(self, patterns) -> int:
    """Adds patterns of descending sizes; returns how many are new.

    In a pattern, 0 marks an unused slot.
    """
    starts: list[int] = []
    rows: list[int] = []
    values: list[int] = []
    for pattern in patterns:
      key = tuple(size for size in pattern if size)
      if key in self._known:
        continue
      self._known.add(key)
      self.patterns.append(key)
      starts.append(len(rows))
      for size in key:  # equal sizes follow each other
        row = self._row(size)
        if len(rows) > starts[-1] and rows[-1] == row:
          values[-1] += 1
        else:
          rows.append(row)
          values.append(1)
    if starts:
      costs = np.ones(len(starts))
      highs.add_columns(self._lp, costs, starts=starts, rows=rows, values=values)
    return len(starts)

  def add_worthwhile(self, pricing: Knapsack, scale: int) -> int:
    """Adds the best packs that are worth more than one pack.

    Args:
      pricing: gives the best packs.
      scale: the weight that stands for one pack.

    Returns:
      The number of new patterns.
    """
    return self.add(pricing.packs(above=scale + scale // 10**9).tolist())

  def slots(self, usage: np.ndarray) -> np.ndarray:
    """int64[R]; the slots of each size if pattern `p` is used `usage[p]` times."""
    slots = np.zeros(self._rows, np.int64)
    for p in np.flatnonzero(usage).tolist():
      for size in self.patterns[p]:
        slots[self._row(size)] += usage[p]
    return slots

  def _row(self, size: int) -> int:
    """The row of the slots that hold a size: that of the longest sequence that fits."""
    return bisect.bisect_right(self._sizes, size) - 1

  def set_demand(self, demand: np.ndarray):
    right, self._unit = _right_hand_side(demand)
    for row in np.flatnonzero(right != self._right).tolist():
      highs.check_status(
        self._lp.changeRowBounds(row, float(right[row]), highspy.kHighsInf)
      )
    self._right = right

  def solve(self, *, method: str = "primal") -> tuple[float, np.ndarray, np.ndarray] | None:
    """Solves the programme, starting from the last solution.

    Returns:
      The objective, the usage float64[P], and the duals float64[R]; None if the effort is
      over.

    Raises:
      SolverError: HiGHS failed twice.
    """
    highs.set_options(self._lp, simplex_strategy={"dual": 1, "primal": 4}[method])
    columns = self._rows + len(self.patterns)
    status = highs.run(self._lp, self._effort, columns=columns)
    if status not in (highspy.HighsModelStatus.kOptimal, None):
      # The last basis may be the cause: try once more without it.
      highs.check_status(self._lp.clearSolver())
      highs.set_options(self._lp, simplex_strategy=1)
      status = highs.run(self._lp, self._effort, columns=columns)
    if status is None:
      return None
    if status != highspy.HighsModelStatus.kOptimal:
      raise SolverError(f"HiGHS ended with {self._lp.modelStatusToString(status)}.")
    solution = self._lp.getSolution()
    usage = np.array(solution.col_value)[self._rows - 1 :]
    duals = np.array(solution.row_dual)
    objective = float(self._lp.getInfo().objective_function_value) * self._unit
    return objective, usage * self._unit, duals


def solve_relaxation(
  problem: Problem,
  *,
  start: list[tuple[int, ...]],
  upper: int,
  effort: Effort,
  last_pack_work: float = math.inf,
  seed: int = 0,
  guide: np.ndarray | None = None,
) -> Relaxation | None:
  """Solves the relaxation by column generation.

  Args:
    problem: sizes to pack.
    start: patterns to begin with, such as those of a heuristic plan.
    upper: the packs of a known plan; generation stops when the bound meets it.
    effort: limits how long generation may last.
    last_pack_work: units of `effort` after which generation stops if the bound is within
      one pack of the known plan.
    seed: the seed of the random duals that the first patterns come from.
    guide: float64[R]; typical duals, near which the random ones are drawn.

  Returns:
    The relaxation. It is solved over all patterns unless, before that, the bound meets the
    plan or the effort is over. None if the effort is over before the first solution.

  Raises:
    SolverError: the solver failed.
  """
  scale = weight_scale(problem)
  rng = np.random.default_rng(seed)
  master = Master(problem, effort)
  master.add(start)
  master.add(
    (size,) * min(problem.depth, problem.capacity // size)
    for size in problem.sizes.tolist()
  )
  for i in range(_ROUNDS if guide is None else 2 * _ROUNDS):
    if effort.over:
      break
    # Without a guide, a typical dual is the share of the row that a sequence takes, or the
    # mean of its shares of the row and of the depth.
    share = 0.5 * (i % 2)
    typical = (1 - share) * problem.sizes / problem.capacity + share / problem.depth
    typical = typical if guide is None else guide
    noise = 1 + _NOISE * rng.standard_normal(problem.sizes.size) / (1 + i // 2)
    weights = (np.clip(typical * noise, 0, 1) * scale).astype(np.int64)
    pricing = Knapsack(problem, weights)
    effort.spend(pricing.work)
    master.add(pricing.packs(above=-1).tolist())

  bound, proof, last = problem.simple_bound, None, None
  while (solved := master.solve()) is not None:
    objective, usage, duals = last = solved
    weights = integer_weights(duals, scale)
    pricing = Knapsack(problem, weights)
    effort.spend(pricing.work)
    if pricing.bound > bound:
      bound, proof = pricing.bound, weights
      effort.report(bound=bound)
    if bound >= upper or bound >= math.ceil(objective - 1e-6 - 1e-11 * objective):
      break
    if upper - bound <= 1 and effort.spent > last_pack_work:
      break
    if not master.add_worthwhile(pricing, scale):
      break
  if last is None:
    return None
  objective, usage, _ = last
  usage = np.concatenate([usage, np.zeros(len(master.patterns) - usage.size)])
  return Relaxation(bound, proof, master, usage, objective)


def integer_weights(duals: np.ndarray, scale: int) -> np.ndarray:
  """Turns float duals into integers in 0..scale that do not fall with size."""
  rising = np.maximum.accumulate(np.clip(duals, 0.0, 1.0))
  return np.floor(rising * scale).astype(np.int64)


def _right_hand_side(demand: np.ndarray) -> tuple[np.ndarray, float]:
  """The demand in units that suit the solver's absolute tolerances, and the unit.

  The unit is a power of two; it is 1 for up to some millions of sequences of a size. With a
  unit of 1, the solver gives wrong answers for counts of 10^10 and more.
  """
  unit = 2.0 ** max(int(demand.max()).bit_length() - 23, 0)
  return demand / unit, unit
