"""The fewest packs that any plan can have, or at most a pack or so more, with proof."""

from __future__ import annotations

import collections
import dataclasses
import math

import numpy as np

from packing.algorithms import heuristics
from packing.algorithms.effort import Effort
from packing.algorithms.progress import Progress
from packing.algorithms.relaxation import SolverError, solve_relaxation
from packing.algorithms.rounding import LAST_PACK_WORK, Rounding, Usage, fill
from packing.errors import UnsolvedError, check_integer, seconds
from packing.pricing import most_items
from packing.problem import Problem, Solution

MAX_LENGTHS = 8192  # different lengths; beyond, nobody waits for the relaxation


def optimal(
  problem: Problem,
  *,
  time_limit: float | None = None,
  work_limit: int | None = None,
  target_gap: int | None = None,
  seed: int = 0,
  progress: Progress | None = None,
) -> Solution:
  """Packs with the fewest packs, by column generation.

  The plan starts as the better of LPFHP's and SPFHP's. If it has as many packs as the
  simple bound says are needed, no solver runs. Otherwise the linear relaxation gives a
  bound; its solution is rounded to a plan by diving.

  Args:
    problem: sizes to pack.
    time_limit: seconds after which the best plan and the best bound so far are
      returned; None for no limit. The plan then depends on the machine and on what else
      runs there; without it, it does not.
    work_limit: the same in units of `effort.Effort`, one or two times 10^8 a second on a
      core: the same plan on every machine.
    target_gap: packs above the bound that are good enough. One dive is always made,
      others for a larger gap, and at last an integer programme of 2 * 10^9 units. None to
      dive for a gap above a millionth of the bound, for one of a single pack only with a
      little work, and to solve the programme where the gap is above 1 and a millionth.
    seed: of the random duals that the first patterns come from.
    progress: is told the best plan and bound so far; with it, the first Ctrl-C ends the
      search.

  Returns:
    The plan and the weights that prove its bound; the best so far where the solver
    fails or the search is stopped, with `failure` or `stopped_by` in the details.

  Raises:
    UnsolvedError: more than `MAX_LENGTHS` different lengths and no limit.

  References:
    Gilmore and Gomory (1961), Farley (1990). Krell et al.,
    https://arxiv.org/abs/2107.02027, section S, poses the problem.
  """
  effort = Effort(
    work=math.inf
    if work_limit is None
    else check_integer("work_limit", work_limit, at_least=1),
    seconds=math.inf if time_limit is None else seconds("time_limit", time_limit),
    progress=progress,
  )
  if target_gap is not None:
    target_gap = check_integer("target_gap", target_gap, at_least=0)
  first = min(
    (algorithm(problem) for algorithm in (heuristics.lpfhp, heuristics.spfhp)),
    key=lambda solution: solution.num_packs,
  )
  if first.num_packs == problem.simple_bound:
    return dataclasses.replace(first, details={"solver": "none needed"})
  unlimited = time_limit is None and work_limit is None
  if problem.sizes.size > MAX_LENGTHS and unlimited:
    raise UnsolvedError(
      f"The histogram has {problem.sizes.size} different lengths; optimal takes at most "
      f"{MAX_LENGTHS} without a limit. Pass work_limit=N, time_limit=SECONDS, a larger "
      'length_multiple, or algorithm="auto".'
    )
  effort.say(packs=first.num_packs, bound=problem.simple_bound)
  with effort.stoppable():
    solution = _search(problem, first, effort, target_gap=target_gap, seed=seed)
  solution.details["work"] = effort.spent
  if effort.over:
    solution.details["stopped_by"] = effort.stopped_by
  return solution


def _search(
  problem: Problem, first: Solution, effort: Effort, *, target_gap: int | None, seed: int
) -> Solution:
  """The best that column generation makes of a first plan."""
  patterns = [tuple(sorted(strategy, reverse=True)) for _, strategy in first.packs]
  best: Usage = collections.Counter()
  for pattern, (n, _) in zip(patterns, first.packs, strict=True):
    best[pattern] += n
  guide = None
  if 3 < problem.depth < most_items(dataclasses.replace(problem, depth=problem.capacity)):
    guide, patterns = _without_depth_limit(problem, patterns, effort, seed)
  try:
    relaxation = solve_relaxation(
      problem,
      start=patterns,
      upper=first.num_packs,
      effort=effort,
      last_pack_work=math.inf if target_gap is not None else LAST_PACK_WORK,
      seed=seed,
      guide=guide,
    )
  except SolverError as error:
    return dataclasses.replace(first, details={"solver": "failed", "failure": str(error)})
  if relaxation is None:
    return dataclasses.replace(first, details={"solver": "stopped"})
  rounding = Rounding(
    problem, relaxation, best=best, target_gap=target_gap, effort=effort, seed=seed
  )
  rounding.run()
  details = {
    "solver": "column generation",
    "relaxation": relaxation.objective,
    "num_patterns": len(relaxation.master.patterns),
  }
  if rounding.failure:
    details["failure"] = rounding.failure
  return Solution(fill(problem, rounding.best), relaxation.weights, details)


def _without_depth_limit(problem, patterns, effort, seed):
  """Duals and patterns of the problem without a depth limit, which is quick to solve."""
  relaxed = dataclasses.replace(problem, depth=problem.capacity)
  try:
    relaxation = solve_relaxation(
      relaxed, start=patterns, upper=0, effort=effort, seed=seed
    )
    solved = None if relaxation is None else relaxation.master.solve()
  except SolverError:
    return None, patterns
  if relaxation is None or solved is None:
    return None, patterns
  known = [p for p in relaxation.master.patterns if len(p) <= problem.depth]
  return np.maximum.accumulate(np.clip(solved[2], 0, 1)), patterns + known
