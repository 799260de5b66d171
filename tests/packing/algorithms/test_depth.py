"""The chosen depth limit, and what the certificate says it costs."""

import numpy as np
import pytest

import packing
from packing.algorithms import depth, heuristics
from packing.problem import Problem


def test_depth_three_is_not_chosen_if_it_wastes_rows():
  lengths = np.repeat([7, 100, 300], [4003, 307, 101])  # three of 7 fill 4 % of a row
  histogram = packing.Histogram.from_lengths(lengths, max_sequence_length=512)
  three = packing.pack(histogram, max_sequences_per_pack=3)
  chosen = packing.pack(histogram)
  most = packing.pack(histogram, max_sequences_per_pack="max")
  assert three.efficiency < 0.2
  assert chosen.num_packs <= 1.001 * most.num_packs + 1


def test_the_depth_is_the_smallest_within_a_thousandth():
  """Compared with the proven bounds at this depth and at the next smaller one."""
  for name in ("glue_cola_128", "squad_1_1_384"):
    histogram = packing.load_histogram(name)
    chosen = packing.choose_depth(histogram)
    assert chosen == packing.choose_depth(histogram)
    bounds = {
      m: packing.pack(
        histogram, algorithm="optimal", max_sequences_per_pack=m, target_gap=10**9
      ).lower_bound
      for m in (chosen - 1, chosen, "max")
    }
    assert bounds[chosen] <= 1.001 * bounds["max"], name
    assert bounds[chosen - 1] > 1.001 * bounds["max"], name


@pytest.mark.parametrize("algorithm", ["spfhp", "lpfhp", "ffd", "bfd"])
def test_a_heuristic_gets_the_depth_that_it_needs(algorithm):
  histogram = packing.load_histogram("wikipedia_512")
  chosen = packing.pack(histogram, algorithm=algorithm)
  most = packing.pack(histogram, algorithm=algorithm, max_sequences_per_pack="max")
  assert chosen.num_packs <= 1.001 * most.num_packs
  assert chosen.max_sequences_per_pack > packing.choose_depth(histogram)


def test_geometry_counts():
  lengths = packing.Histogram.from_lengths([8] * 90, max_sequence_length=8)
  assert packing.choose_depth(lengths) == 1
  assert packing.choose_depth(lengths, row_length=40) == 5
  assert packing.choose_depth(lengths, row_length=40, separator_tokens=1) == 4
  assert packing.choose_depth(lengths, row_length=40, length_multiple=20) == 2
  assert packing.choose_depth(lengths, row_length=40, algorithm="none") == 1


def test_a_solver_that_fails_does_not_make_the_depth_too_small(monkeypatch):
  histogram = packing.load_histogram("squad_1_1_384")

  def fail(*_, **__):
    raise depth.SolverError("no")

  monkeypatch.setattr(depth, "solve_relaxation", fail)
  assert packing.choose_depth(histogram) == packing.choose_depth(
    histogram, algorithm="lpfhp"
  )


def test_rounded_sizes_have_the_same_tokens():
  rng = np.random.default_rng(0)
  problem = Problem(rng.integers(0, 1000, 2003), 2003, 2003)
  rounded = depth._rounded(problem)
  full = problem.sizes @ problem.demand / problem.demand.sum() / problem.capacity
  share = rounded.sizes @ rounded.demand / rounded.demand.sum() / rounded.capacity
  assert rounded.sizes.size <= 128
  assert share == pytest.approx(full, rel=1e-4)


def test_the_certificate_says_what_the_limit_costs():
  histogram = packing.Histogram.from_lengths([2] * 64 + [16] * 3, max_sequence_length=16)

  def certificate(limit):
    return str(packing.pack(histogram, max_sequences_per_pack=limit).certificate())

  assert (
    "The depth limit costs at most 8 packs (72.727%): without it a plan needs at least 11"
    in certificate(4)
  )
  assert (
    "The depth limit costs nothing: without it a plan needs at least 11" in certificate(8)
  )
  assert "depth limit costs" not in certificate("max")


def test_the_unlimited_bound_is_the_bound_without_a_limit():
  histogram = packing.load_histogram("squad_1_1_384")
  plan = packing.pack(histogram, algorithm="spfhp", max_sequences_per_pack=2)
  assert plan.unlimited_bound == 40_195  # by tokens 39,713
  assert plan.certificate().as_dict()["unlimited_bound"] == 40_195


def test_a_failing_solver_leaves_the_simple_bound(monkeypatch):
  problem = Problem(np.array([0, 0, 0, 9, 0, 9, 0, 0, 0]), 9, 9)
  monkeypatch.setattr(
    depth, "solve_relaxation", lambda *_, **__: (_ for _ in ()).throw(depth.SolverError)
  )
  proven, about = depth.bounds(problem)
  assert proven == problem.simple_bound
  assert about == heuristics.lpfhp(problem).num_packs


def test_no_limit_if_many_sequences_are_shorter_than_the_unit():
  """Rounded up, they would seem to fill rows that hold three times as many of them."""
  lengths = np.random.default_rng(0).integers(10, 40, 100_000)
  histogram = packing.Histogram.from_lengths(lengths, max_sequence_length=8192)
  plan = packing.pack(histogram)
  assert plan.num_packs <= 1.001 * plan.unlimited_bound
