"""The fewest packs that any plan can have, or at most a pack or so more, with proof."""

from __future__ import annotations

import collections
import dataclasses
import math
import time

import numpy as np

from packing import heuristics
from packing.errors import UnsolvedError, seconds, whole
from packing.pricing import most_items
from packing.problem import Problem, Solution
from packing.relaxation import SolverError, solve_relaxation
from packing.rounding import Rounding, Usage, fill

MAX_LENGTHS = 8192  # different lengths; beyond, nobody waits for the relaxation


def optimal(
  problem: Problem,
  *,
  time_limit: float | None = None,
  target_gap: int | None = None,
  seed: int = 0,
) -> Solution:
  """Packs with the fewest packs, by column generation.

  The plan starts as the better of LPFHP's and SPFHP's. If it has as many packs as the
  simple bound says are needed, no solver runs. Otherwise the linear relaxation gives a
  bound; its solution is rounded to a plan by diving.

  Args:
    problem: sizes to pack.
    time_limit: seconds after which the best plan and the best bound so far are
      returned; None for no limit.
    target_gap: packs above the bound that are good enough. One dive is always made,
      others for a larger gap, and at last an integer programme of 20 seconds. None to
      dive for a gap above a millionth of the bound, and to solve the programme where it
      is above 1 as well.
    seed: of the random duals that the first patterns come from.

  Returns:
    The plan and the weights that prove its bound; the best so far where the solver
    fails, with the `failure` in the details.

  Raises:
    UnsolvedError: more than `MAX_LENGTHS` different lengths and no time limit.

  References:
    Gilmore and Gomory (1961), Farley (1990). Krell et al.,
    https://arxiv.org/abs/2107.02027, section S, poses the problem.
  """
  deadline = math.inf
  if time_limit is not None:
    deadline = time.monotonic() + seconds("time_limit", time_limit)
  if target_gap is not None:
    target_gap = whole("target_gap", target_gap, at_least=0)
  first = min(
    (algorithm(problem) for algorithm in (heuristics.lpfhp, heuristics.spfhp)),
    key=lambda solution: solution.num_packs,
  )
  if first.num_packs == problem.simple_bound:
    return dataclasses.replace(first, details={"solver": "none needed"})
  if problem.sizes.size > MAX_LENGTHS and time_limit is None:
    raise UnsolvedError(
      f"The histogram has {problem.sizes.size} different lengths; optimal takes at most "
      f"{MAX_LENGTHS} without a time limit. Pass time_limit=SECONDS, a larger "
      'length_multiple, or algorithm="auto".'
    )
  patterns = [tuple(sorted(strategy, reverse=True)) for _, strategy in first.packs]
  guide = None
  if 3 < problem.depth < most_items(dataclasses.replace(problem, depth=problem.capacity)):
    guide, patterns = _without_depth_limit(problem, patterns, deadline, seed)
  try:
    relaxation = solve_relaxation(
      problem,
      start=patterns,
      upper=first.num_packs,
      deadline=deadline,
      seed=seed,
      guide=guide,
    )
  except SolverError as error:
    return dataclasses.replace(first, details={"solver": "failed", "failure": str(error)})
  if relaxation is None:
    return dataclasses.replace(first, details={"solver": "no time"})
  best: Usage = collections.Counter()
  for n, strategy in first.packs:
    best[tuple(sorted(strategy, reverse=True))] += n
  millionth = relaxation.bound // 10**6
  rounding = Rounding(
    problem,
    relaxation,
    best=best,
    dive_gap=millionth if target_gap is None else target_gap,
    search_gap=max(1, millionth) if target_gap is None else target_gap,
    deadline=deadline,
    seed=seed,
  )
  rounding.run()
  details = {
    "solver": "column generation",
    "relaxation": relaxation.objective,
    "num_patterns": len(relaxation.master.patterns),
    "out_of_time": time.monotonic() > deadline,
  }
  if rounding.failure:
    details["failure"] = rounding.failure
  return Solution(fill(problem, rounding.best), relaxation.weights, details)


def _without_depth_limit(problem, patterns, deadline, seed):
  """Duals and patterns of the problem without a depth limit, which is quick to solve."""
  relaxed = dataclasses.replace(problem, depth=problem.capacity)
  try:
    relaxation = solve_relaxation(
      relaxed, start=patterns, upper=0, deadline=deadline, seed=seed
    )
    solved = None if relaxation is None else relaxation.master.solve()
  except SolverError:
    return None, patterns
  if relaxation is None or solved is None:
    return None, patterns
  known = [p for p in relaxation.master.patterns if len(p) <= problem.depth]
  return np.maximum.accumulate(np.clip(solved[2], 0, 1)), patterns + known
