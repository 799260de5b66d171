"""HiGHS as the algorithms use it: silent, on one thread, limited by work, not by time."""

from __future__ import annotations

import math
import os
import threading

import highspy
import numpy as np

from packing.algorithms.effort import Effort

_WORK_A_COLUMN = 2  # units of `Effort` for each column in an iteration
_REDIRECTING = threading.Lock()  # two threads would restore each other's standard output


class SolverError(RuntimeError):
  """HiGHS could not solve a linear programme."""


def check_status(status):
  """Raises SolverError if HiGHS rejected its input."""
  if status == highspy.HighsStatus.kError:
    raise SolverError("HiGHS rejected an input; this is a bug in packing.")


def set_options(lp: highspy.Highs, **options: bool | float | str):
  """Sets options of HiGHS by their HiGHS names."""
  for name, value in options.items():
    check_status(lp.setOptionValue(name, value))


def _new_solver() -> highspy.Highs:
  """A solver. From version 1.16 on, its constructor prints before any option can be set."""
  with _REDIRECTING, open(os.devnull, "wb") as nowhere:
    try:
      output = os.dup(1)
    except OSError:  # standard output is closed
      return highspy.Highs()
    try:
      os.dup2(nowhere.fileno(), 1)
      return highspy.Highs()
    finally:
      os.dup2(output, 1)
      os.close(output)


def new_programme(lower: np.ndarray, upper: np.ndarray) -> highspy.Highs:
  """A linear programme without columns for the simplex method.

  Args:
    lower, upper: float64[rows]; the bounds of each row.
  """
  lp = _new_solver()
  set_options(
    lp,
    output_flag=False,
    parallel="off",  # `threads` cannot be changed once HiGHS has run
    presolve="off",
    solver="simplex",
    dual_feasibility_tolerance=1e-9,
  )
  none = np.empty(0, np.int32)
  check_status(lp.addRows(lower.size, lower, upper, 0, none, none, np.empty(0)))
  return lp


def add_columns(lp: highspy.Highs, costs: np.ndarray, *, starts, rows, values):
  """Adds columns of at least 0; the entries of column `i` begin at `starts[i]`."""
  n = len(starts)
  lower, upper = np.zeros(n), np.full(n, highspy.kHighsInf)
  starts, rows = np.asarray(starts, np.int32), np.asarray(rows, np.int32)
  values = np.asarray(values, np.float64)
  check_status(lp.addCols(n, costs, lower, upper, rows.size, starts, rows, values))


def run(
  lp: highspy.Highs, effort: Effort, *, columns: int
) -> highspy.HighsModelStatus | None:
  """Runs the simplex method within the effort; None if it did not finish."""
  if effort.over:
    return None
  work = _WORK_A_COLUMN * columns  # of one iteration
  if effort.work_left < math.inf:
    most = min(int(effort.work_left) // work + 1, highspy.kHighsIInf)
    set_options(lp, simplex_iteration_limit=most)
  lp.run()
  effort.spend(work * lp.getInfo().simplex_iteration_count)
  status = lp.getModelStatus()
  return None if status == highspy.HighsModelStatus.kIterationLimit else status
