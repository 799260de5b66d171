"""The fewest packs that are found in about a tenth of a second, for hundreds of lengths.

Where a pack holds many sequences, minimum bin slack fills all packs but the last. Where it
holds two or three long ones, the best plan has gaps too: a sequence of half a row may take
its pack's whole worth, and one of a tenth none. The duals of the linear relaxation are what
sequences are worth, nearly a function of the length, so a sample of the lengths gives them.
With the duals as values, nearly all packs of minimum bin slack are worth a pack, and the
last few lose all. These and some others are packed again by the relaxation and rounding.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from packing.algorithms import minimum_slack
from packing.algorithms.effort import Effort
from packing.algorithms.highs import SolverError
from packing.algorithms.optimal import quick_plans, search
from packing.algorithms.relaxation import solve_relaxation
from packing.problem import Problem, Solution, Strategy

# Units of `Effort` for minimum bin slack, and for the relaxations, at most.
_QUICK_WORK, _WORK = 10**8, 3 * 10**7
_FEW = 3  # sequences in a pack; the best such packs are quick to find
_SAMPLE, _SAMPLES = 48, 16  # lengths in a sample, and samples at most
_POWER = 1.2  # of the duals; above 1 prefers one long sequence to two, as in `fill`
_TIE = 0.002  # what the length of a row is worth, so that of equal duals the longest goes
_TIMES, _PACKS = 2, 60  # how often at least, and how many packs are packed again
_NOISE = 0.03  # of what a pack loses, so that other packs are packed again each time


def fewest(problem: Problem) -> Solution:
  """A plan that never has more packs than best-fit decreasing.

  Args:
    problem: sizes to pack.

  References:
    Shaw, Using constraint programming and local search methods to solve vehicle routing
    problems (1998), for packing a part again.
  """
  few = int(problem.demand.sum()) <= _FEW * problem.simple_bound
  best = _quick(problem, 0 if few else _QUICK_WORK)
  if few and best.num_packs == problem.simple_bound + 1:
    best = min(best, _by_size(problem), key=_num_packs)
  if few and best.num_packs > problem.simple_bound:
    plan = _by_worth(problem)
    if plan.num_packs >= best.num_packs:
      plan = _quick(problem, _QUICK_WORK)
    best = min(best, plan, key=_num_packs)
  return best


def _num_packs(plan: Solution) -> int:
  return plan.num_packs


def _quick(problem: Problem, most: float) -> Solution:
  return min(quick_plans(problem, Effort(), most=most).values(), key=_num_packs)


def _by_size(problem: Problem) -> Solution:
  return Solution(minimum_slack.fill(problem, problem.sizes))


def _by_worth(problem: Problem) -> Solution:
  effort, rng = Effort(work=_WORK), np.random.default_rng(0)
  try:
    worth = _worth(problem, effort)
  except SolverError:
    return _by_size(problem)
  packs = _expand(minimum_slack.fill(problem, worth**_POWER))
  for times in itertools.count(1):
    before = len(packs)
    packs = _pack_again(problem, packs, worth, effort, rng)
    if len(packs) == problem.simple_bound or (times >= _TIMES and len(packs) == before):
      break
  return Solution([(1, pack) for pack in packs])


def _worth(problem: Problem, effort: Effort) -> np.ndarray:
  """float64[R], ascending; the share of a pack that a sequence of each size is worth.

  Raises:
    SolverError: the solver failed, or the effort is over.
  """
  sizes = np.repeat(problem.sizes, problem.demand)
  step = -(-sizes.size // _SAMPLE)
  samples = min(4 + step // 8, _SAMPLES)  # more if each leaves out more
  starts = np.unique(np.linspace(0, step - 1, samples).astype(int))
  worth = _TIE * problem.sizes / problem.capacity
  for start in starts.tolist():
    sample = _part(problem, sizes[start::step], step)
    relaxation = solve_relaxation(sample, start=[], upper=sizes.size + step, effort=effort)
    solved = relaxation.master.solve() if relaxation else None
    if solved is None:
      raise SolverError("The effort is over.")
    duals = np.maximum.accumulate(np.clip(solved[2], 0, 1))
    worth = worth + np.interp(problem.sizes, sample.sizes, duals) / starts.size
  return worth


def _pack_again(
  problem: Problem,
  packs: list[Strategy],
  worth: np.ndarray,
  effort: Effort,
  rng: np.random.Generator,
) -> list[Strategy]:
  """The packs after those that lose most, and some others, were packed again."""
  loss = np.array([1 - worth[problem.sizes.searchsorted(pack)].sum() for pack in packs])
  order = np.argsort(-loss - _NOISE * rng.random(len(packs)), kind="stable").tolist()
  chosen, others = ([packs[i] for i in part] for part in (order[:_PACKS], order[_PACKS:]))
  first = Solution([(1, pack) for pack in chosen])
  part = _part(problem, np.concatenate(chosen))
  return others + _expand(search(part, first, effort).packs)


def _part(problem: Problem, sizes: np.ndarray, times: int = 1) -> Problem:
  """The problem of some of the sizes, each `times` times, with few of them in a pack."""
  counts = times * np.bincount(sizes - 1, minlength=problem.capacity)
  return dataclasses.replace(problem, counts=counts, depth=_FEW)


def _expand(packs: list[tuple[int, Strategy]]) -> list[Strategy]:
  return [pack for count, pack in packs for _ in range(count)]
