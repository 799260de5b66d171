"""A plan that is as good as a few seconds allow."""

from __future__ import annotations

import dataclasses

from packing.algorithms.effort import Effort, check_effort
from packing.algorithms.optimal import MAX_LENGTHS, quick_plans, search
from packing.algorithms.progress import Progress
from packing.problem import Problem, Solution

_ENOUGH = 1  # packs above the bound for which no search is begun


def auto(
  problem: Problem,
  *,
  effort: float | None = 2,
  seed: int = 0,
  progress: Progress | None = None,
) -> Solution:
  """Tries the heuristics; then `optimal`, within a limit, if they miss the bound.

  A plan at most one pack above the bound begins no search. With more than
  `optimal.MAX_LENGTHS` different lengths, only the heuristics run. `details` names the
  algorithms that ran and their packs.

  Args:
    problem: sizes to pack.
    effort: as for `optimal`; by default two seconds of a core.
    seed: as for `optimal`.
    progress: as for `optimal`.

  Returns:
    The plan with the fewest packs, and the best proven bound.

  Raises:
    InputError: the effort is not above 0.
  """
  limit = Effort(work=check_effort(effort), progress=progress)
  plans = quick_plans(problem, limit)
  best = min(plans.values(), key=lambda plan: plan.num_packs)
  weights, details = None, {}
  enough = best.num_packs <= problem.simple_bound + _ENOUGH
  if not enough and problem.sizes.size <= MAX_LENGTHS:
    plans["optimal"] = best = search(problem, best, limit, seed=seed)
    weights = best.weights
    reported = best.details
    details = {k: reported[k] for k in ("failure", "stopped_by") if k in reported}
  tried = {name: plan.num_packs for name, plan in plans.items()}
  return dataclasses.replace(best, weights=weights, details={"tried": tried, **details})
