"""The best plan within a limit of work."""

from __future__ import annotations

import dataclasses

from packing.algorithms import heuristics
from packing.algorithms.optimal import MAX_LENGTHS, optimal
from packing.algorithms.progress import Progress
from packing.errors import check_integer
from packing.problem import Problem, Solution

WORK_LIMIT = 5 * 10**9  # about half a minute


def auto(
  problem: Problem,
  *,
  work_limit: int = WORK_LIMIT,
  seed: int = 0,
  progress: Progress | None = None,
) -> Solution:
  """Tries the heuristics, then `optimal` within a limit of work.

  Stops as soon as a plan is proven minimal. With more than `optimal.MAX_LENGTHS` different
  lengths, only LPFHP and SPFHP run. `details` names the algorithms that ran.

  Args:
    problem: sizes to pack.
    work_limit: as for `optimal`; the default takes about half a minute.
    seed: as for `optimal`.
    progress: as for `optimal`.

  Returns:
    The plan with the fewest packs, and the best proven bound.

  Raises:
    InputError: the limit is below 1.
  """
  check_integer("work_limit", work_limit, at_least=1)
  many = problem.sizes.size > MAX_LENGTHS
  solutions: dict[str, Solution] = {}
  for algorithm in heuristics.lpfhp, heuristics.spfhp, *([] if many else [heuristics.ffd]):
    solution = solutions[algorithm.__name__] = algorithm(problem)
    if solution.num_packs == problem.simple_bound:
      break
  details: dict = {}
  weights = None
  if solution.num_packs > problem.simple_bound and not many:
    solution = solutions["optimal"] = optimal(
      problem, work_limit=work_limit, seed=seed, progress=progress
    )
    weights = solution.weights
    reported = solution.details
    details = {k: reported[k] for k in ("failure", "stopped_by") if k in reported}
  tried = {name: solution.num_packs for name, solution in solutions.items()}
  best = min(solutions.values(), key=lambda solution: solution.num_packs)
  return dataclasses.replace(best, weights=weights, details={"tried": tried, **details})
