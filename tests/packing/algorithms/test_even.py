"""Even packs: as many as before, with the least spread of squared lengths."""

import collections
import math
from typing import Any

import numpy as np
import pytest

import packing
from packing.algorithms.even import _all_patterns
from packing.algorithms.spread import Table, spread_bound, weight_scale
from tests.packing import reference

LENGTHS = np.random.default_rng(1).integers(1, 60, 500)


@pytest.fixture(scope="module")
def plan():
  return packing.pack(LENGTHS, max_sequence_length=60, then="even")


def sum_of_squares(plan):
  return int((plan.squares.astype(object) ** 2) @ plan.repeat_counts.astype(object))


@pytest.mark.parametrize("seed", range(60))
def test_fewest_packs_then_the_least_spread_as_by_brute_force(seed):
  rng = np.random.default_rng(seed)
  row_length, depth = int(rng.integers(6, 20)), int(rng.integers(2, 5))
  lengths = rng.integers(1, row_length + 1, rng.integers(3, 10))

  def price(pack):  # a pack first, then the square of its squares
    fits = sum(pack) <= row_length
    return 10**9 + sum(n * n for n in pack) ** 2 if fits else math.inf

  best = reference.least_price(lengths.tolist(), price, depth=depth)
  number, cost = divmod(best, 10**9)
  options: dict[str, Any] = {
    "max_sequence_length": row_length,
    "algorithm": "optimal",
    "max_sequences_per_pack": depth,
    "target_gap": 0,
  }
  plan = packing.pack(lengths, then="even", **options)
  assert (plan.num_packs, sum_of_squares(plan)) == (number, cost)
  mean = plan.mean_squares
  spread = np.sqrt(max(cost / number - mean**2, 0)) / mean
  assert plan.spread == pytest.approx(spread, abs=1e-6)
  assert plan.spread_bound <= plan.spread + 1e-12


@pytest.mark.parametrize(
  ("name", "algorithm", "depth"),
  [
    ("glue_mrpc_128", "optimal", None),
    ("glue_rte_128", "optimal", 3),
    ("qm9_29", "optimal", 3),
    ("qm9_29", "optimal", None),
    ("glue_rte_128", "lpfhp", 3),  # needs more packs than the optimum, which are kept
  ],
)
def test_as_many_packs_a_smaller_spread_and_a_bound_near_it(name, algorithm, depth):
  histogram = packing.load_histogram(name)
  options: dict[str, Any] = {"algorithm": algorithm, "max_sequences_per_pack": depth}
  before = packing.pack(histogram, **options)
  after = packing.pack(histogram, then="even", **options)
  assert after.num_packs == before.num_packs
  assert after.lower_bound == before.lower_bound
  assert after.mean_squares == before.mean_squares
  assert after.spread_bound <= after.spread < before.spread
  assert (after.num_packs > after.lower_bound) == (algorithm == "lpfhp")
  if algorithm == "optimal":
    assert after.spread < 1.01 * after.spread_bound + 1e-4


def test_the_same_plan_each_time(plan):
  again = packing.pack(LENGTHS, max_sequence_length=60, then="even")
  assert again.strategies == plan.strategies
  np.testing.assert_array_equal(again.repeat_counts, plan.repeat_counts)


@pytest.mark.parametrize("rows", [{"length_multiple": 8}, {"separator_tokens": 3}])
def test_squares_are_of_rounded_lengths_without_separators(rows):
  lengths = np.random.default_rng(0).integers(1, 60, 300)
  plan = packing.pack(lengths, max_sequence_length=64, then="even", **rows)
  multiple = rows.get("length_multiple", 1)
  rounded = -(-lengths // multiple) * multiple
  assert plan.squares @ plan.repeat_counts == (rounded**2).sum()
  assert plan.spread_bound <= plan.spread
  assert plan.spread <= packing.pack(lengths, max_sequence_length=64, **rows).spread


def test_any_weights_give_a_bound():
  rng = np.random.default_rng(1)
  lengths = rng.integers(1, 13, 9)
  plan = packing.pack(lengths, max_sequence_length=12, then="even")
  squares, distance = plan._all_squares, plan._all_squares.distance
  usage = collections.Counter(
    {
      tuple(reversed(s)): int(n)
      for s, n in zip(plan.strategies, plan.repeat_counts, strict=True)
    }
  )
  for scale in (0, 1, 30, 1000):
    weights = rng.integers(-scale, scale + 1, squares.lengths.size) * weight_scale(squares)
    assert 0 <= spread_bound(squares, weights) <= distance(usage)


@pytest.mark.parametrize("unit", [1, 3, 20])
@pytest.mark.parametrize("levels", [0, 3])
def test_no_pack_adds_less_than_a_table_says(unit, levels):
  # Squares counted in steps of 3 or 20 are rounded, and the bound has to allow for it.
  rng = np.random.default_rng(unit)
  for _ in range(20):
    lengths = rng.integers(1, 13, 9)
    plan = packing.pack(
      lengths, max_sequence_length=12, max_sequences_per_pack=levels or None
    )
    squares, problem = plan._all_squares, plan._all_squares.problem
    scale = weight_scale(squares)
    weights = rng.integers(-30, 31, problem.sizes.size) * scale
    least = Table(squares, weights, levels, unit).least.min()
    adds = [
      scale * (squares.of(pack) - squares.centre) ** 2
      - int(weights[np.searchsorted(problem.sizes, pack)].sum())
      for pack in _all_patterns(problem) or ()
    ]
    assert least <= min(adds)


def test_a_saved_plan_proves_its_bound_again(plan, tmp_path):
  plan.save(tmp_path / "plan.json")
  loaded = packing.load_plan(tmp_path / "plan.json")
  assert loaded.spread_bound == plan.spread_bound > 0
  assert loaded.certificate() == plan.certificate()
  assert f"at least {plan.spread_bound:.2%}" in str(plan.certificate())


@pytest.mark.parametrize("weights", [[1], [0.5] * 59, [2**62] * 59])
def test_wrong_spread_weights_are_refused(plan, weights, tmp_path):
  assert len(plan.as_dict()["spread_weights"]) == 59
  content = plan.as_dict() | {"spread_weights": weights}
  (tmp_path / "plan.json").write_text(packing.plan.json.dumps(content))
  with pytest.raises(packing.InputError, match=r"spread_weights|not a whole number"):
    packing.load_plan(tmp_path / "plan.json")


def test_refuses_what_it_cannot_do(monkeypatch):
  with pytest.raises(packing.InputError, match="expected None or"):
    packing.pack([3, 4], max_sequence_length=8, then="odd")
  with pytest.raises(packing.InputError, match="one row length"):
    packing.pack([3, 4], max_sequence_length=8, row_length=(4, 8), then="even")
  monkeypatch.setitem(packing.ALGORITHMS, "optimal", None)  # refused before any search
  with pytest.raises(packing.InputError, match="pairs of tokens"):
    packing.pack([30_000, 40], max_sequence_length=30_000, then="even")
