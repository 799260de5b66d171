"""Clocks: times runs in turns, so that drift of the machine affects all of them alike.

A device may still compute when Python goes on. So steps are timed in two ways: *queued*, a
block of steps one after another with one wait at its end, as in training; and *awaited*,
each step by itself. The second includes the time between Python's call and the device's
work. A ratio compares times of one way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from launch.record.compilations import CompilationCounter
from launch.record.flops import multiply
from launch.record.progress import Progress

Key = TypeVar("Key", bound=Hashable)
Batch = TypeVar("Batch")
CLOCKS = ("wall", "processor")


def measure_rates(
  runs: Mapping[Key, Callable[[int], Any]], number: int, *, rounds: int, name: str
) -> tuple[dict[Key, Any], dict[Key, dict[str, Any]]]:
  """Makes the first run of each, which compiles, and then times them in turns.

  Returns:
    By key, the result of the first run; and its `first_seconds` and `compilations` of
    evaluation steps, and `rates`, `number` divided by the seconds of each round.
  """
  counter = CompilationCounter()
  results: dict[Key, Any] = {}
  measured: dict[Key, dict[str, Any]] = {}
  for key, run in runs.items():
    before, start = counter.count("_eval_step"), time.perf_counter()
    results[key] = run(0)
    measured[key] = {
      "first_seconds": time.perf_counter() - start,
      "compilations": counter.count("_eval_step") - before,
    }
  for key, seconds in in_turns(runs, rounds=rounds, name=name).items():
    measured[key]["rates"] = (number / seconds).tolist()
  return results, measured


def queued(
  step: Callable[[Batch], Any],
  batches: Sequence[Batch],
  *,
  steps: int,
  wait: Callable[[], Any] = lambda: None,
) -> Callable[[int], Any]:
  """For `in_turns`: makes a block of steps, one after another without waiting.

  Args:
    step: makes a step with a batch, and may return before the device is done.
    batches: each round takes the next `steps` of them; too few are repeated.
    steps: of a block; with 1, each step is awaited.
    wait: called after the block; returns when the device is done. `in_turns` itself waits
      for JAX's arrays, so steps of JAX need none.

  Returns:
    What makes the block of a round, and returns what the last step returned.
  """

  def run(number: int):
    for index in range(number * steps, (number + 1) * steps):
      result = step(batches[index % len(batches)])
    wait()
    return result

  return run


def steadiest_clock() -> str:
  """For `in_turns`: "processor", or "wall" if the processor's misses the device's work."""
  return "processor" if jax.default_backend() == "cpu" else "wall"


def in_turns(
  runs: Mapping[Key, Callable[[int], Any]],
  *,
  rounds: int,
  name: str,
  clock: str = "wall",
  after: Callable[[Key, Any], Any] = lambda key, result: None,
  enough: Callable[[dict[Key, np.ndarray]], bool] = lambda seconds: False,
) -> dict[Key, np.ndarray]:
  """Times several runs in turns, so that drift of the machine affects all of them alike.

  Each round runs each of them once, in random order. The first round is not counted.

  Args:
    runs: by key; each takes the number of the round, from 0, and returns arrays that
      are ready when it is done.
    rounds: how many are counted, at most.
    name: of the progress bar.
    clock: "wall"; or "processor", the processor time of all cores, which says less about
      the duration of a step but is steadier on a shared machine; or "both".
    after: called with the result when the clock has stopped, in counted rounds.
    enough: called after each counted round with the results so far; if it returns True,
      no round follows.

  Returns:
    float[rounds] by key, in seconds; for both clocks float[rounds, 2], wall clock first.

  Example:
    >>> seconds = in_turns({"a": lambda number: number}, rounds=3, name="a")
    >>> seconds["a"].shape
    (3,)
  """
  rng = np.random.default_rng(0)
  keys = list(runs)
  columns: Any = slice(None) if clock == "both" else CLOCKS.index(clock)
  seconds = {key: np.empty((rounds, 2)) for key in runs}
  counted: dict[Key, np.ndarray] = {}
  with Progress(name, total=(rounds + 1) * len(keys), unit="runs") as progress:
    for number in range(rounds + 1):
      for index in rng.permutation(len(keys)).tolist():
        key = keys[index]
        start = _now()
        result = jax.block_until_ready(runs[key](number))
        passed = _now() - start
        if number:
          seconds[key][number - 1] = passed
          after(key, result)
        progress.update()
      counted = {key: both[:number, columns] for key, both in seconds.items()}
      if number and enough(counted):
        break
  return counted


def products(dtype: str) -> tuple[Callable[[int], Any], int]:
  """For `in_turns`: makes products of [D, D] with [D, D]; and their operations.

  D is 8,192, or 2,048 on a CPU: large enough for the device's peak.
  """
  size, number = (2048, 1) if jax.default_backend() == "cpu" else (8192, 10)
  matrix = jax.random.normal(jax.random.key(0), (size, size), dtype)

  def run(_: int):
    for _ in range(number):
      product = multiply(matrix, matrix)
    return product

  return run, number * 2 * size**3


def _now() -> np.ndarray:
  return np.array([time.perf_counter(), time.process_time()])
