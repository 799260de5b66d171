"""Keyed permutations: each place once, every order as likely, the same on every machine."""

import collections
import itertools
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from scipy import stats

from packing import histogram
from packing.assignment import sort_by_length
from packing.permutation import permute


def permutations(size, keys):
  """int64[keys, size]."""
  keys = np.random.SeedSequence(keys).generate_state(keys, np.uint64)
  places = np.tile(np.arange(size, dtype=np.uint64), keys.size)
  sizes = np.full(places.size, size, np.uint64)
  return permute(places, sizes, np.repeat(keys, size)).reshape(-1, size).astype(np.int64)


def is_even(counts) -> bool:
  """Whether counts may come from equally likely cases."""
  return stats.chisquare(counts).pvalue > 1e-4


@hypothesis.settings(deadline=None)
@hypothesis.given(
  st.lists(st.integers(1, 3000), min_size=1, max_size=4),
  st.integers(0, 2**64 - 1),
)
def test_each_place_goes_to_another_one_whatever_else_is_asked_for(given, key):
  sizes = np.repeat(given, given).astype(np.uint64)
  places = np.concatenate([np.arange(n, dtype=np.uint64) for n in given])
  together = permute(places, sizes, np.full(places.size, key, np.uint64))
  for size, found in zip(given, np.split(together, np.cumsum(given)[:-1]), strict=True):
    assert sorted(found.tolist()) == [*range(size)]
    one = np.array([size], np.uint64), np.array([key], np.uint64)
    np.testing.assert_array_equal(found, permute(np.arange(size, dtype=np.uint64), *one))


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7])
def test_every_order_of_a_few_is_as_likely(size):
  number = max(20 * math.factorial(size), 2000)
  found = collections.Counter(map(tuple, permutations(size, number).tolist()))
  assert is_even([found[order] for order in itertools.permutations(range(size))])


@pytest.mark.parametrize("size", [10, 63, 64, 101, 1000])
def test_places_and_neighbours_are_as_likely(size):
  number = max(5 * size, 2000)
  orders = permutations(size, number)
  for place in (0, size // 2, size - 1):
    assert is_even(np.bincount(orders[:, place], minlength=size))
  apart = np.bincount((orders[:, 1] - orders[:, 0]) % size, minlength=size)
  assert apart[0] == 0
  assert is_even(apart[1:])
  assert (orders == np.arange(size)).sum(1).mean() == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize(
  ("size", "order"),
  [
    (10, [9, 1, 3, 8, 6]),
    (1000, [295, 463, 608, 624, 299]),
    (2**40, [363411922972, 661846809822, 544591162137, 44007457000, 782344321008]),
  ],
)
def test_the_order_stays_as_it_is(size, order):
  """Runs resume in it; another order would read some sequences twice and others never."""
  one = np.array([size], np.uint64), np.array([12345], np.uint64)
  assert permute(np.arange(5, dtype=np.uint64), *one).tolist() == order


@pytest.mark.parametrize("size", [2**32 + 1, 2**40 + 3, 2**62])
def test_sizes_that_do_not_fit_into_32_bits(size):
  places = np.unique(np.random.default_rng(0).integers(0, size, 20_000)).astype(np.uint64)
  found = permute(places, np.array([size], np.uint64), np.array([7], np.uint64))
  assert np.unique(found).size == places.size
  assert found.max() < size
  tenths = (found / size * 10).astype(np.int64)
  assert is_even(np.bincount(tenths, minlength=10))


@pytest.mark.parametrize("longest", [3, 300, 70_000])
def test_sequences_are_sorted_in_parts_as_at_once(longest, monkeypatch):
  """Also those without a token, and into an array that is there."""
  lengths = np.random.default_rng(0).integers(0, longest + 1, 1000)
  expected = np.argsort(lengths, kind="stable")
  for chunk in (1, 7, 1000, 5000):
    monkeypatch.setattr("packing.assignment.CHUNK", chunk)
    monkeypatch.setattr(histogram, "CHUNK", chunk)
    out = np.zeros(1000, np.uint64)
    assert sort_by_length(lengths, out) is out
    for found in out, sort_by_length(lengths):
      np.testing.assert_array_equal(found, expected)
  assert sort_by_length(lengths[:0]).size == 0
