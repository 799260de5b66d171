"""The best plan within a limit of work."""

from __future__ import annotations

import dataclasses

from packing.algorithms import heuristics
from packing.algorithms.optimal import MAX_LENGTHS, optimal
from packing.algorithms.progress import Progress
from packing.errors import check_integer, seconds
from packing.problem import Problem, Solution

WORK_LIMIT = 5 * 10**9  # half a minute or so


def auto(
  problem: Problem,
  *,
  work_limit: int = WORK_LIMIT,
  time_budget: float | None = None,
  seed: int = 0,
  progress: Progress | None = None,
) -> Solution:
  """Tries the heuristics, then the optimum as far as the limit of work allows.

  Stops as soon as a plan is proven minimal. With more than `optimal.MAX_LENGTHS`
  different lengths only LPFHP and SPFHP run; `details` says what ran.

  Args:
    problem: sizes to pack.
    work_limit: of `optimal`, which see; by default it takes half a minute or so.
    time_budget: of `optimal`, in seconds; None for none. The plan then depends on the
      machine and on what else runs there; without it, it does not.
    seed: of `optimal`.
    progress: as of `optimal`.

  Returns:
    The plan with the fewest packs found, and the best bound proven.

  Raises:
    InputError: a limit that is not above 0.
  """
  check_integer("work_limit", work_limit, at_least=1)
  if time_budget is not None:
    time_budget = seconds("time_budget", time_budget)
  tried: dict[str, int] = {}
  best: Solution | None = None
  weights = None
  details: dict = {"tried": tried}
  many = problem.sizes.size > MAX_LENGTHS
  quick = (heuristics.lpfhp, heuristics.spfhp, *(() if many else (heuristics.ffd,)))
  for algorithm in quick:
    found = algorithm(problem)
    tried[algorithm.__name__] = found.num_packs
    if best is None or found.num_packs < best.num_packs:
      best = found
    if best.num_packs == problem.simple_bound:
      break
  assert best is not None
  if best.num_packs > problem.simple_bound and not many:
    found = optimal(
      problem, work_limit=work_limit, time_limit=time_budget, seed=seed, progress=progress
    )
    tried["optimal"] = found.num_packs
    weights = found.weights
    details |= {
      k: found.details[k] for k in ("failure", "stopped_by") if k in found.details
    }
    if found.num_packs < best.num_packs:
      best = found
  return dataclasses.replace(best, weights=weights, details=details)


__all__ = ["WORK_LIMIT", "auto"]
