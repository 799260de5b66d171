import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import numpy as np
import pytest

import packing


@st.composite
def histograms(draw):
  counts = draw(
    hypothesis.extra.numpy.arrays(np.int64, st.integers(1, 23), elements=st.integers(0, 11))
  )
  hypothesis.assume(counts.any())
  return packing.Histogram(counts)


@hypothesis.given(histograms(), st.sampled_from([1, 2, 3, 7, None]), st.integers(0, 5))
def test_a_plan_is_a_partition_within_its_bounds(histogram, depth, extra):
  plan = packing.pack(
    histogram,
    algorithm="spfhp",
    max_sequences_per_pack=depth,
    row_length=histogram.max_sequence_length + extra,
  )
  lengths = np.repeat(np.arange(1, histogram.counts.size + 1), histogram.counts)
  used = np.concatenate(
    [np.repeat(s, n) for s, n in zip(plan.strategies, plan.repeat_counts, strict=True)]
  )
  np.testing.assert_array_equal(np.sort(used), lengths)
  assert plan.lower_bound <= plan.num_packs
  assert plan.packing_depth <= (depth or plan.row_length)
  assert max(map(sum, plan.strategies)) <= plan.row_length
  assert plan.num_packs * plan.row_length == plan.num_padding_tokens + lengths.sum()


@hypothesis.given(histograms(), st.integers(0, 3))
def test_an_assignment_uses_each_sequence_once_and_fits(histogram, seed):
  rng = np.random.default_rng(seed)
  lengths = np.repeat(np.arange(1, histogram.counts.size + 1), histogram.counts)
  lengths = rng.permutation(lengths)
  plan = packing.pack(histogram, algorithm="spfhp", max_sequences_per_pack=3)
  assignment = plan.assign(lengths, seed=seed)
  assert assignment.num_packs == plan.num_packs
  np.testing.assert_array_equal(np.sort(assignment.sequence_ids), np.arange(lengths.size))
  tokens = np.add.reduceat(lengths[assignment.sequence_ids], assignment.offsets[:-1])
  assert tokens.max() <= plan.row_length
  assert np.diff(assignment.offsets).max() <= 3


def test_another_seed_gives_another_assignment_of_the_same_plan():
  lengths = np.full(101, 3)
  histogram = packing.Histogram.from_lengths(lengths, max_sequence_length=11)
  plan = packing.pack(histogram, algorithm="spfhp")
  first, again, second = (plan.assign(lengths, seed=s).sequence_ids for s in (0, 0, 1))
  np.testing.assert_array_equal(first, again)
  assert (first != second).any()


def test_a_plan_that_is_not_a_partition_is_refused():
  histogram = packing.Histogram(np.array([0, 2, 0, 1]))
  make = lambda strategies, counts: packing.Plan(  # noqa: E731
    histogram, strategies, np.array(counts), 4, 2, "by hand"
  )
  with pytest.raises(packing.InputError, match="uses 1 sequences of length 2"):
    make([(2,), (4,)], [1, 1])
  with pytest.raises(packing.InputError, match="has 6 tokens; the row has 4"):
    make([(2, 4), (2,)], [1, 1])


def test_a_plan_one_sequence_deeper_than_its_limit_is_refused():
  histogram = packing.Histogram(np.array([3]))
  assert packing.Plan(histogram, [(1, 1, 1)], [1], 4, 3, "by hand").packing_depth == 3
  with pytest.raises(packing.InputError, match="has 3 sequences; expected 1 to 2"):
    packing.Plan(histogram, [(1, 1, 1)], [1], 4, 2, "by hand")


@pytest.mark.parametrize(
  ("counts", "message"),
  [
    ([0, -1], r"counts\[1\] \(length 2\) is -1, which is negative"),
    ([0.5], r"counts\[0\] \(length 1\) is 0.5, which is fractional"),
    ([float("nan")], "whole numbers"),
    ([0, 0], "empty"),
    ([], "shape"),
    ([[1]], "shape"),
    (["a"], "whole numbers"),
    ([0] * 2**10 + [2**53], r"more than 2\^62 tokens"),
  ],
)
def test_bad_counts_are_refused(counts, message):
  with pytest.raises(packing.InputError, match=message):
    packing.Histogram(np.array(counts))


@pytest.mark.parametrize(
  ("lengths", "message"),
  [
    ([1, 600], r"lengths\[1\] is 600; expected 1 to max_sequence_length=512"),
    ([0, 3], r"lengths\[0\] is 0"),
    ([], "non-empty"),
    ([1.5], "integers"),
  ],
)
def test_bad_lengths_are_refused(lengths, message):
  with pytest.raises(packing.InputError, match=message):
    packing.Histogram.from_lengths(lengths, max_sequence_length=512)


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"algorithm": "magic"}, "no packing algorithm 'magic'"),
    ({"max_sequences_per_pack": 0}, "expected at least 1"),
    ({"row_length": 7}, "cannot hold the longest sequence, 11"),
  ],
)
def test_bad_options_are_refused(options, message):
  histogram = packing.Histogram.from_lengths([3, 11], max_sequence_length=13)
  with pytest.raises(packing.InputError, match=message):
    packing.pack(histogram, **options)


def test_other_lengths_than_the_plans_are_refused():
  histogram = packing.Histogram.from_lengths([3, 3, 5], max_sequence_length=7)
  plan = packing.pack(histogram, algorithm="spfhp")
  with pytest.raises(
    packing.InputError, match="1 lengths of 3 tokens; the histogram has 2"
  ):
    plan.assign([3, 5, 5])


def test_repeat_counts_that_would_overflow_are_refused():
  histogram = packing.Histogram(np.array([0, 0, 0, 0, 7]))
  make = lambda strategies, counts: packing.Plan(  # noqa: E731
    histogram, strategies, counts, 20, 4, "by hand"
  )
  for counts in ([7, 2**62], np.array([7, 2**64 - 1], np.uint64), [3, 2**80]):
    with pytest.raises(packing.InputError, match=r"A repeat count is .* at most 7"):
      make([(5,), (5, 5, 5, 5)], counts)
  with pytest.raises(packing.InputError, match="uses 8 sequences; the histogram has 7"):
    make([(5,), (5, 5)], [2, 3])


def test_a_plan_puts_its_strategies_in_order():
  histogram = packing.Histogram(np.array([0, 2, 1, 0]))
  strategies = [[np.int64(3), np.int64(2)], [2]]
  plan = packing.Plan(histogram, strategies, [1, 1], 5, None, "by hand")
  assert plan.strategies == [(2, 3), (2,)]
  assert {type(n) for s in plan.strategies for n in s} == {int}
  assert plan.max_sequences_per_pack == 5
  for wrong, message in (
    ([(2, 3), (3, 2)], r"\(2, 3\) occurs more than once"),
    ([(2, 3), (2.0,)], "strategies of whole numbers"),
    ([(2, 3), (2**70,)], "expected 1 to 4"),
  ):
    with pytest.raises(packing.InputError, match=message):
      packing.Plan(histogram, wrong, [1, 1], 5, None, "by hand")
  with pytest.raises(packing.InputError, match="bound_weights as integers"):
    packing.Plan(histogram, strategies, [1, 1], 5, 2, "x", bound_weights=np.ones(2))


@pytest.mark.parametrize("seed", [-1, "a", 1.5])
def test_seeds_are_checked(seed):
  histogram = packing.Histogram.from_lengths([3, 3, 5], max_sequence_length=7)
  plan = packing.pack(histogram, algorithm="spfhp")
  with pytest.raises(packing.InputError, match="seed is"):
    plan.assign([3, 3, 5], seed=seed)
  with pytest.raises(packing.InputError, match="seed is"):
    packing.pack(histogram, seed=seed)
