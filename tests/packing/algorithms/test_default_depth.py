"""The chosen depth limit, and what the certificate says it costs."""

import numpy as np
import pytest

import packing
from packing.algorithms import default_depth, heuristics
from packing.problem import Problem


@pytest.fixture
def squad():
  return packing.load_histogram("squad_1_1_384")


def break_solver(monkeypatch):
  def fail(*_, **__):
    raise default_depth.SolverError("no")

  monkeypatch.setattr(default_depth, "solve_relaxation", fail)


@pytest.mark.parametrize("name", ["glue_cola_128", "squad_1_1_384"])
def test_the_depth_is_the_smallest_within_half_a_percent(name):
  """Compared with the proven bounds at this depth and at the next smaller one."""
  histogram = packing.load_histogram(name)
  chosen = packing.choose_depth(histogram)
  bounds = {
    m: packing.pack(
      histogram, algorithm="optimal", max_sequences_per_pack=m, target_gap=10**9
    ).lower_bound
    for m in (chosen - 1, chosen, "max")
  }
  assert bounds[chosen] <= 1.005 * bounds["max"] < bounds[chosen - 1]


@pytest.mark.parametrize("algorithm", ["spfhp", "lpfhp", "ffd", "bfd"])
def test_a_heuristic_gets_the_depth_that_it_needs(algorithm):
  histogram = packing.load_histogram("wikipedia_512")
  chosen = packing.pack(histogram, algorithm=algorithm, max_sequences_per_pack="auto")
  most = packing.pack(histogram, algorithm=algorithm, max_sequences_per_pack="max")
  assert chosen.num_packs <= 1.005 * most.num_packs
  assert chosen.max_sequences_per_pack > packing.choose_depth(histogram)


def test_every_algorithm_has_a_depth_and_no_other_name_has():
  histogram = packing.Histogram.from_lengths([8, 5, 3], max_sequence_length=8)
  for algorithm in packing.ALGORITHMS:
    assert packing.choose_depth(histogram, algorithm=algorithm) >= 1
  known = ", ".join(packing.ALGORITHMS)
  with pytest.raises(packing.InputError) as raised:
    packing.choose_depth(histogram, algorithm="lpfph")
  _, _, listed = str(raised.value).partition("one of ")
  assert sorted(listed.removesuffix(".").split(", ")) == sorted(known.split(", "))


@pytest.mark.parametrize(
  ("options", "expected"),
  [
    ({}, 1),
    ({"row_length": 40}, 5),
    ({"row_length": 40, "separator_tokens": 1}, 4),
    ({"row_length": 40, "length_multiple": 20}, 2),
    ({"row_length": 40, "algorithm": "none"}, 1),
  ],
)
def test_geometry_counts(options, expected):
  lengths = packing.Histogram.from_lengths([8] * 90, max_sequence_length=8)
  assert packing.choose_depth(lengths, **options) == expected


def test_a_solver_that_fails_does_not_make_the_depth_too_small(monkeypatch, squad):
  break_solver(monkeypatch)
  assert packing.choose_depth(squad) == packing.choose_depth(squad, algorithm="lpfhp")
  problem = Problem(np.array([0, 0, 0, 9, 0, 9, 0, 0, 0]), 9, 9)
  about = default_depth._about(problem, problem.simple_bound)
  assert about == heuristics.lpfhp(problem).num_packs > problem.simple_bound


def test_no_depth_is_chosen_that_wastes_rows():
  """Also where sequences are shorter than the unit of rounded sizes."""
  lengths = np.repeat([7, 100, 300], [4003, 307, 101])  # three of 7 fill 4 % of a row
  short = np.random.default_rng(0).integers(10, 40, 100_000)
  for row, mixed in ((512, lengths), (8192, short)):
    plan = packing.pack(mixed, max_sequence_length=row, max_sequences_per_pack="auto")
    deepest = packing.pack(mixed, max_sequence_length=row)
    assert plan.num_packs <= 1.005 * deepest.lower_bound + 1, row


def test_many_different_lengths_take_a_little_work():
  """The optimum at the smallest depth, 9, takes minutes to prove."""
  rng = np.random.default_rng(0)
  lengths = np.clip(rng.lognormal(4.5, 0.8, 20_000).astype(int), 1, 1024)
  plan = packing.pack(lengths, max_sequence_length=1024, max_sequences_per_pack="auto")
  assert plan.num_packs <= 1.005 * plan.lower_bound
  assert plan.packing_depth <= 2 * 9
  deepest = packing.pack(lengths, max_sequence_length=1024)
  assert deepest.max_sequences_per_pack == 1024  # by default there is no limit
  assert deepest.num_packs <= deepest.lower_bound + 1
  assert "optimal" not in deepest.details["tried"]


@pytest.mark.parametrize(
  ("row_length", "most"), [(2048, 12), pytest.param(8192, 128, marks=pytest.mark.slow)]
)
def test_rows_have_few_slots_though_many_short_sequences_would_fit(row_length, most):
  """Without a limit 93 and 546; each slot takes time and memory on a GPU."""
  histogram = packing.load_histogram("wikipedia_2048")
  depth = packing.choose_depth(histogram, row_length=row_length)
  assert depth <= most
  plan = packing.pack(
    histogram, algorithm="mbs", row_length=row_length, max_sequences_per_pack=depth
  )
  assert plan.efficiency > 0.99


def test_a_plan_two_packs_above_the_bound_begins_a_search():
  mrpc = packing.load_histogram("glue_mrpc_128")
  plan = packing.pack(mrpc, max_sequences_per_pack="auto")
  assert plan.num_packs == plan.details["tried"]["optimal"] == 1541
  assert plan.details["tried"]["mbs"] > 1541


def test_effort_ends_the_search():
  histogram = packing.load_histogram("wikipedia_1024")
  plan = packing.pack(histogram, max_sequences_per_pack=4, effort=np.float32(0.5))
  assert plan.details["stopped_by"] == "effort"
  assert plan.num_packs < 1.01 * plan.lower_bound
  for wrong in (0, -1, True, "2", float("nan")):
    with pytest.raises(packing.InputError, match="effort is"):
      packing.pack(histogram, effort=wrong)
