"""The heuristics against the numbers the papers print."""

import pytest

import packing


@pytest.mark.parametrize(
  ("depth", "num_packs"),
  [(2, 10_101_683), (3, 9_094_695), (4, 8_658_996), (8, 8_224_673), (None, 8_166_708)],
)
def test_spfhp_gives_table_1(depth, num_packs):
  histogram = packing.load_histogram("wikipedia_512")
  plan = packing.pack(histogram, algorithm="spfhp", max_sequences_per_pack=depth)
  assert plan.num_packs == num_packs


@pytest.mark.parametrize(
  ("algorithm", "depth", "strategies", "num_packs", "padding"),
  [
    ("none", 1, 348, 88_641, 18_788_665),
    ("spfhp", 2, 348, 45_335, 2_159_161),
    ("spfhp", 3, 344, 40_711, 383_545),
    ("spfhp", None, 344, 40_711, 383_545),
  ],
)
def test_spfhp_gives_table_5(algorithm, depth, strategies, num_packs, padding):
  histogram = packing.load_histogram("squad_1_1_384")
  plan = packing.pack(histogram, algorithm=algorithm, max_sequences_per_pack=depth)
  assert len(plan.strategies) == strategies
  assert plan.num_packs == num_packs
  assert plan.num_padding_tokens == padding


def test_spfhp_without_a_limit_reaches_the_depth_of_table_1():
  plan = packing.pack(packing.load_histogram("wikipedia_512"), algorithm="spfhp")
  assert plan.packing_depth == 16
