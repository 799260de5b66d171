"""The limit of a search, in units of work, so that every machine gives the same result."""

from __future__ import annotations

import contextlib
import math
import numbers

from packing.algorithms.progress import Progress
from packing.errors import check

WORK_A_SECOND = 2.5e8  # units that a core does, about


def check_effort(effort) -> float:
  """Returns an algorithm's option `effort` in units of work; None is no limit.

  Args:
    effort: about how many seconds of a core the search may take; in rows of many thousand
      tokens with few lengths it may take ten times as long, or more.

  Raises:
    InputError: not a number above 0.
  """
  if effort is None:
    return math.inf
  is_number = isinstance(effort, numbers.Real) and not isinstance(effort, bool)
  expected = "a number above 0, about how many seconds of a core, or None for no limit"
  check(is_number and effort > 0, "effort", effort, expected)
  return float(effort) * WORK_A_SECOND


class Effort:
  """Counts the work of a search and ends it at a limit.

  A unit is one entry of a knapsack's table, or half of a column in one iteration of the
  simplex method.

  Args:
    work: the limit in units.
    progress: shows the state of the search and reports whether the user wants to stop it.

  Attributes:
    spent: the units counted so far.
  """

  def __init__(self, *, work: float = math.inf, progress: Progress | None = None):
    self.spent = 0
    self._work = work
    self._progress = progress
    self._packs = self._bound = 0

  def spend(self, work: int):
    """Counts work that was done."""
    self.spent += work

  @property
  def stopped_by(self) -> str | None:
    """What ended the search: "effort" or "Ctrl-C"; None if nothing has yet."""
    if self.spent >= self._work:
      return "effort"
    if self._progress is not None and self._progress.stopped:
      return "Ctrl-C"
    return None

  @property
  def over(self) -> bool:
    return self.stopped_by is not None

  @property
  def work_left(self) -> float:
    return max(self._work - self.spent, 0)

  def report(self, *, packs: int = 0, bound: int = 0):
    """Shows the packs of a better plan, or a better bound."""
    self._packs, self._bound = packs or self._packs, bound or self._bound
    if self._progress is not None:
      self._progress.found(f"{self._packs:,} packs, at least {self._bound:,} needed")

  def stoppable(self) -> contextlib.AbstractContextManager:
    """While the block runs, the first Ctrl-C ends the search, if it shows progress."""
    return self._progress.stoppable() if self._progress else contextlib.nullcontext()
