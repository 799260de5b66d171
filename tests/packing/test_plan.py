"""Histograms, plans and assignments: what they hold, and what they refuse."""

import dataclasses
import tracemalloc

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import packing


def plan_of(counts, strategies, repeat_counts, *, row=4, depth: int | None = 2, **options):
  histogram = packing.Histogram(np.array(counts))
  return packing.Plan(histogram, strategies, repeat_counts, row, depth, "x", **options)


@hypothesis.settings(deadline=None)
@hypothesis.given(st.lists(st.integers(1, 23), min_size=1), st.integers(0, 3))
def test_an_assignment_uses_each_sequence_once_and_fits(given, seed):
  lengths = np.array(given)
  plan = packing.pack(
    lengths, max_sequence_length=23, algorithm="spfhp", max_sequences_per_pack=3
  )
  assignment = plan.assign(lengths, seed=seed)
  assert assignment.num_packs == plan.num_packs
  np.testing.assert_array_equal(np.sort(assignment.sequence_ids), np.arange(lengths.size))
  tokens = np.add.reduceat(lengths[assignment.sequence_ids], assignment.offsets[:-1])
  assert tokens.max() <= plan.row_length
  assert np.diff(assignment.offsets).max() <= 3


def test_packs_are_computed_in_any_order_without_memory_for_all():
  lengths = np.random.default_rng(0).integers(1, 65, 300_000).astype(np.uint8)
  plan = packing.pack(lengths, max_sequence_length=64, algorithm="spfhp")
  assignment = plan.assign(lengths, seed=5)
  numbers = np.random.default_rng(1).permutation(plan.num_packs)[:500]
  tracemalloc.start()
  other = dataclasses.replace(assignment, seed=6)
  rows, others = assignment.sequences(numbers), other.sequences(numbers)
  _, most = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert most < 1e6  # one array of all sequences would be 1.2e6 or more
  assert next(iter(assignment)).base.nbytes < 2e5  # packs keep no padded rows alive
  assert (rows != others).any()
  assert rows.shape == (500, plan.packing_depth)
  for found, computed in ((assignment, rows), (other, others)):
    ends = found.offsets[1:]
    np.testing.assert_array_equal(np.sort(found.sequence_ids), np.arange(lengths.size))
    packs = np.split(found.sequence_ids, ends[:-1])
    assert all(lengths[pack].sum() <= 64 for pack in packs)
    for number, row in zip(numbers, computed, strict=True):
      np.testing.assert_array_equal(row[row >= 0], packs[number])
    np.testing.assert_array_equal(found.sequences(numbers), computed)  # now from an array


def test_another_seed_gives_another_assignment_of_the_same_plan():
  lengths = np.full(101, 3)
  plan = packing.pack(lengths, max_sequence_length=11, algorithm="spfhp")
  first, again, second = (plan.assign(lengths, seed=s).sequence_ids for s in (0, 0, 1))
  np.testing.assert_array_equal(first, again)
  assert (first != second).any()


def test_an_assignment_reads_like_a_list_of_packs():
  lengths = [4, 2, 3, 3, 2]
  plan = packing.pack(lengths, max_sequence_length=8, max_sequences_per_pack=3)
  packs = plan.assign(lengths)
  assert len(packs) == packs.num_packs == 2
  assert sorted(number for pack in packs for number in pack) == [0, 1, 2, 3, 4]
  np.testing.assert_array_equal(packs[1], packs.sequence_ids[packs.offsets[1] :])
  for wrong in (-1, 2, np.uint64(2**63)):
    with pytest.raises(IndexError, match=f"There are 2 packs.* found {wrong}"):
      packs[wrong]
    with pytest.raises(IndexError, match=f"There are 2 packs.* found {wrong}"):
      packs.sequences([wrong])
  for numbers in ([0.7], ["0"], [True], [[0]], 0):
    with pytest.raises(IndexError, match="expected a list of integers"):
      packs.sequences(numbers)
  with pytest.raises(TypeError, match="float"):
    packs[0.7]  # type: ignore[index]
  assert packs.sequences([]).shape == (0, 3)


def test_a_plan_puts_its_strategies_in_order():
  plan = plan_of([0, 2, 1, 0], [[np.int64(3), np.int64(2)], [2]], [1, 1], row=5, depth=None)
  assert plan.strategies == [(2, 3), (2,)]
  assert {type(n) for s in plan.strategies for n in s} == {int}
  assert plan.max_sequences_per_pack == 5
  assert plan_of([3], [(1, 1, 1)], [1], depth=3).packing_depth == 3


@pytest.mark.parametrize(
  ("counts", "strategies", "repeat_counts", "message"),
  [
    ([0, 2, 0, 1], [(2,), (4,)], [1, 1], "uses 1 sequences of length 2"),
    ([0, 2, 0, 1], [(2, 4), (2,)], [1, 1], "has 6 tokens; the row has 4"),
    ([0, 7], [(2,), (2, 2)], [2, 3], "uses 8 sequences of length 2; the histogram has 7"),
    ([3], [(1, 1, 1)], [1], "has 3 sequences; expected 1 to 2"),
    ([0, 2, 2], [(2, 3), (3, 2)], [1, 1], r"\(2, 3\) occurs more than once"),
    # These would overflow.
    ([0, 7], [(2,), (2, 2)], [7, 2**62], "A repeat count is .* at most 7"),
  ],
)
def test_a_plan_that_is_not_a_partition_is_refused(
  counts, strategies, repeat_counts, message
):
  with pytest.raises(packing.InputError, match=message):
    plan_of(counts, strategies, repeat_counts)


@pytest.mark.parametrize(
  ("counts", "message"),
  [
    ([0, -1], r"counts\[1\] is -1; expected"),
    ([0.5], r"counts\[0\] is 0.5; expected"),
    ([0, 0], "empty"),
    ([0] * 2**10 + [2**53], r"exceed 2\^53, or 2\^62 tokens"),
  ],
)
def test_bad_counts_are_refused(counts, message):
  with pytest.raises(packing.InputError, match=message):
    packing.Histogram(np.array(counts))


@pytest.mark.parametrize(
  ("lengths", "size", "message"),
  [
    ([1, 600], 512, r"lengths\[1\] is 600; expected 1 to max_sequence_length=512"),
    ([0, 3], 512, r"lengths\[0\] is 0"),
    ([], 512, "non-empty vector of integers"),
    ([1.5], 512, "vector of integers"),
    ([1], None, "need a max_sequence_length in tokens, such as"),
    (packing.Histogram(np.ones(7, int)), 8, "expected that of the histogram, 7"),
  ],
)
def test_bad_lengths_are_refused(lengths, size, message):
  with pytest.raises(packing.InputError, match=message):
    packing.pack(lengths, max_sequence_length=size)


@pytest.mark.parametrize("kind", [list, tuple, lambda n: np.array(n, np.int32)])
def test_lengths_are_packed_as_their_histogram(kind):
  histogram = packing.Histogram.from_lengths([3, 5, 2, 5], max_sequence_length=7)
  plan = packing.pack(kind([3, 5, 2, 5]), max_sequence_length=7)
  assert plan.strategies == packing.pack(histogram).strategies
  assert plan.histogram.sha256 == histogram.sha256


def test_other_lengths_than_the_plans_are_refused():
  plan = packing.pack([3, 3, 5], max_sequence_length=7, algorithm="spfhp")
  with pytest.raises(
    packing.InputError, match="1 of the lengths are 3; in the plan's histogram"
  ):
    plan.assign([3, 5, 5])


@pytest.mark.parametrize("seed", [-1, "a", 1.5])
def test_seeds_are_checked(seed):
  plan = packing.pack([3, 3, 5], max_sequence_length=7)
  for refused in (
    lambda: plan.assign([3, 3, 5], seed=seed),
    lambda: packing.pack(plan.histogram, seed=seed),
  ):
    with pytest.raises(packing.InputError, match="seed is"):
      refused()
