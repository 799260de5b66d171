"""Processes that work at the same time, optionally each on a core of its own."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
from collections.abc import Callable
from typing import Any, TypeVar

from training.command import Stopped
from training.sweep.jobs import cores

MINUTES = 30  # after which unfinished processes are killed
Result = TypeVar("Result")
_barrier: Any = None  # of all processes; set in each


def run_together(
  work: Callable[[int], Result], number: int, *, pinned: bool
) -> list[Result]:
  """Calls work(0), work(1), ..., each in a process of its own; returns the results.

  All processes have started before the first call.

  Args:
    work: can be pickled; it may call `meet`.
    number: of processes.
    pinned: whether each process is bound to a core of its own (Linux).

  Raises:
    ValueError: there are fewer cores than processes to bind to one.
    Stopped: a process failed, or they took too long. By then all have ended.
  """
  context = multiprocessing.get_context("spawn")
  places = cores()[:number] if pinned else [None] * number
  if len(places) < number:
    raise ValueError(
      f"{number} processes cannot have a core each: expected at most {len(places)}, the "
      "cores that this process may use. Start fewer, or pass pinned=False."
    )
  with concurrent.futures.ProcessPoolExecutor(
    number, context, initializer=_share, initargs=(context.Barrier(number),)
  ) as pool:
    futures = [pool.submit(_start, work, n, core) for n, core in enumerate(places)]
    try:
      for future in concurrent.futures.as_completed(futures, timeout=60 * MINUTES):
        future.result()
    except BaseException as error:
      for child in multiprocessing.active_children():
        child.kill()  # a process that waits for another would never end
      if not isinstance(error, Exception):
        raise
      reason = f"{type(error).__name__}: {error}".partition("\n")[0]
      raise Stopped(f"A measuring process failed. {reason}") from error
  return [future.result() for future in futures]


def meet():
  """In a process of `run_together`: waits until all processes have called this."""
  _barrier.wait()


def _share(barrier: Any):
  global _barrier
  _barrier = barrier


def _start(work: Callable[[int], Result], number: int, core: int | None) -> Result:
  if core is not None and hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {core})  # before JAX starts as many threads as there are cores
  meet()  # a waiting process takes no second piece of work, so each gets its own
  return work(number)
