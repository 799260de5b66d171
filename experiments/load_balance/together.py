"""Processes that work at the same time, each on a core of its own.

As devices do, they start a step together, and wait for the slowest.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import jax
import numpy as np

import packing
from launch.sweep.jobs import cores
from training import memory
from training.errors import Stopped

Result = TypeVar("Result")
_barrier: Any = None  # of all processes; set in each


def run_together(work: Callable[[int], Result], number: int) -> list[Result]:
  """Calls work(0), work(1), ..., each in a process of its own; returns the results.

  All processes have started before the first call. Each is bound to a core of its own
  (Linux); processes beyond the number of cores share them.

  Args:
    work: can be pickled; it may call `meet`.
    number: of processes.

  Raises:
    Stopped: a process failed. By then all have ended.
  """
  context = multiprocessing.get_context("spawn")
  places = itertools.islice(itertools.cycle(cores()), number)
  futures: list[concurrent.futures.Future[Result]] = []
  errors: list[BaseException] = []
  try:
    with concurrent.futures.ProcessPoolExecutor(
      number, context, initializer=_share, initargs=(context.Barrier(number),)
    ) as pool:
      futures += [pool.submit(_start, work, n, core) for n, core in enumerate(places)]
  except (OSError, concurrent.futures.BrokenExecutor) as error:  # as processes were started
    errors.append(error)
  errors += filter(None, (future.exception() for future in futures))
  # Those that waited for the process that failed have an error of their own.
  errors.sort(key=lambda x: isinstance(x, threading.BrokenBarrierError))
  if errors:
    reason = f"{type(errors[0]).__name__}: {errors[0]}".partition("\n")[0]
    raise Stopped(f"A measuring process failed. {reason}") from errors[0]
  return [future.result() for future in futures]


def meet():
  """In a process of `run_together`: waits until all processes have called this."""
  _barrier.wait()


def use_cpu():
  """Chooses the CPU, and keeps memory as in training; a new process inherits neither."""
  os.environ["JAX_PLATFORMS"] = "cpu"  # read by `memory.keep`; JAX has its own copy
  jax.config.update("jax_platforms", "cpu")
  memory.keep()


def time_together(works: Iterable[Callable[[], Any]]) -> list[float]:
  """In a process of `run_together`: calls each, at the same time in all processes.

  Returns:
    For each, the seconds of processor time until its arrays were computed. Unlike those of
    the clock, they do not grow if other programs use the core.
  """
  taken = []
  for work in works:
    meet()
    start = time.process_time()
    jax.block_until_ready(work())
    taken.append(time.process_time() - start)
  return taken


def compare(seconds: np.ndarray, predicted: np.ndarray) -> dict[str, Any]:
  """The share of steps that processes wait for the slowest, measured and predicted.

  Args:
    seconds: float[K, n]; what `time_together` returned for K steps in n processes.
    predicted: float[K, n]; what each process computes, in any unit of time.

  Returns:
    `measured` and `predicted`, the means over steps; the `quartiles` of what was measured;
    and `seconds` of a step.
  """
  waiting = 1 - seconds.mean(axis=1) / seconds.max(axis=1)
  return {
    "predicted": packing.waiting(predicted, devices=predicted.shape[1]),
    "measured": float(waiting.mean()),
    "quartiles": np.quantile(waiting, [0.25, 0.75]).tolist(),
    "seconds": float(seconds.max(axis=1).mean()),
  }


def _share(barrier: Any):
  global _barrier
  _barrier = barrier


def _start(work: Callable[[int], Result], number: int, core: int) -> Result:
  if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {core})  # before JAX starts as many threads as there are cores
  meet()  # a waiting process takes no second piece of work, so each gets its own
  try:
    return work(number)
  except Exception:
    _barrier.abort()  # a process that waits for this one would never end
    raise
