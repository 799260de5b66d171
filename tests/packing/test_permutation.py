"""Keyed permutations: each place once, every order as likely, the same on every machine."""

import collections
import itertools
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from scipy import stats

from packing.permutation import permute, word_of

WORDS = [np.uint32, np.uint64]


def permutations(size, keys, word):
  """int64[keys, size]."""
  keys = np.random.SeedSequence(keys).generate_state(keys, word)
  places = np.tile(np.arange(size, dtype=word), keys.size)
  sizes = np.full(places.size, size, word)
  return permute(places, sizes, np.repeat(keys, size)).reshape(-1, size).astype(np.int64)


def is_even(counts) -> bool:
  """Whether counts may come from equally likely cases."""
  return stats.chisquare(counts).pvalue > 1e-4


@hypothesis.settings(deadline=None)
@hypothesis.given(
  st.lists(st.integers(1, 3000), min_size=1, max_size=4),
  st.integers(0, 2**32 - 1),
  st.sampled_from(WORDS),
)
def test_each_place_goes_to_another_one_whatever_else_is_asked_for(given, key, word):
  sizes = np.repeat(given, given).astype(word)
  places = np.concatenate([np.arange(n, dtype=word) for n in given])
  together = permute(places, sizes, np.full(places.size, key, word))
  for size, found in zip(given, np.split(together, np.cumsum(given)[:-1]), strict=True):
    assert sorted(found.tolist()) == [*range(size)]
    one = np.array([size], word), np.array([key], word)
    np.testing.assert_array_equal(found, permute(np.arange(size, dtype=word), *one))


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7])
def test_every_order_of_a_few_is_as_likely(size, word):
  number = max(20 * math.factorial(size), 2000)
  found = collections.Counter(map(tuple, permutations(size, number, word).tolist()))
  assert is_even([found[order] for order in itertools.permutations(range(size))])


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("size", [10, 63, 64, 101, 1000])
def test_places_and_neighbours_are_as_likely(size, word):
  number = max(5 * size, 2000)
  orders = permutations(size, number, word)
  for place in (0, size // 2, size - 1):
    assert is_even(np.bincount(orders[:, place], minlength=size))
  apart = np.bincount((orders[:, 1] - orders[:, 0]) % size, minlength=size)
  assert apart[0] == 0
  assert is_even(apart[1:])
  assert (orders == np.arange(size)).sum(1).mean() == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize(
  ("word", "size", "order"),
  [
    (np.uint32, 10, [2, 6, 4, 8, 9]),
    (np.uint32, 1000, [963, 136, 601, 583, 464]),
    (np.uint64, 10, [3, 8, 2, 9, 5]),
    (np.uint64, 1000, [8, 499, 796, 861, 13]),
  ],
)
def test_the_order_stays_as_it_is(word, size, order):
  """Runs resume in it; another order would read some sequences twice and others never."""
  one = np.array([size], word), np.array([12345], word)
  assert permute(np.arange(5, dtype=word), *one).tolist() == order


def test_sizes_that_do_not_fit_into_32_bits():
  assert word_of(2**31) is np.uint32
  assert word_of(2**31 + 1) is np.uint64
  for size, word in ((2**31, np.uint32), (2**40 + 3, np.uint64)):
    rng = np.random.default_rng(0)
    places = np.unique(rng.integers(0, size, 20_000)).astype(word)
    one = np.array([size], word), np.array([7], word)
    found = permute(places, *one)
    assert np.unique(found).size == places.size
    assert found.max() < size
    assert is_even(np.bincount(found.astype(np.int64) * 10 // size, minlength=10))
