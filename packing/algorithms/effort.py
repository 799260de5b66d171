"""How long a search goes on: counted in work, so that it ends alike on every machine."""

from __future__ import annotations

import contextlib
import math
import time

from packing.algorithms.progress import Progress


class Effort:
  """Counts the work of a search and says when it is over.

  A unit is one entry of a knapsack's table, or half of a column that an iteration of the
  simplex method goes through. Of these a core does one or two times 10^8 a second.

  Args:
    work: units after which it is over.
    seconds: from now on; what is found then depends on the machine.
    progress: shows how far the search is, and says whether the user wants to stop.

  Attributes:
    spent: units so far.
  """

  def __init__(
    self,
    *,
    work: float = math.inf,
    seconds: float = math.inf,
    progress: Progress | None = None,
  ):
    self.spent = 0
    self._work = work
    self._deadline = math.inf if seconds == math.inf else time.monotonic() + seconds
    self._progress = progress
    self._packs = self._bound = 0

  def spend(self, work: int):
    """Counts work that was done."""
    self.spent += work

  @property
  def stopped_by(self) -> str | None:
    """What ends the search: a limit by its option's name, or the user; None to go on."""
    if self.spent >= self._work:
      return "work_limit"
    if self._deadline < math.inf and time.monotonic() > self._deadline:
      return "time_limit"
    if self._progress is not None and self._progress.stopped:
      return "Ctrl-C"
    return None

  @property
  def over(self) -> bool:
    return self.stopped_by is not None

  @property
  def work_left(self) -> float:
    return max(self._work - self.spent, 0)

  @property
  def seconds_left(self) -> float:
    if self._deadline == math.inf:
      return math.inf
    return max(self._deadline - time.monotonic(), 0.0)

  def say(self, *, packs: int = 0, bound: int = 0):
    """Reports what is known so far: the packs of a plan, or the packs needed."""
    self._packs, self._bound = packs or self._packs, bound or self._bound
    if self._progress is not None:
      self._progress.found(f"{self._packs:,} packs, at least {self._bound:,} needed")

  def stoppable(self) -> contextlib.AbstractContextManager:
    """The first Ctrl-C ends the search, if there is a progress to ask."""
    if self._progress is None:
      return contextlib.nullcontext()
    return self._progress.stoppable()
