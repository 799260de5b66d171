"""Plans with the fewest packs possible, or nearly, and a proof of how near."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from packing.algorithms import heuristics, minimum_slack
from packing.algorithms.effort import Effort, check_effort
from packing.algorithms.highs import SolverError
from packing.algorithms.progress import Progress
from packing.algorithms.relaxation import solve_relaxation
from packing.algorithms.rounding import LAST_PACK_WORK, Rounding, fill
from packing.errors import UnsolvedError, check_integer
from packing.problem import Problem, Solution, usage_of

MAX_LENGTHS = 8192  # different lengths; with more the relaxation takes too long
# Units of `Effort` for minimum bin slack, at most; less before a search without a limit, or
# where one pack is left to save.
_QUICK_WORK, _LITTLE_QUICK_WORK = 2 * 10**8, 3 * 10**7


def optimal(
  problem: Problem,
  *,
  effort: float | None = None,
  target_gap: int | None = None,
  seed: int = 0,
  progress: Progress | None = None,
) -> Solution:
  """Minimises the number of packs.

  The method is column generation. The search starts from the best plan of the heuristics.
  If that plan meets the simple bound, no solver runs. Otherwise the linear relaxation gives
  a bound, and its solution is rounded to a plan by diving.

  Args:
    problem: sizes to pack.
    effort: about how many seconds of a core the search may take, after which the best plan
      and bound so far are returned; None for no limit. The solver's steps are counted, not
      the time, so the plan is the same on every machine. In rows of many thousand tokens
      with few lengths, a step takes longer, and the search ten times as long, or more.
    target_gap: the number of packs above the bound that is good enough. The first dive is
      always made. If the gap is larger, more dives follow. The default None stands for a
      millionth of the bound; then little work is spent on a gap of one pack.
    seed: the seed of the random duals that the first patterns come from.
    progress: shows the best plan and bound so far; with it, the first Ctrl-C ends the
      search.

  Returns:
    The plan and the weights that prove its bound. If the solver fails or the search is
    stopped, these are the best so far, and the details have `failure` or `stopped_by`.

  Raises:
    InputError: effort or target_gap is out of range.
    UnsolvedError: there are more than `MAX_LENGTHS` different lengths and no limit.

  References:
    Gilmore and Gomory (1961), Farley (1990). Krell et al.,
    https://arxiv.org/abs/2107.02027, section S, poses the problem.
  """
  limit = Effort(work=check_effort(effort), progress=progress)
  if target_gap is not None:
    target_gap = check_integer("target_gap", target_gap, at_least=0)
  plans = quick_plans(problem, limit, most=_LITTLE_QUICK_WORK)
  first = min(plans.values(), key=lambda plan: plan.num_packs)
  if first.num_packs == problem.simple_bound:
    return dataclasses.replace(first, details={"solver": "none needed"})
  if problem.sizes.size > MAX_LENGTHS and effort is None:
    raise UnsolvedError(
      f"There are {problem.sizes.size} different lengths; optimal takes {MAX_LENGTHS} "
      'without a limit. Pass effort=N, a larger length_multiple, or algorithm="auto".'
    )
  return search(problem, first, limit, target_gap=target_gap, seed=seed)


def quick_plans(
  problem: Problem, effort: Effort, *, most: float = _QUICK_WORK
) -> dict[str, Solution]:
  """The plans of LPFHP, BFD and minimum bin slack, by name.

  They end with the first plan at the simple bound.

  Args:
    problem: sizes to pack.
    effort: counts the work.
    most: the most work for minimum bin slack; it is less if one pack is left to save.
  """
  bound = problem.simple_bound
  plans: dict[str, Solution] = {}
  for name, algorithm in (("lpfhp", heuristics.lpfhp), ("bfd", heuristics.bfd)):
    plans[name] = algorithm(problem)
    if plans[name].num_packs == bound:
      return plans
    if plans[name].num_packs == bound + 1:
      most = min(most, _LITTLE_QUICK_WORK)
  best = minimum_slack.best_of(problem, effort=effort, most=most)
  return plans | ({"mbs": best} if best else {})


def search(
  problem: Problem,
  first: Solution,
  effort: Effort,
  *,
  target_gap: int | None = None,
  seed: int = 0,
) -> Solution:
  """Improves a first plan within an effort; see `optimal`."""
  effort.report(packs=first.num_packs, bound=problem.simple_bound)
  with effort.stoppable():
    solution = _search(problem, first, effort, target_gap=target_gap, seed=seed)
  solution.details["work"] = effort.spent
  if effort.over:
    solution.details["stopped_by"] = effort.stopped_by
  return solution


def _search(
  problem: Problem, first: Solution, effort: Effort, *, target_gap: int | None, seed: int
) -> Solution:
  """Improves a first plan by column generation and rounding."""
  best = usage_of(first.packs)
  patterns = list(usage_of(heuristics.lpfhp(problem).packs))
  guide = None
  try:
    if 3 < problem.depth < problem.most_that_fit:
      guide, patterns = _without_depth_limit(problem, patterns, effort, seed)
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
  """Duals and patterns of the problem without its depth limit, which is quick to solve."""
  unlimited = dataclasses.replace(problem, depth=problem.capacity)
  relaxation = solve_relaxation(
    unlimited, start=patterns, upper=0, effort=effort, seed=seed
  )
  solved = relaxation.master.solve() if relaxation else None
  if relaxation is None or solved is None:
    return None, patterns
  known = [p for p in relaxation.master.patterns if len(p) <= problem.depth]
  return np.maximum.accumulate(np.clip(solved[2], 0, 1)), patterns + known
