"""Chooses a depth limit, where slots for sequences cost something."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from packing.algorithms import heuristics
from packing.algorithms.effort import Effort
from packing.algorithms.highs import SolverError
from packing.algorithms.optimal import MAX_LENGTHS, quick_plans
from packing.algorithms.pricing import most_items
from packing.algorithms.registry import ALGORITHMS
from packing.algorithms.relaxation import solve_relaxation
from packing.errors import check
from packing.histogram import Histogram
from packing.problem import Geometry, Problem, usage_of

# How many more packs a limit may cost, as a share. One more slot for a sequence makes a
# step of BERT-base on an H200 0.6 % longer in rows of 2,048 tokens (docs/speed.md).
_COST = 0.005
_SIZES = 128  # up to this many, the relaxation takes hundredths of a second at any depth
_WORK = 10**9  # takes some seconds; bounds for 128 sizes need far less
# Depth times row length times lengths squared. Up to here `optimal` takes about two seconds
# of a core; at 4 * 10^9 it may take a minute.
_SOLVED_WORK = 6 * 10**8
# For the plans of a heuristic at one depth, and at all; at most about a second.
_QUICK_WORK, _QUICK_WORKS = 1.2 * 10**8, 2.5 * 10**8
# Bounds tell how much depth these need; of the others, their own plans.
_BY_BOUND = ("nnlshp", "ennlshp", "optimal", "auto")
_INSTEAD = {"greedy": "lpfhp"}  # the plan of greedy depends on the order of arrival


def choose_depth(
  histogram: Histogram,
  *,
  algorithm: str = "auto",
  row_length: int | None = None,
  length_multiple: int = 1,
  separator_tokens: int = 0,
) -> int:
  """The smallest depth limit that costs at most 0.5 % more packs than no limit.

  Deeper packs need more slots in each row of a batch. For a heuristic, its own plans are
  compared, since it needs more depth than the optimum. Otherwise plans of quick heuristics
  are, and where these do not decide, bounds of the linear relaxation. With more than 128
  different lengths, or rows above 1,024 tokens, sizes are rounded to 1/128 of a row: some
  sequences of each length are rounded up and some down, so that the number of tokens stays
  the same. The same lengths always give the same answer.

  With long rows and many lengths, `optimal` takes minutes to meet its bound at a small
  depth. Then that depth is doubled until the plan of a heuristic is good enough; so is the
  mean depth, if many sequences are shorter than 1/128 of a row.

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
  check(algorithm in ALGORITHMS, "algorithm", algorithm, f"one of {', '.join(ALGORITHMS)}")
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
    algorithm = "lpfhp"  # auto then tries it, bfd and mbs; it is the fastest of them
  deepest = min(most_items(problem), histogram.num_sequences)
  if algorithm not in _BY_BOUND:
    plan = ALGORITHMS[_INSTEAD.get(algorithm, algorithm)]
    return _smallest(problem, deepest, lambda x, _: plan(x).num_packs)
  rounded = _rounded(problem)
  if is_coarse := _mean_share(rounded) > _mean_share(problem) * (1 + _COST / 2):
    if algorithm not in ("optimal", "auto"):
      return deepest
    high = -(-int(problem.demand.sum()) // problem.simple_bound)
  else:
    high = _smallest(rounded, deepest, _about)
  work = high * problem.capacity * problem.sizes.size**2
  if algorithm in ("optimal", "auto") and (is_coarse or work > _SOLVED_WORK):
    enough = int(heuristics.lpfhp(problem).num_packs * (1 + _COST))
    effort = Effort(work=0 if is_coarse else _QUICK_WORKS)
    while high < deepest and _quick_packs(_limited(problem, high), effort) > enough:
      high *= 2
  return min(high, deepest)


def _smallest(
  problem: Problem, deepest: int, packs: Callable[[Problem, float], int]
) -> int:
  """The smallest depth limit that costs few packs more than the deepest.

  Args:
    problem: sizes to pack.
    deepest: a limit that limits nothing.
    packs: the packs of a plan, about; from its problem and how many are enough.
  """
  enough = int(packs(_limited(problem, deepest), math.inf) * (1 + _COST))
  low, high = min(-(-int(problem.demand.sum()) // enough), deepest), deepest
  while low < high:
    middle = (low + high) // 2
    if packs(_limited(problem, middle), enough) <= enough:
      high = middle
    else:
      low = middle + 1
  return high


def _limited(problem: Problem, depth: int) -> Problem:
  return dataclasses.replace(problem, depth=depth)


def _about(problem: Problem, enough: float) -> int:
  """The packs of a heuristic if these, or a simple bound, decide; or else the bound.

  The bound is that of the relaxation, as far as it is proven within a limit of work. If the
  solver fails, the packs of LPFHP stand for it.
  """
  packs = _quick_packs(problem, Effort())
  if packs <= enough or problem.simple_bound > enough:
    return packs
  plan = heuristics.lpfhp(problem)
  patterns, effort = list(usage_of(plan.packs)), Effort(work=_WORK)
  try:
    relaxation = solve_relaxation(
      problem, start=patterns, upper=plan.num_packs, effort=effort
    )
  except SolverError:
    relaxation = None
  return plan.num_packs if relaxation is None else relaxation.bound


def _quick_packs(problem: Problem, effort: Effort) -> int:
  plans = quick_plans(problem, effort, most=_QUICK_WORK)
  return min(plan.num_packs for plan in plans.values())


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
