"""The advisor's costs against numbers calculated by hand."""

import numpy as np
import pytest

import packing
from packing.commands.advisor import advise, bucket_edges


@pytest.fixture(scope="module")
def advice():
  histogram = packing.Histogram.from_lengths([2, 2, 2, 8], max_sequence_length=8)
  return advise(histogram, hidden_size=1, num_buckets=2)


def test_costs_of_the_choices(advice):
  # A row of L tokens costs L (6 + L): 112 for 8 tokens, 16 for 2; padding costs 4 * 112.
  expected = {  # speed-up, efficiency
    "pad": (1.0, 14 / 32),
    "bucket": (448 / (3 * 16 + 112), 1.0),
    "concatenate": (448 / (2 * 112), 14 / 16),
    "pack": (448 / (2 * 112), 14 / 16),
  }
  assert {c.name for c in advice.choices} == expected.keys()
  for choice in advice.choices:
    found = choice.speed_up, choice.efficiency
    assert found == pytest.approx(expected[choice.name]), choice.name
  speed_ups = [choice.speed_up for choice in advice.choices]
  assert speed_ups == sorted(speed_ups, reverse=True)
  assert advice.padding == pytest.approx(18 / 32)
  assert advice.recommendation == "bucket"


def test_costs_of_packing(advice):
  # Attention within each sequence: 3 * 2^2 + 8^2.
  assert advice.skipping == pytest.approx(448 / (2 * 8 * 6 + 76))
  assert (advice.plan.row_length, advice.plan.max_sequences_per_pack) == (8, 3)


def test_rows_are_those_of_choose_row_length_and_may_be_below_the_limit():
  lengths = [20] * 9 + [9] * 4
  histogram = packing.Histogram.from_lengths(lengths, max_sequence_length=64)
  row = packing.choose_row_length(histogram)
  assert row < 64
  assert advise(histogram).plan.row_length == row


@pytest.mark.parametrize(
  ("number", "edges"),
  [
    (1, [10]),
    (2, [3, 10]),  # 7 * 3 + 10 = 31; [2, 10] costs 32, [1, 10] costs 35
    (3, [1, 3, 10]),  # 5 + 2 * 3 + 10 = 21; [2, 3, 10] costs 25, [1, 2, 10] costs 27
    (9, [1, 2, 3, 10]),
    (10**9, [1, 2, 3, 10]),
  ],
)
def test_buckets_cost_least(number, edges):
  lengths, counts = np.array([1, 2, 3, 10]), np.array([5.0, 1.0, 1.0, 1.0])
  assert bucket_edges(lengths, counts, lambda n: n, number).tolist() == edges


def test_rows_beyond_the_longest_possible_are_left_out(monkeypatch):
  monkeypatch.setattr("packing.row_length.MAX_ROW_LENGTH", 40)
  monkeypatch.setattr("packing.problem.MAX_ROW_LENGTH", 40)
  histogram = packing.Histogram.from_lengths([3, 29, 31], max_sequence_length=32)
  assert advise(histogram).plan.row_length <= 40
