"""Claims about paired runs, tested over seeds.

Both arms of a pair start from the same weights and see the same sequences, so we test the
mean of their differences by Student's t. A difference below the margin does not matter:
below `MARGIN` or `SCORE_MARGIN`, unless the claim names another.

`equivalent`, `larger`, `not_more` and `reaches` take a claim in words; the values `a` of an
arm, one per seed; those of another arm, `b`, in the same order (or a target); a margin; and
the unit of all these (`not_more`: nats, with the usual margin). `power` has the values of
an arm that is known to have more than `b`: if the pairs do not show that, the outcome is
"no power". Each function turns the values into a test, numbers that a statement keeps, and
`judge` turns the test into an outcome; `decide` has the rule.

References:
  Schuirmann, A comparison of the two one-sided tests procedure, 1987.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.stats

from lab.exhibits import Outcome, Statement
from launch.sweep.pairs import Difference, Values, paired

MARGIN = 0.02  # nats of masked-token loss; a smaller difference does not matter
SCORE_MARGIN = 2.0  # points of a score; a smaller difference does not matter
LEVEL = 0.05  # of each test


def judge(claim: str, test: Mapping[str, Any]) -> Statement:
  """A claim with the outcome and the evidence of a test, which the statement keeps.

  Args:
    claim: in words.
    test: has "kind", a row of the table in `outcome`; "difference", the fields of a
      `Difference`; "margin" and "unit". "equal" and "not more" also have "control", fields
      like those of "difference". "all" has only "of", a list of pairs of claim and test.
  """
  return Statement(claim, outcome(test), _evidence(test), test)


def outcome(test: Mapping[str, Any]) -> Outcome:
  """The first result of `decide`."""
  return decide(test)[0]


def decide(test: Mapping[str, Any]) -> tuple[Outcome, float]:
  """The rule of all outcomes, for a test of `judge`, and the p that decides.

  Returns:
    The outcome; and the p of the test that decided it, at most `LEVEL`, or 1 if there is no
    power. That of "all" is the largest of its claims with the same outcome.

  | kind: the claim | equivalent | holds | fails |
  |---|---|---|---|
  | "larger": a is above b | within the margin | above 0, by the margin | below the margin |
  | "reaches": a is above a target | | above 0 | below 0 |
  | "equal": a has as much as b | | within the margin | beyond the margin |
  | "not more": a has no more than b | | below the margin | above the margin |

  Each cell is a test of the mean difference a - b at `LEVEL`. Tests against 0 are
  two-sided, so no claim holds or fails by one whose 95 % interval includes 0. Tests against
  the margin are one-sided: "within" is two of them, "beyond" is the one on the side of the
  mean. "Above 0, by the margin" also needs a mean of at least the margin, or the effect
  would not matter. A target of "reaches" has no margin: whoever sets it says what matters.

  From left to right, the first cell that applies decides. If none applies, there is no
  power: the pairs show neither that the claim is true nor that it is false. That is so, for
  example, if a difference is above 0 and its mean below the margin, but the margin is not
  ruled out; or if two arms differ, but perhaps by less than the margin. There is no power
  either with a single pair, or if the control is not shown to have more than b: above 0 and
  not within the margin, for "not more" above the margin.

  "all", of several claims, fails if one fails; otherwise it is equivalent if one is;
  otherwise it has no power if one has none.
  """
  kind = test["kind"]
  if kind == "all":
    order: Sequence[Outcome] = ("fails", "equivalent", "no power", "holds")
    decisions = [decide(one) for _, one in test["of"]]
    return min(decisions, key=lambda x: (order.index(x[0]), -x[1]))
  difference, margin = Difference(*test["difference"]), test["margin"]
  if difference.pairs < 2 or not _has_power(test):
    return "no power", 1.0
  mean, apart = difference.mean, difference.p_apart()
  within, below = difference.p_equivalent(margin), difference.p_below(margin)
  cells: Mapping[str, Mapping[Outcome, float]] = {
    "larger": {
      "equivalent": within,
      "holds": apart if mean >= margin else 1.0,
      "fails": below,
    },
    "reaches": {"holds": apart if mean > 0 else 1.0, "fails": apart if mean < 0 else 1.0},
    "equal": {"holds": within, "fails": difference.p_beyond(margin)},
    "not more": {"holds": below, "fails": difference.p_above(margin)},
  }
  decided = ((result, p) for result, p in cells[kind].items() if p < LEVEL)
  return next(decided, ("no power", 1.0))


def _has_power(test: Mapping[str, Any]) -> bool:
  """Whether the control, if there is one, is shown to have more than b."""
  if "control" not in test:
    return True
  control, margin = Difference(*test["control"]), test["margin"]
  if test["kind"] == "equal":
    is_above = control.mean > 0 and control.p_apart() < LEVEL
    return is_above and control.p_equivalent(margin) >= LEVEL
  return control.p_above(margin) < LEVEL


def _evidence(test: Mapping[str, Any]) -> str:
  """The numbers of a test, in words."""
  kind = test["kind"]
  if kind == "all":
    parts = [judge(*one) for one in test["of"]]
    worst = next(x for x in parts if x.outcome == outcome(test))
    held = sum(x.outcome == "holds" for x in parts)
    return f"{held} of {len(parts)} hold; of '{worst.claim}': {worst.evidence}"
  difference, margin, unit = (test[name] for name in ("difference", "margin", "unit"))
  difference, within = Difference(*difference), f"{margin:g} {unit}"
  if difference.pairs < 2:
    return f"difference {difference.mean:+.4f} {unit}; 1 pair, too few for a test"
  low, high = difference.interval()
  text = (
    f"difference {difference.mean:+.4f} {unit}, 95 % interval {low:+.4f} to {high:+.4f}, "
    f"{difference.pairs} pairs"
  )
  below, equivalent = difference.p_below(margin), difference.p_equivalent(margin)
  if kind in ("larger", "reaches"):
    text += f"; paired two-sided t: {_p(difference.p_apart())}"
    if below < LEVEL:
      text += f"; {within} or more: ruled out, {_p(below)}"
    if outcome(test) == "equivalent":
      text += f"; two one-sided tests, margin {within}: {_p(equivalent)}"
    elif kind == "larger" and low > 0 and difference.mean < margin:
      text += f"; above 0, but not shown to be {within} or more"
    return text
  control = Difference(*test["control"])
  if kind == "equal":
    text += f"; two one-sided tests, margin {within}: {_p(equivalent)}"
    if equivalent >= LEVEL:
      text += f"; more than {within} apart: {_p(difference.p_beyond(margin))}"
    of_control = f"two-sided t: {_p(control.p_apart())}; within the margin: "
    of_control += _p(control.p_equivalent(margin))
  else:
    text += f"; less than {within}: {_p(below)}"
    of_control = f"more than the margin: {_p(control.p_above(margin))}"
  detected = "detected" if _has_power(test) else "not detected"
  return (
    f"{text}; the arm that is known to differ is {detected} ({control.mean:+.4f} {unit}, "
    f"{of_control})"
  )


def equivalent(
  claim: str,
  a: Values,
  b: Values,
  *,
  power: Values,
  margin: float = MARGIN,
  unit: str = "nats",
) -> Statement:
  """Tests whether two arms have the same value, within a margin."""
  return judge(claim, _test("equal", a, b, margin, unit) | {"control": _pairs(power, b)})


def same_score(claim: str, packed: Values, unpacked: Values, no_mask: Values) -> Statement:
  """Tests whether two arms score the same, in points; `no_mask` is known to score less."""
  # `no_mask` scores less, but the test's control has to have more than b.
  control = (np.multiply(2, unpacked) - no_mask).tolist()
  return equivalent(
    claim, packed, unpacked, power=control, margin=SCORE_MARGIN, unit="points"
  )


def larger(
  claim: str, a: Values, b: Values, *, margin: float = MARGIN, unit: str = "nats"
) -> Statement:
  """Tests whether `a` has more than `b`."""
  return judge(claim, _test("larger", a, b, margin, unit))


def not_more(claim: str, a: Values, b: Values, *, power: Values) -> Statement:
  """Tests whether `a` has at most a margin more than `b`."""
  control = _pairs(power, b)
  return judge(claim, _test("not more", a, b, MARGIN, "nats") | {"control": control})


def reaches(claim: str, a: Values, target: float, *, margin: float, unit: str) -> Statement:
  """Tests whether `a` is above a chosen number, by however little."""
  return judge(claim, _test("reaches", a, [target] * len(a), margin, unit))


def spread_of(values: np.ndarray, counts: np.ndarray) -> float:
  """The standard deviation of values that occur as often as `counts` says."""
  mean = np.average(values, weights=counts)
  return float(np.sqrt(np.average((values - mean) ** 2, weights=counts)))


def mean_and_sd(values: Values | np.ndarray, digits: int = 4) -> str:
  """A mean, with the standard deviation if there are several values.

  Example:
    >>> mean_and_sd([1.0, 3.0], 1), mean_and_sd([1.0], 1)
    ('2.0 ± 1.4', '1.0')
  """
  mean = f"{np.mean(values):.{digits}f}"
  return f"{mean} ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else mean


def throughout(claim: str, statements: Sequence[Statement]) -> Statement:
  """Tests whether all of several statements hold."""
  return judge(claim, {"kind": "all", "of": [[x.claim, x.test] for x in statements]})


def _test(kind: str, a: Values, b: Values, margin: float, unit: str) -> dict[str, Any]:
  difference = _pairs(a, b)
  return {"kind": kind, "difference": difference, "margin": margin, "unit": unit}


def _pairs(a: Values, b: Values) -> list[float]:
  """As `paired`; the error of a single pair is unknown, 0 here, and it has no power."""
  if len(a) == len(b) == 1:
    return [float(a[0] - b[0]), 0.0, 1]
  return list(paired(a, b))


def _p(p: float) -> str:
  return "p < 0.0001" if p < 1e-4 else f"p = {p:.4f}"


def quartiles(values: np.ndarray | Sequence[float]) -> dict[str, float]:
  """The median, and the quartiles as `low` and `high`."""
  low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
  return {"median": median, "low": low, "high": high}


def ratio(a: npt.ArrayLike, b: npt.ArrayLike, digits: int = 2) -> str:
  """Quartiles of a / b, taken round by round, as tables show them."""
  return spread(quartiles(np.divide(a, b)), digits)


def median_interval(values: np.ndarray | Sequence[float]) -> dict[str, float]:
  """The median, and its 95 % interval as `low` and `high`.

  Both ends are among the values, so nothing is assumed about their distribution
  (`scipy.stats.quantile_test`). With fewer than six values, both ends are NaN.

  Example:
    >>> median_interval([1, 2, 3, 4, 5, 60])
    {'median': 3.5, 'low': 1.0, 'high': 60.0}
  """
  array = np.asarray(values, float)
  low, high = scipy.stats.quantile_test(array, p=0.5).confidence_interval(0.95)
  return {"median": float(np.median(array)), "low": float(low), "high": float(high)}


def spread(quartile: Mapping[str, float], digits: int = 2) -> str:
  """The median and the quartiles, as tables show them.

  Example:
    >>> spread(quartiles([1.0, 2.0, 4.0]), 1)
    '2.0 (1.5 to 3.0)'
  """
  low, median, high = (f"{quartile[x]:,.{digits}f}" for x in ("low", "median", "high"))
  return f"{median} ({low} to {high})"
