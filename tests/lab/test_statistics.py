"""Tests of claims: against closed forms, and against scipy's own."""

import json

import numpy as np
import pytest
import scipy.stats

from lab.statistics import (
  LEVEL,
  decide,
  equivalent,
  judge,
  larger,
  not_more,
  reaches,
  throughout,
)
from launch.sweep.pairs import paired, paired_difference

BASE = [2.0, 2.1, 2.2]
NEAR = [2.001, 2.099, 2.201]
FAR = [2.3, 2.42, 2.49]
LESS = [1.7, 1.8, 1.9]
BETWEEN = [2.01, 2.13, 2.2]
APART = [2.024, 2.119, 2.221]  # above BASE, by the margin or by less
ALMOST = [2.05, 2.2, 2.35]  # above BASE by a one-sided test alone


@pytest.mark.parametrize("margin", [0.2, 0.7, 3.0])
def test_beside_scipy(margin):
  rng = np.random.default_rng(0)
  a, b = rng.normal(0.1, 1, 11), rng.normal(0, 1, 11)
  difference = paired(a, b)
  assert difference == pytest.approx((np.mean(a - b), scipy.stats.sem(a - b), 11))
  interval = scipy.stats.ttest_rel(a, b).confidence_interval(0.95)
  assert difference.interval() == pytest.approx((interval.low, interval.high))
  both = [
    scipy.stats.ttest_1samp(a - b, bound, alternative=side).pvalue
    for bound, side in ((-margin, "greater"), (margin, "less"))
  ]
  found = difference.p_above(-margin), difference.p_below(margin)
  assert found == pytest.approx(tuple(both))
  assert difference.p_equivalent(margin) == pytest.approx(max(both))


@pytest.mark.parametrize(
  ("a", "power", "outcome"),
  [
    (NEAR, FAR, "holds"),
    (BASE, FAR, "holds"),
    (FAR, FAR, "fails"),
    (LESS, FAR, "fails"),  # beyond the margin on the other side
    (BETWEEN, FAR, "no power"),  # neither equal nor different
    (APART, FAR, "no power"),  # different, but by more than the margin?
    (NEAR, NEAR, "no power"),  # the control is equivalent too
    (NEAR, BETWEEN, "no power"),  # the test cannot judge the control
    (NEAR, ALMOST, "no power"),  # the interval of the control includes 0
    (NEAR, LESS, "no power"),  # the control has to have more
  ],
)
def test_equivalence_needs_power(a, power, outcome):
  statement = equivalent("the same", a, BASE, power=power)
  assert statement.outcome == outcome
  assert f"{np.mean(a) - np.mean(BASE):+.4f} nats" in statement.evidence
  assert "3 pairs" in statement.evidence


@pytest.mark.parametrize(
  ("a", "outcome", "ruled_out"),
  [
    (FAR, "holds", False),
    ([2.002, 2.102, 2.203], "equivalent", True),  # certainly more, by too little to matter
    ([1.998, 2.098, 2.197], "equivalent", True),  # certainly less, by too little
    (LESS, "fails", True),
    (BETWEEN, "no power", False),
    (ALMOST, "no power", False),
  ],
)
def test_larger(a, outcome, ruled_out):
  statement = larger("more", a, BASE)
  assert statement.outcome == outcome
  assert ("0.02 nats or more: ruled out" in statement.evidence) == ruled_out
  assert ("two one-sided tests" in statement.evidence) == (outcome == "equivalent")


def test_nothing_holds_or_fails_by_an_interval_that_includes_0():
  """Of each kind that is compared with 0, also where a one-sided test would decide."""
  mirrored = [2 * x - y for x, y in zip(BASE, ALMOST, strict=True)]
  for a, sign in ((ALMOST, 1), (mirrored, -1)):
    above = paired(a, BASE)
    low, high = above.interval()
    assert low < 0 < high
    one_sided = above.p_above(0) if sign > 0 else above.p_below(0)
    assert one_sided < LEVEL < above.p_apart()
    zeros = [x - y for x, y in zip(a, BASE, strict=True)]
    assert reaches("enough", zeros, 0.0, margin=0.02, unit="nats").outcome == "no power"
  assert larger("more", ALMOST, BASE).outcome == "no power"


@pytest.mark.parametrize(
  ("margin", "outcome"),
  [(0.005, "holds"), (0.02, "holds"), (0.0215, "no power"), (0.03, "equivalent")],
)
def test_a_difference_that_does_not_matter_does_not_hold(margin, outcome):
  """APART is certainly above BASE, by 0.0213 on average."""
  statement = larger("more", APART, BASE, margin=margin)
  assert statement.outcome == outcome
  told = f"above 0, but not shown to be {margin:g} nats or more"
  assert (told in statement.evidence) == (outcome == "no power")


@pytest.mark.parametrize(
  ("margin", "outcome"), [(0.005, "fails"), (0.02, "no power"), (0.03, "holds")]
)
def test_arms_that_differ_are_unequal_only_beyond_the_margin(margin, outcome):
  statement = equivalent("almost the same", APART, BASE, power=FAR, margin=margin)
  assert statement.outcome == outcome
  told = f"more than {margin:g} nats apart: p = "
  assert (told in statement.evidence) == (outcome != "holds")


def test_the_p_that_decides_is_that_of_the_cell():
  apart, margin = paired(APART, BASE), 0.005
  test = larger("more", APART, BASE, margin=margin).test
  expected = scipy.stats.ttest_rel(APART, BASE).pvalue
  assert decide(test) == ("holds", pytest.approx(expected))
  test = equivalent("the same", APART, BASE, power=FAR, margin=margin).test
  above = scipy.stats.ttest_1samp(np.subtract(APART, BASE), margin, alternative="greater")
  assert decide(test) == ("fails", pytest.approx(above.pvalue))
  assert apart.p_beyond(margin) == pytest.approx(paired(BASE, APART).p_beyond(margin))


@pytest.mark.parametrize(
  ("a", "outcome"),
  [
    ([2.002, 2.002, 2.003], "holds"),  # by however little
    ([1.998, 1.9975, 1.998], "fails"),
    ([1.99, 2.03, 2.0], "no power"),
  ],
)
def test_a_target_is_reached_by_however_little(a, outcome):
  assert reaches("enough", a, 2.0, margin=0.02, unit="times").outcome == outcome


@pytest.mark.parametrize(
  ("a", "power", "outcome"),
  [
    (NEAR, FAR, "holds"),
    (FAR, FAR, "fails"),
    (BETWEEN, FAR, "no power"),
    ([2.019, 2.1205, 2.2205], FAR, "no power"),  # certainly more, but by the margin?
    (NEAR, NEAR, "no power"),  # the control has no more either
    (NEAR, BETWEEN, "no power"),  # the test cannot judge the control
    (NEAR, [2.019, 2.1205, 2.2205], "no power"),  # the control has more, by the margin?
  ],
)
def test_no_more_needs_power(a, power, outcome):
  assert not_more("no more", a, BASE, power=power).outcome == outcome


def test_all_have_to_hold():
  good, bad, unsure = (
    equivalent(x, a, BASE, power=power)
    for x, a, power in (("good", NEAR, FAR), ("bad", FAR, FAR), ("unsure", NEAR, NEAR))
  )
  assert throughout("all", [good, good]).outcome == "holds"
  assert throughout("all", [good, unsure]).outcome == "no power"
  worst = throughout("all", [good, bad, unsure])
  assert worst.outcome == "fails"
  assert worst.evidence.startswith("1 of 3 hold; of 'bad': difference +0.3033")


@pytest.mark.parametrize(
  ("others", "outcome"),
  [([FAR], "equivalent"), ([BETWEEN], "equivalent"), ([BETWEEN, LESS], "fails")],
)
def test_an_effect_that_is_not_seen_once_is_not_seen_throughout(others, outcome):
  parts = [larger(f"more {n}", a, BASE) for n, a in enumerate([NEAR, *others])]
  assert throughout("all", parts).outcome == outcome


def test_a_statement_keeps_what_its_outcome_is_made_from():
  made = [
    larger("more", BETWEEN, BASE, margin=0.5, unit="points"),
    equivalent("the same", NEAR, BASE, power=FAR, margin=0.1),
    not_more("no more", NEAR, BASE, power=NEAR),
    reaches("enough", FAR, 2.0, margin=0.1, unit="nats"),
    larger("one pair", [2.0], [1.0]),
  ]
  made.append(throughout("all", made))
  for statement in made:
    kept = json.loads(json.dumps(statement.test))
    assert judge(statement.claim, kept) == statement


def test_one_pair_has_no_power():
  assert larger("more", [2.0], [1.0]).outcome == "no power"
  for test in (not_more, equivalent):
    assert test("claim", [2.0], [2.0], power=[3.0]).outcome == "no power"


@pytest.mark.parametrize("function", [paired, paired_difference])
@pytest.mark.parametrize("sizes", [(1, 3), (3, 1), (2, 3)])
def test_values_without_a_partner_are_refused(function, sizes):
  a, b = ([1.0] * size for size in sizes)
  with pytest.raises(ValueError, match="Expected pairs"):
    function(a, b)
