"""The chosen row length against costs calculated by hand."""

import numpy as np
import pytest

import packing
from packing import Cost, Histogram, choose_row_length


def chosen(lengths, limit=512, **options):
  return choose_row_length(
    Histogram.from_lengths(lengths, max_sequence_length=limit), **options
  )


def test_a_longer_row_where_it_packs_better():
  # 9 rows of 24 hold 216 tokens; 5 rows of 40, with two sequences each, 200.
  assert chosen([20] * 9, cost=Cost(1.0, 0.0)) == 40
  # With attention, 216 + 9 * 24^2 / 50 = 319.7 and 200 + 5 * 40^2 / 50 = 360.
  assert chosen([20] * 9, cost=Cost(1.0, 1 / 50)) == 24


def test_the_shortest_within_one_percent_of_the_cheapest():
  # 20 rows of 104 with 2080 tokens; 10 of 208 -> 256 with 2560. Rows of 104 are exact.
  assert chosen([104] * 20) == 104
  # 100 rows of 8 in 800 tokens; two in a row of 16 are as many, so the shorter one.
  assert chosen([8] * 100, cost=Cost(1.0, 0.0)) == 8


@pytest.mark.parametrize(
  ("longest", "limit", "row"),
  [(121, 512, 128), (129, 512, 256), (200, 200, 200), (3, 5, 5)],
)
def test_rows_suit_kernels_and_the_first_keeps_the_limit(longest, limit, row):
  one_alone = [longest, *([1] * 60)]
  assert chosen(one_alone, limit, cost=Cost(1.0, 1.0)) == row


def test_the_limit_alone_makes_no_row_longer():
  rng = np.random.default_rng(0)
  lengths = rng.integers(5, 60, 500)
  assert chosen(lengths, 64) == chosen(lengths, 512) <= 128
  plan = packing.pack(lengths, max_sequence_length=512, row_length=chosen(lengths))
  assert plan.efficiency > 0.98
