"""Least squares against the paper and against brute force."""

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.optimize

import packing
from packing.algorithms import nnls
from packing.algorithms.nnls import _extended_usage, _matrix, _strategies, count_strategies
from packing.problem import Problem

NO_OPTIONS: dict[str, Any] = {}


def brute_force_strategies(size, depth):
  return {
    combination
    for items in range(1, depth + 1)
    for combination in itertools.combinations_with_replacement(range(1, size + 1), items)
    if sum(combination) == size
  }


@pytest.mark.parametrize(
  ("size", "depth"), [(1, 1), (2, 3), (8, 3), (11, 2), (13, 4), (7, 7), (9, 12)]
)
def test_strategies_are_all_exact_fillings(size, depth):
  problem = Problem(np.ones(size, np.int64), size, depth)
  rows = _strategies(problem, 1, 2**30)
  listed = [tuple(x for x in row if x) for row in rows.tolist()]
  assert len(listed) == len(set(listed)) == count_strategies(size, depth)
  assert set(listed) == brute_force_strategies(size, min(depth, size))


def test_the_packing_matrix_is_that_of_table_4():
  problem = Problem(np.ones(8, np.int64), 8, 3)
  matrix = _matrix(_strategies(problem, 1, 2**30), 8)
  assert matrix.shape == (8, 10)
  assert (np.arange(1, 9) @ matrix == 8).all()
  assert [2, 0, 0, 0, 0, 1, 0, 0] in matrix.T.tolist()


def test_strategy_counts_of_section_g():
  assert count_strategies(512, 3) == 22_102
  assert count_strategies(2048, 3) == 350_550
  assert count_strategies(512, 4) - count_strategies(512, 3) == 937_529


@pytest.mark.parametrize(
  ("options", "packs", "efficiency"),
  [
    ({}, 40_808, 97.38),
    ({"residual_weight": 1.0}, None, 96.94),
    ({"residual_offset": 64, "residual_weight": 0.002}, None, 98.767),
  ],
)
@pytest.mark.slow
def test_nnlshp_on_squad_gives_table_5_and_section_f5(options, packs, efficiency):
  # Its minimiser is not unique: 0.1 % of the packs and 0.02 points.
  plan = packing.pack(
    packing.load_histogram("squad_1_1_384"),
    algorithm="nnlshp",
    max_sequences_per_pack=3,
    **options,
  )
  if packs:
    assert abs(plan.details["num_packs_before"] / packs - 1) < 1e-3
  assert abs(100 * plan.details["efficiency_before"] - efficiency) < 0.02
  assert plan.num_packs <= plan.details["num_packs_before"]


@pytest.mark.slow
def test_nnlshp_on_wikipedia_gives_the_row_of_table_1():
  plan = packing.pack(
    packing.load_histogram("wikipedia_512"), algorithm="nnlshp", max_sequences_per_pack=3
  )
  assert abs(plan.details["num_packs_before"] / 8_155_057 - 1) < 1e-3
  assert abs(100 * plan.details["efficiency_before"] - 99.746274) < 0.02


def test_ennlshp_leaves_less_over_and_pads_less_than_nnlshp():
  histogram = packing.load_histogram("glue_sst2_128")
  plain, extended, up = (
    packing.pack(histogram, algorithm=a, max_sequences_per_pack=3, **options)
    for a, options in (
      ("nnlshp", NO_OPTIONS),
      ("ennlshp", NO_OPTIONS),
      ("ennlshp", {"rounding": "up"}),
    )
  )
  left = [p.details["num_leftover_sequences"] for p in (plain, extended, up)]
  assert left[0] > left[1] >= left[2] == 0
  assert extended.num_packs <= plain.num_packs


def test_rounding_up_leaves_nothing_over_where_the_solver_is_short(monkeypatch):
  usage = nnls._extended_usage
  short = lambda *arguments: np.maximum(usage(*arguments) - 2.5, 0)  # noqa: E731
  monkeypatch.setattr(nnls, "_extended_usage", short)
  plan = packing.pack(
    packing.load_histogram("glue_cola_128"),
    algorithm="ennlshp",
    max_sequences_per_pack=2,
    rounding="up",
  )
  assert plan.details["num_leftover_sequences"] == 0


def test_ennlshp_solves_equation_23():
  # With the auxiliary variable eliminated: min |w (Ax - b)|^2, Ax >= b, x >= 0.
  rng = np.random.default_rng(2)
  counts = rng.integers(50, 500, 7)
  strategies = _strategies(Problem(counts, 7, 3), 1, 2**30)
  matrix, weights = _matrix(strategies, 7), np.arange(1.0, 8)

  def padding(usage):
    return ((weights * (matrix @ usage - counts)) ** 2).sum()

  usage = _extended_usage(strategies, counts)
  assert (usage >= 0).all()
  assert (matrix @ usage - counts).min() > -1e-3  # the weight is large, not infinite
  other = scipy.optimize.minimize(
    padding,
    np.full(matrix.shape[1], 100.0),
    bounds=[(0, None)] * matrix.shape[1],
    constraints={"type": "ineq", "fun": lambda x: matrix @ x - counts},
    method="SLSQP",
    options={"maxiter": 1000},
  )
  assert padding(usage) < other.fun * (1 + 1e-6)
  assert padding(usage) > other.fun * (1 - 1e-2)


def test_best_fit_of_leftovers_needs_fewer_packs():
  histogram = packing.load_histogram("glue_sst2_128")
  padded, packed = (
    packing.pack(
      histogram, algorithm="nnlshp", max_sequences_per_pack=3, leftovers=leftovers
    )
    for leftovers in ("pad", "best_fit")
  )
  assert packed.num_packs < padded.num_packs


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"max_sequences_per_pack": 4}, r"at depth 4 .*959,631 ways.*max_sequences_per_pack=3"),
    ({"residual_weight": -1.0}, "residual_weight is -1.0"),
    ({"residual_offset": -1}, "residual_offset is -1"),
    ({"max_sequences_per_pack": 2, "leftovers": "drop"}, "leftovers is 'drop'"),
    ({"memory_limit": 10**6, "max_sequences_per_pack": 3}, "max_sequences_per_pack=1"),
  ],
)
def test_unsolvable_problems_are_refused_with_the_reason(options, message):
  with pytest.raises(packing.InputError, match="(?i)" + message):
    packing.pack(packing.load_histogram("wikipedia_512"), algorithm="nnlshp", **options)
