"""Least squares against the paper and against brute force."""

import itertools

import numpy as np
import pytest
import scipy.optimize

import packing
from packing.algorithms import nnls
from packing.problem import Problem


def strategies_of(size, depth):
  return nnls._strategies(Problem(np.ones(size, np.int64), size, depth), 1)


def pack(name, algorithm, **options):
  histogram = packing.load_histogram(name)
  return packing.pack(
    histogram, algorithm=algorithm, **{"max_sequences_per_pack": 3} | options
  )


@pytest.mark.parametrize(
  ("size", "depth"), [(1, 1), (2, 3), (8, 3), (11, 2), (13, 4), (7, 7), (9, 12)]
)
def test_strategies_are_all_exact_fillings(size, depth):
  listed = [tuple(x for x in row if x) for row in strategies_of(size, depth).tolist()]
  expected = {
    combination
    for items in range(1, min(depth, size) + 1)
    for combination in itertools.combinations_with_replacement(range(1, size + 1), items)
    if sum(combination) == size
  }
  assert len(listed) == len(set(listed)) == nnls.count_strategies(size, depth)
  assert set(listed) == expected


def test_the_packing_matrix_is_that_of_table_4_and_grows_as_in_section_g():
  matrix = nnls._matrix(strategies_of(8, 3), 8)
  assert matrix.shape == (8, 10)
  assert (np.arange(1, 9) @ matrix == 8).all()
  assert [2, 0, 0, 0, 0, 1, 0, 0] in matrix.T.tolist()
  counts = [nnls.count_strategies(*of) for of in ((512, 3), (512, 4), (2048, 3))]
  assert counts == [22_102, 22_102 + 937_529, 350_550]


@pytest.mark.parametrize(
  ("name", "options", "packs", "efficiency"),
  [
    ("wikipedia_512", {}, 8_155_057, 99.746274),  # table 1
    ("squad_1_1_384", {}, 40_808, 97.38),  # table 5, and section F.5
    ("squad_1_1_384", {"residual_weight": 1.0}, None, 96.94),
    ("squad_1_1_384", {"residual_offset": 64, "residual_weight": 0.002}, None, 98.767),
  ],
)
@pytest.mark.slow
def test_nnlshp_gives_the_numbers_of_the_paper(name, options, packs, efficiency):
  # Its minimiser is not unique: 0.1 % of the packs and 0.02 points.
  plan = pack(name, "nnlshp", **options)
  if packs:
    assert abs(plan.details["num_packs_before"] / packs - 1) < 1e-3
  assert abs(100 * plan.details["efficiency_before"] - efficiency) < 0.02
  assert plan.num_packs <= plan.details["num_packs_before"]


def test_ennlshp_leaves_less_over_and_best_fit_packs_it_better():
  plain, filled, extended = (
    pack("glue_sst2_128", algorithm, **options)
    for algorithm, options in (
      ("nnlshp", {}),
      ("nnlshp", {"leftovers": "best_fit"}),
      ("ennlshp", {}),
    )
  )
  left = [p.details["num_leftover_sequences"] for p in (plain, extended)]
  assert left[0] > left[1]
  assert extended.num_packs <= plain.num_packs
  assert filled.num_packs < plain.num_packs


def test_ennlshp_solves_equation_23():
  # With the auxiliary variable eliminated: min |w (Ax - b)|^2, Ax >= b, x >= 0.
  counts = np.random.default_rng(2).integers(50, 500, 7)
  strategies, weights = strategies_of(7, 3), np.arange(1.0, 8)
  matrix = nnls._matrix(strategies, 7)

  def padding(usage):
    return ((weights * (matrix @ usage - counts)) ** 2).sum()

  usage = nnls._extended_usage(strategies, counts)
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
  assert other.fun * (1 - 1e-2) < padding(usage) < other.fun * (1 + 1e-6)


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"max_sequences_per_pack": 4}, r"at depth 4 .*959,631 ways.*max_sequences_per_pack=3"),
    ({"max_sequences_per_pack": "max"}, r"at least [\d,]+ ways .* of more than 2 GiB"),
    ({"residual_weight": -1.0}, "residual_weight is -1.0"),
  ],
)
def test_unsolvable_problems_are_refused_with_the_reason(options, message):
  with pytest.raises(packing.InputError, match="(?i)" + message):
    pack("wikipedia_512", "nnlshp", **options)


@pytest.mark.parametrize("algorithm", ["nnlshp", "ennlshp"])
def test_leftovers_are_checked_before_any_work(algorithm):
  with pytest.raises(packing.InputError, match="leftovers is 'x'"):
    pack("wikipedia_512", algorithm, max_sequences_per_pack="max", leftovers="x")
