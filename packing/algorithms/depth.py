"""Chooses a depth limit if the caller sets none."""

from __future__ import annotations

import dataclasses

import numpy as np

from packing.algorithms import heuristics
from packing.algorithms.effort import Effort
from packing.algorithms.highs import SolverError
from packing.algorithms.minimum_slack import mbs
from packing.algorithms.optimal import MAX_LENGTHS, quick_plans
from packing.algorithms.pricing import most_items
from packing.algorithms.relaxation import solve_relaxation
from packing.errors import InputError
from packing.histogram import Histogram
from packing.problem import Geometry, Problem, usage_of

_COST = 0.001  # how many more packs a limit may cost, as a share
_SIZES = 128  # up to this many, the relaxation takes hundredths of a second at any depth
_WORK = 10**9  # takes some seconds; bounds for 128 sizes need far less
# Depth times row length times lengths squared. Up to here `optimal` takes about two seconds
# of a core; at 4 * 10^9 it may take a minute.
_SOLVED_WORK = 6 * 10**8
_QUICK_WORK = 5 * 10**7  # for the plan of a heuristic at one depth
_BY_PLAN = {"ffd": heuristics.ffd, "bfd": heuristics.bfd, "mbs": mbs}
_BY_PLAN |= {"lpfhp": heuristics.lpfhp, "spfhp": heuristics.spfhp}
_BY_PLAN |= {"harmonic": heuristics.harmonic, "mffd": heuristics.mffd}
_BY_PLAN |= {"greedy": heuristics.lpfhp}  # its own plan depends on the order of arrival
_BY_BOUND = ("nnlshp", "ennlshp", "optimal", "auto")


def choose_depth(
  histogram: Histogram,
  *,
  algorithm: str = "auto",
  row_length: int | None = None,
  length_multiple: int = 1,
  separator_tokens: int = 0,
) -> int:
  """The smallest depth limit that costs at most 0.1 % more packs than no limit.

  Deeper packs need more slots in each row of a batch. For a heuristic, its own plans are
  compared, since it needs more depth than the optimum. Otherwise the bounds of the linear
  relaxation are compared. With more than 128 different lengths, or rows above 1,024 tokens,
  these are bounds for sizes rounded to 1/128 of a row: some sequences of each length are
  rounded up and some down, so that the number of tokens stays the same. The same lengths
  always give the same answer.

  With long rows and many lengths, `optimal` takes minutes to meet its bound at a small
  depth. Then that depth is doubled until the plan of a heuristic is good enough. If many
  sequences are shorter than 1/128 of a row, the answer is the depth of the deepest possible
  pack, which limits nothing.

  Args:
    histogram: the lengths to pack.
    algorithm: the algorithm that will pack them, a name from `ALGORITHMS`.
    row_length, length_multiple, separator_tokens: as for `pack`.

  Returns:
    The depth limit, at least 1.

  Raises:
    InputError: the algorithm is unknown, or the row, multiple or separator is out of range.

  Example:
    >>> choose_depth(Histogram.from_lengths([2, 2, 2, 8], max_sequence_length=8))
    3
  """
  known = ("none", *_BY_PLAN, *_BY_BOUND)
  if algorithm not in known:
    raise InputError(
      f"There is no packing algorithm {algorithm!r}; expected one of {', '.join(known)}."
    )
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
    algorithm = "lpfhp"  # auto uses it then
  high = min(most_items(problem), histogram.num_sequences)
  deepest, solved_work = high, problem.capacity * problem.sizes.size**2
  exact = problem
  if algorithm not in _BY_PLAN:
    problem = _rounded(problem)
    if _mean_share(problem) > _mean_share(exact) * (1 + _COST / 2):
      return deepest  # many sequences are shorter than the unit and were rounded up

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
    enough = int(heuristics.lpfhp(exact).num_packs * (1 + _COST))
    while high < deepest and _quick_packs(exact, high) > enough:
      high *= 2
  return min(high, deepest)


def _quick_packs(problem: Problem, depth: int) -> int:
  limited = dataclasses.replace(problem, depth=depth)
  plans = quick_plans(limited, Effort(), most=_QUICK_WORK)
  return min(plan.num_packs for plan in plans.values())


def bounds(problem: Problem, *, work: int = _WORK) -> tuple[int, int]:
  """A lower bound on the packs of any plan, and an estimate of the best plan's packs.

  Both are the bound of the relaxation, as far as it is proven within a limit of work. If
  the solver fails, they are the simple bound and the packs of LPFHP.

  Args:
    problem: sizes to pack.
    work: units of `Effort` after which the best bound so far is returned.
  """
  plan = heuristics.lpfhp(problem)
  if plan.num_packs == problem.simple_bound:
    return plan.num_packs, plan.num_packs
  patterns = list(usage_of(plan.packs))
  try:
    relaxation = solve_relaxation(
      problem, start=patterns, upper=plan.num_packs, effort=Effort(work=work)
    )
  except SolverError:
    relaxation = None
  if relaxation is None:
    return problem.simple_bound, plan.num_packs
  return relaxation.bound, relaxation.bound


def _mean_share(problem: Problem) -> float:
  """The mean share of a row that a sequence takes."""
  tokens = float(problem.sizes @ problem.demand)
  return tokens / float(problem.demand.sum()) / problem.capacity


def _rounded(problem: Problem) -> Problem:
  """The problem rounded to at most `_SIZES` sizes; a small problem is not changed."""
  if problem.sizes.size <= _SIZES and problem.capacity <= 8 * _SIZES:
    return problem
  exact = problem.sizes * (_SIZES / problem.capacity)
  below = np.clip(np.floor(exact).astype(np.int64), 1, _SIZES - 1)
  share = np.clip(exact - below, 0, 1)  # the share of the sequences that is rounded up
  weights = problem.demand * (10**7 / problem.demand.sum())  # many, to round little
  counts = np.bincount(below, weights * (1 - share), _SIZES + 1)
  counts += np.bincount(below + 1, weights * share, _SIZES + 1)
  return Problem(np.rint(counts[1:]).astype(np.int64), _SIZES, _SIZES)
