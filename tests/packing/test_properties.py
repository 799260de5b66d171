"""Properties of every algorithm on every histogram."""

import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import numpy as np
import pytest

import packing


@st.composite
def problems(draw):
  counts = draw(
    hypothesis.extra.numpy.arrays(np.int64, st.integers(1, 19), elements=st.integers(0, 11))
  )
  hypothesis.assume(counts.any())
  multiple = draw(st.integers(1, 5))
  longest = int(np.flatnonzero(counts)[-1]) + 1
  row = -(-max(longest, counts.size) // multiple) * multiple + draw(st.integers(0, 7))
  return packing.Histogram(counts), {
    "max_sequences_per_pack": draw(st.sampled_from([1, 2, 3, 7, None])),
    "row_length": row,
    "length_multiple": multiple,
    "separator_tokens": draw(st.integers(0, 3)),
  }


def check(plan, histogram, geometry):
  """Checks without the library that a plan is a partition within its bounds."""
  lengths = np.repeat(np.arange(1, histogram.counts.size + 1), histogram.counts)
  packs = [
    strategy
    for strategy, n in zip(plan.strategies, plan.repeat_counts, strict=True)
    for _ in range(n)
  ]
  np.testing.assert_array_equal(np.sort(np.concatenate(packs)), lengths)
  depth = geometry["max_sequences_per_pack"] or lengths.size
  multiple, separator = geometry["length_multiple"], geometry["separator_tokens"]
  for strategy in plan.strategies:
    assert list(strategy) == sorted(strategy)
    assert len(strategy) <= depth
    at = 0
    for length in strategy:  # in a row, each starting at a multiple
      end = at + length
      assert end <= geometry["row_length"]
      at = -(-(-(-end // multiple) * multiple + separator) // multiple) * multiple
  assert len(packs) == plan.num_packs
  assert plan.num_packs * plan.row_length == plan.num_padding_tokens + lengths.sum()
  assert plan.lower_bound >= -(-lengths.sum() // geometry["row_length"])
  assert plan.lower_bound >= -(-lengths.size // depth)
  assert plan.lower_bound >= (lengths > geometry["row_length"] / 2).sum()


@hypothesis.settings(
  max_examples=250, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)
@hypothesis.given(problems())
def test_every_algorithm_makes_a_partition_and_no_bound_is_above_any_plan(problem):
  histogram, geometry = problem
  plans = []
  for algorithm in packing.ALGORITHMS:
    plan = packing.pack(histogram, algorithm=algorithm, **geometry)
    here = dict(geometry)
    if algorithm == "none":
      here["max_sequences_per_pack"] = 1
    else:
      plans.append(plan)
    check(plan, histogram, here)
  assert max(p.lower_bound for p in plans) <= min(p.num_packs for p in plans)
  named = {plan.algorithm: plan for plan in plans}
  assert named["optimal"].num_packs == min(p.num_packs for p in plans)
  assert named["optimal"].gap <= 1


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(problems(), st.sampled_from(["pad", "best_fit"]))
def test_least_squares_with_options(problem, leftovers):
  histogram, geometry = problem
  geometry["max_sequences_per_pack"] = 3
  for algorithm in ("nnlshp", "ennlshp"):
    plan = packing.pack(histogram, algorithm=algorithm, leftovers=leftovers, **geometry)
    check(plan, histogram, geometry)
    assert plan.details["num_packs_before"] >= plan.num_packs


@pytest.mark.parametrize("algorithm", [a for a in packing.ALGORITHMS if "nnls" not in a])
def test_large_counts_stay_exact(algorithm):
  counts = np.zeros(31, np.int64)
  counts[[4, 6, 10, 16, 22]] = [2**44 + 1, 2**45 + 3, 2**43 + 7, 2**46 - 1, 2**45 - 3]
  if algorithm == "greedy":
    counts //= 2**30
  histogram = packing.Histogram(counts)
  plan = packing.pack(histogram, algorithm=algorithm, max_sequences_per_pack=4)
  used = np.zeros(31, object)
  for strategy, n in zip(plan.strategies, plan.repeat_counts.tolist(), strict=True):
    for length in strategy:
      used[length - 1] += n
  assert used.tolist() == counts.tolist()
  assert plan.lower_bound <= plan.num_packs
