"""The depth limit where none is given."""

from __future__ import annotations

import dataclasses

import numpy as np

from packing.algorithms import heuristics
from packing.algorithms.effort import Effort
from packing.algorithms.optimal import MAX_LENGTHS
from packing.algorithms.relaxation import SolverError, solve_relaxation
from packing.histogram import Histogram
from packing.pricing import most_items
from packing.problem import Geometry, Problem

_COST = 0.001  # packs that a limit may cost, as a share
_SIZES = 128  # sizes for which the relaxation takes hundredths of a second at any depth
_WORK = 10**9  # some seconds; bounds of so few sizes take far less
# Depth times row length times lengths squared. Where that is 4 to 5 * 10^9, `optimal` was
# seen to take 18 to 37 seconds of a core; at 2 * 10^10 it took more than a minute.
_SOLVED_WORK = 6 * 10**9
_BY_PLAN = {"ffd": heuristics.ffd, "bfd": heuristics.bfd}
_BY_PLAN |= {"lpfhp": heuristics.lpfhp, "spfhp": heuristics.spfhp}
_BY_PLAN |= {"greedy": heuristics.lpfhp}  # its own plan is of one order of arrival


def choose_depth(
  histogram: Histogram,
  *,
  algorithm: str = "optimal",
  row_length: int | None = None,
  length_multiple: int = 1,
  separator_tokens: int = 0,
) -> int:
  """The smallest depth limit that costs at most 0.1 % more packs than no limit does.

  A deeper pack has more slots in each row of a batch, so no deeper one is taken. For a
  heuristic the plans that it makes are compared, since it needs more depth than the
  optimum; otherwise the bounds of the linear relaxation. Beyond 128 different lengths or
  rows of 1,024 tokens these are bounds for sizes rounded to 1/128 of a row, some of
  each length up and some down, so that the tokens stay the same. The same lengths always
  have the same answer.

  Where rows are long and lengths many, `optimal` takes minutes at a small depth and a
  second without a limit. There, and where many sequences are shorter than 1/128 of a row,
  the answer is the depth of the deepest possible pack, which is no limit.

  Args:
    histogram: the lengths to pack.
    algorithm: what is to pack them, a name from `ALGORITHMS`.
    row_length, length_multiple, separator_tokens: as for `pack`.

  Returns:
    The depth limit, at least 1.

  Raises:
    InputError: a geometry that cannot be.

  Example:
    >>> choose_depth(Histogram.from_lengths([2, 2, 2, 8], max_sequence_length=8))
    3
  """
  geometry = Geometry.for_histogram(
    histogram,
    row_length=row_length,
    max_sequences_per_pack=None,
    length_multiple=length_multiple,
    separator_tokens=separator_tokens,
  )
  if algorithm == "none":
    return 1
  problem = geometry.problem(histogram)
  if algorithm == "auto" and problem.sizes.size > MAX_LENGTHS:
    algorithm = "lpfhp"  # which is what auto uses then
  high = min(most_items(problem), histogram.num_sequences)
  deepest, solved_work = high, problem.capacity * problem.sizes.size**2
  if algorithm not in _BY_PLAN:
    exact, problem = problem, _rounded(problem)
    if _mean_share(problem) > _mean_share(exact) * (1 + _COST / 2):
      return deepest  # many are shorter than the unit, and rounded up to it

  def packs(depth: int) -> int:
    limited = dataclasses.replace(problem, depth=depth)
    if algorithm in _BY_PLAN:
      return _BY_PLAN[algorithm](limited).num_packs
    return bounds(limited)[1]

  enough = int(packs(high) * (1 + _COST))
  low = min(-(-int(problem.demand.sum()) // enough), high)
  while low < high:
    middle = (low + high) // 2
    if packs(middle) <= enough:
      high = middle
    else:
      low = middle + 1
  if algorithm in ("optimal", "auto") and high * solved_work > _SOLVED_WORK:
    return deepest
  return high


def bounds(problem: Problem, *, work: int = _WORK) -> tuple[int, int]:
  """Packs that any plan needs, and about how many the best plan has.

  Both are the bound of the relaxation, as far as a limit of work proves it. Where the
  solver fails, they are the simple bound and the packs of LPFHP.

  Args:
    problem: what is to be packed.
    work: units of `Effort` after which the best bound so far is returned.
  """
  plan = heuristics.lpfhp(problem)
  if plan.num_packs == problem.simple_bound:
    return plan.num_packs, plan.num_packs
  patterns = [tuple(sorted(strategy, reverse=True)) for _, strategy in plan.packs]
  try:
    relaxation = solve_relaxation(
      problem, start=patterns, upper=plan.num_packs, effort=Effort(work=work)
    )
  except SolverError:
    relaxation = None
  if relaxation is None or relaxation.failure:
    return problem.simple_bound, plan.num_packs
  return relaxation.bound, relaxation.bound


def _mean_share(problem: Problem) -> float:
  """Of a row, what a sequence takes on average."""
  tokens = float(problem.sizes @ problem.demand)
  return tokens / float(problem.demand.sum()) / problem.capacity


def _rounded(problem: Problem) -> Problem:
  """The problem in at most `_SIZES` sizes; as it is where it is small."""
  if problem.sizes.size <= _SIZES and problem.capacity <= 8 * _SIZES:
    return problem
  exact = problem.sizes * (_SIZES / problem.capacity)
  below = np.clip(np.floor(exact).astype(np.int64), 1, _SIZES - 1)
  share = np.clip(exact - below, 0, 1)  # of the sequences that are rounded up
  weights = problem.demand * (10**7 / problem.demand.sum())  # so that shares are whole
  counts = np.bincount(below, weights * (1 - share), _SIZES + 1)
  counts += np.bincount(below + 1, weights * share, _SIZES + 1)
  return Problem(np.rint(counts[1:]).astype(np.int64), _SIZES, _SIZES)
