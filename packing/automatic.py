"""The best plan within a time budget."""

from __future__ import annotations

import dataclasses
import time

from packing import heuristics
from packing.errors import seconds
from packing.optimal import MAX_LENGTHS, optimal
from packing.problem import Problem, Solution


def auto(problem: Problem, *, time_budget: float = 30.0, seed: int = 0) -> Solution:
  """Tries the heuristics, then the optimum for as long as the budget allows.

  Stops as soon as a plan is proven minimal. With more than `optimal.MAX_LENGTHS`
  different lengths only LPFHP and SPFHP run; `details` says what ran.

  Args:
    problem: sizes to pack.
    time_budget: seconds; a budget for the search, not a hard limit on its last step.
    seed: of `optimal`.

  Returns:
    The plan with the fewest packs found, and the best bound proven.

  Raises:
    InputError: a budget that is not above 0.
  """
  time_budget = seconds("time_budget", time_budget)
  start = time.monotonic()
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
    if best.num_packs == problem.simple_bound or time.monotonic() - start > time_budget:
      break
  assert best is not None
  left = time_budget - (time.monotonic() - start)
  proven = best.num_packs == problem.simple_bound
  if not proven and left > 0 and not many:
    found = optimal(problem, time_limit=left, seed=seed)
    tried["optimal"] = found.num_packs
    weights = found.weights
    if "failure" in found.details:
      details["failure"] = found.details["failure"]
    if found.num_packs < best.num_packs:
      best = found
  return dataclasses.replace(best, weights=weights, details=details)
