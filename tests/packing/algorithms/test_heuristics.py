"""The heuristics against the numbers in the papers, and against slow versions."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import packing
from packing.problem import Problem
from tests.packing import reference


@pytest.mark.parametrize(
  ("name", "algorithm", "depth", "expected"),
  [  # packs, then as far as the paper has them: depth reached, strategies, padding
    # Table 1
    ("wikipedia_512", "spfhp", 2, (10_101_683,)),
    ("wikipedia_512", "spfhp", 3, (9_094_695,)),
    ("wikipedia_512", "spfhp", 4, (8_658_996,)),
    ("wikipedia_512", "spfhp", 8, (8_224_673,)),
    # Section 4.1: the depth that SPFHP reaches without a limit
    ("wikipedia_512", "spfhp", None, (8_166_708, 16, 508, 16_558_323)),
    # Table 5
    ("squad_1_1_384", "none", 1, (88_641, 1, 348, 18_788_665)),
    ("squad_1_1_384", "spfhp", 2, (45_335, 2, 348, 2_159_161)),
    ("squad_1_1_384", "spfhp", 3, (40_711, 3, 344, 383_545)),
    ("squad_1_1_384", "spfhp", None, (40_711, 3, 344, 383_545)),
    # Table 6
    ("glue_cola_128", "none", 1, (8_551, 1, 34, 997_669)),
    ("glue_cola_128", "spfhp", None, (913, 13, 29, 20_005)),
    ("glue_sst2_128", "none", 1, (67_349, 1, 64, 7_723_633)),
    ("glue_sst2_128", "spfhp", None, (7_691, 15, 64, 87_409)),
    # Table 7
    ("wikipedia_512", "lpfhp", 1, (16_279_552, 1, 508, 4_170_334_451)),
    ("wikipedia_512", "lpfhp", 2, (10_099_081, 2, 634, 1_005_933_299)),
    ("wikipedia_512", "lpfhp", 3, (9_090_154, 3, 648, 489_362_675)),
    ("wikipedia_512", "lpfhp", 4, (8_657_119, 4, 671, 267_648_755)),
    ("wikipedia_512", "lpfhp", 8, (8_207_569, 8, 670, 37_479_155)),
    ("wikipedia_512", "lpfhp", 16, (8_140_006, 16, 670, 2_886_899)),
    ("wikipedia_512", "lpfhp", None, (8_138_483, 29, 670, 2_107_123)),
  ],
)
def test_the_heuristics_give_the_tables_of_the_paper(name, algorithm, depth, expected):
  plan = packing.pack(
    packing.load_histogram(name), algorithm=algorithm, max_sequences_per_pack=depth
  )
  found = (
    *(plan.num_packs, plan.packing_depth),
    *(plan.num_strategies, plan.num_padding_tokens),
  )
  assert found[: len(expected)] == expected


def test_splitting_counts_pairs_halves():
  histogram = packing.Histogram.from_lengths([4] * 7, max_sequence_length=8)
  split = packing.pack(histogram, algorithm="lpfhp")
  whole = packing.pack(histogram, algorithm="lpfhp", split_counts="no")
  assert (split.num_packs, whole.num_packs) == (4, 7)


@hypothesis.settings(max_examples=1000, deadline=None)
@hypothesis.given(
  st.lists(st.integers(1, 29), min_size=1, max_size=60),
  st.integers(1, 7),
  st.sampled_from([("ffd", "first"), ("bfd", "best"), ("greedy", "next")]),
  st.integers(0, 11),
  st.integers(0, 2),
)
def test_packs_are_those_of_sequence_by_sequence(lengths, depth, names, extra, separator):
  algorithm, slow = names
  options = {}
  if algorithm == "greedy":
    options = {"order": lengths, "separator_tokens": separator}
  plan = packing.pack(
    packing.Histogram.from_lengths(lengths, max_sequence_length=29),
    algorithm=algorithm,
    row_length=29 + extra,
    max_sequences_per_pack=depth,
    **options,
  )
  packs = np.repeat(np.arange(plan.num_strategies), plan.repeat_counts)
  expected = reference.one_by_one(
    lengths if options else sorted(lengths, reverse=True),
    slow,
    row_length=29 + extra,
    depth=depth,
    separator=separator if options else 0,
  )
  assert sorted(plan.strategies[k] for k in packs) == expected


@pytest.mark.slow
def test_greedy_and_its_separators_cost_what_section_h_says():
  histogram = packing.load_histogram("wikipedia_512")
  # 78.24 % with a standard deviation of 0.005 over orders: within three of them.
  plan = packing.pack(histogram, algorithm="greedy", max_sequences_per_pack="max", seed=3)
  assert abs(100 * plan.efficiency - 78.24) < 3 * 0.005
  # About 0.13 points for one between two sequences and 0.27 for two. Differences show
  # on a tenth of the sequences as well.
  tenth = packing.Histogram(histogram.counts // 10)
  none, one, two = (
    packing.pack(tenth, algorithm="greedy", separator_tokens=t, seed=3).efficiency
    for t in (0, 1, 2)
  )
  assert abs(100 * (none - one) - 0.13) < 0.02
  assert abs(100 * (none - two) - 0.27) < 0.02


def test_greedy_takes_another_order_with_another_seed():
  histogram = packing.load_histogram("glue_sst2_128")
  first, again, second = (
    packing.pack(histogram, algorithm="greedy", seed=s).num_packs for s in (0, 0, 1)
  )
  assert first == again != second


@pytest.mark.parametrize(("batch", "multiple"), [(1, 1), (7, 1), (64, 8), (2000, 5)])
def test_sorted_batches_against_sorting(batch, multiple):
  lengths = np.random.default_rng(1).integers(1, 54, 1009)
  histogram = packing.Histogram.from_lengths(lengths, max_sequence_length=53)
  parts = np.split(np.sort(lengths), range(batch, lengths.size, batch))
  padded = [-(-int(part[-1]) // multiple) * multiple for part in parts]
  tokens = sum(part.size * length for part, length in zip(parts, padded, strict=True))
  found = packing.sorted_batches(histogram, batch_size=batch, length_multiple=multiple)
  assert found.num_tokens == tokens
  assert found.num_shapes == len(set(padded))
  assert found.num_padding_tokens == tokens - lengths.sum()


@hypothesis.settings(max_examples=500, deadline=None)
@hypothesis.given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 7))
def test_mffd_is_that_of_sequence_by_sequence(lengths, depth):
  plan = packing.pack(
    lengths, max_sequence_length=60, algorithm="mffd", max_sequences_per_pack=depth
  )
  packs = [
    s for s, n in zip(plan.strategies, plan.repeat_counts, strict=True) for _ in range(n)
  ]
  expected = reference.modified_first_fit(lengths, row_length=60, depth=depth)
  assert sorted(packs) == expected


@pytest.mark.parametrize("classes", [1, 3, 12])
def test_harmonic_packs_hold_one_class(classes):
  lengths = np.random.default_rng(0).integers(1, 61, 2003)
  plan = packing.pack(
    lengths,
    max_sequence_length=60,
    algorithm="harmonic",
    max_sequences_per_pack=None,
    classes=classes,
  )
  not_full = 0
  for strategy, count in zip(plan.strategies, plan.repeat_counts, strict=True):
    (kind,) = {min(60 // length, classes) for length in strategy}
    if kind < classes:
      not_full += int(count) * (len(strategy) < kind)
  assert not_full < classes  # the last pack of each class


@pytest.mark.parametrize("depth", [1, 2, 3, 5, None])
def test_minimum_bin_slack_beats_best_fit_where_depth_binds(depth):
  histogram = packing.load_histogram("wikipedia_512")
  best, slack = (
    packing.pack(histogram, algorithm=name, max_sequences_per_pack=depth)
    for name in ("bfd", "mbs")
  )
  assert slack.num_packs <= best.num_packs
  if depth == 3:  # the optimum has 8,143,830 packs, BFD 9,090,154
    assert slack.num_packs < 1.01 * 8_143_830


@hypothesis.settings(max_examples=500, deadline=None)
@hypothesis.given(st.lists(st.integers(1, 17), min_size=1, max_size=9), st.integers(1, 5))
def test_the_simple_bound_is_one(lengths, depth):
  histogram = packing.Histogram.from_lengths(lengths, max_sequence_length=17)
  bound = Problem(histogram.counts, 17, depth).simple_bound
  assert bound >= max(
    -(-sum(lengths) // 17), -(-len(lengths) // depth), sum(n > 8 for n in lengths)
  )
  assert bound <= reference.fewest_packs(lengths, row_length=17, depth=depth)


def test_the_simple_bound_is_that_of_the_relaxation_on_wikipedia():
  histogram = packing.load_histogram("wikipedia_512")
  plan = packing.pack(histogram, algorithm="bfd", max_sequences_per_pack=None)
  assert plan.lower_bound == 8_135_727  # by tokens 8,134,368
