"""Clocks that take turns, and the count of operations."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from lab import statistics
from lab.timing import steps, turns
from launch.record.flops import multiply


@pytest.fixture
def ticks(monkeypatch):
  """A wall clock that runs drive by hand; the processor's runs twice as fast."""
  time = {"now": 0.0}
  monkeypatch.setattr(turns, "_now", lambda: np.array([1.0, 2.0]) * time["now"])
  return time


def test_only_the_runs_of_counted_rounds_are_timed(ticks):
  calls, results = [], []

  def run(key, seconds):
    def one(number):
      calls.append((number, key))
      ticks["now"] += seconds + number
      return number

    return one

  def after(key, result):
    ticks["now"] += 1000.0
    results.append((result, key))

  runs = {"a": run("a", 1.0), "b": run("b", 10.0)}
  options = {"rounds": 3, "name": "", "after": after}
  both = turns.in_turns(runs, clock="both", **options)
  assert both["a"].tolist() == [[2, 4], [3, 6], [4, 8]]
  assert [number for number, _ in calls] == [0, 0, 1, 1, 2, 2, 3, 3]
  assert results == calls[2:]
  orders = {tuple(key for _, key in calls[i : i + 2]) for i in (0, 2, 4, 6)}
  assert orders == {("a", "b"), ("b", "a")}
  assert turns.in_turns(runs, **options)["b"].tolist() == [11, 12, 13]
  seconds = turns.in_turns(runs, clock="processor", **options)
  assert seconds["b"].tolist() == [22, 24, 26]
  seconds = turns.in_turns(runs, enough=lambda x: sum(x["a"]) > 4, **options)
  assert seconds["a"].tolist() == [2, 3]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_products_are_those_whose_rate_is_the_peak(dtype):
  product, operations = turns.products(dtype.dtype.name)
  found = product(0)
  assert operations % (2 * len(found) ** 3) == 0
  assert found.dtype == multiply(found.astype(dtype), found.astype(dtype)).dtype


@pytest.mark.parametrize("shape", [(64, 16, 3), (512, 1, 4)])
def test_rows_are_full(shape):
  row_length, depth, rows = shape
  batch = steps.full_rows(*shape)
  assert batch["segment_ids"].shape == (rows, row_length)
  assert (batch["segment_ids"] > 0).all()
  assert batch["sequence_mask"].all()
  assert batch["sequence_mask"].shape == (rows, depth)


def test_intervals_of_medians_have_at_least_95_percent():
  for number in (5, 6, 8, 9, 15, 60):
    interval = statistics.median_interval(np.arange(number))
    low, high = interval["low"], interval["high"]
    if number < 6:
      assert np.isnan([low, high]).all()
      continue
    assert low + high == number - 1  # as far from either end
    # A median lies above the end unless that many tosses or fewer of `number` are heads.
    outside = [2 * scipy.stats.binom.cdf(x, number, 0.5) for x in (low, low + 1)]
    assert outside[0] <= 0.05 < outside[1]
