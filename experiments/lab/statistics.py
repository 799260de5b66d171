"""Claims about paired runs, tested over seeds.

Both arms of a pair start from the same weights and see the same sequences, so what is
tested is the mean of their differences, by Student's t. What would count as no difference
is fixed here, before any run.

References:
  Schuirmann, A comparison of the two one-sided tests procedure, 1987.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats

from experiments.lab.exhibits import Outcome, Statement

MARGIN = 0.02  # nats of masked-token loss; less is no difference
LEVEL = 0.05  # of each test


class Difference(NamedTuple):
  """Of pairs.

  Attributes:
    mean: of the differences.
    error: the standard error of the mean.
    pairs: how many.
  """

  mean: float
  error: float
  pairs: int

  def interval(self, confidence: float = 0.95) -> tuple[float, float]:
    """Of the mean, both ends alike.

    Example:
      >>> low, high = Difference(1.0, 0.5, 3).interval()
      >>> round(low, 3), round(high, 3)
      (-1.151, 3.151)
    """
    half = self.error * float(scipy.stats.t.ppf((1 + confidence) / 2, self.pairs - 1))
    return self.mean - half, self.mean + half

  def p_above(self, value: float) -> float:
    """How likely such a mean is, or a larger one, where the true one is `value`."""
    if self.error == 0:
      return float(self.mean <= value)
    return float(scipy.stats.t.sf((self.mean - value) / self.error, self.pairs - 1))

  def p_below(self, value: float) -> float:
    """As `p_above`, or a smaller one."""
    return Difference(-self.mean, self.error, self.pairs).p_above(-value)

  def p_equivalent(self, margin: float) -> float:
    """Two one-sided tests: small where the true mean lies within the margin of 0."""
    return max(self.p_above(-margin), self.p_below(margin))


def paired(a: Sequence[float], b: Sequence[float]) -> Difference:
  """a - b, pair by pair.

  Args:
    a: of one arm, a value a seed.
    b: of the other, in the same order.

  Raises:
    ValueError: there are not as many, or fewer than two.

  Example:
    >>> paired([3.0, 5.0], [2.0, 2.0])
    Difference(mean=2.0, error=1.0, pairs=2)
  """
  if len(a) != len(b) or len(a) < 2:
    raise ValueError(f"Expected pairs, at least 2; found {len(a)} and {len(b)} values.")
  found = np.subtract(a, b)
  error = float(found.std(ddof=1)) / math.sqrt(len(found))
  return Difference(float(found.mean()), error, len(found))


def equivalent(
  claim: str,
  a: Sequence[float],
  b: Sequence[float],
  *,
  power: Sequence[float],
  margin: float = MARGIN,
  unit: str = "nats",
) -> Statement:
  """Whether two arms come to the same, within a margin.

  It fails where they are shown to differ, by a two-sided t-test; "no power" is between.

  Args:
    claim: in words.
    a: of one arm, a value a seed.
    b: of the other.
    power: of an arm that differs from `b` for certain. If the same test takes it for
      equivalent too, or cannot tell that it is more, the outcome is "no power".
    margin: differences below it are none.
    unit: of the values.
  """
  if len(a) < 2:
    return _one_pair(claim, a, b, unit)
  difference, control = paired(a, b), paired(power, b)
  p, p_control = difference.p_equivalent(margin), control.p_equivalent(margin)
  apart = p_control >= LEVEL and control.p_above(0) < LEVEL
  outcome: Outcome = "no power"
  if apart and p < LEVEL:
    outcome = "holds"
  elif apart and min(difference.p_above(0), difference.p_below(0)) < LEVEL / 2:
    outcome = "fails"
  return Statement(
    claim,
    outcome,
    f"{_told(difference, unit)}; two one-sided tests, margin {margin:g} {unit}: "
    f"{_p(p)}; the arm that is known to differ is {_apart(apart)} ({control.mean:+.4f} "
    f"{unit}, the same tests: {_p(p_control)}; above 0: {_p(control.p_above(0))})",
  )


def throughout(claim: str, statements: Sequence[Statement]) -> Statement:
  """Whether each of several statements holds; at the level of one (intersection-union).

  Args:
    claim: in words.
    statements: of which the least favourable is the evidence; of several such the first.
  """
  order = ("fails", "no power", "holds")
  worst = min(statements, key=lambda x: order.index(x.outcome))
  held = sum(x.outcome == "holds" for x in statements)
  told = f"{held} of {len(statements)} hold; of '{worst.claim}': {worst.evidence}"
  return Statement(claim, worst.outcome, told)


def larger(
  claim: str,
  a: Sequence[float],
  b: Sequence[float],
  *,
  margin: float = MARGIN,
  unit: str = "nats",
) -> Statement:
  """Whether one arm comes to more than the other.

  It holds for any difference that is shown to be above 0, and fails where one of the
  margin or more is ruled out; "no power" is between. Where both are shown it holds, and
  the evidence says that it is less than the margin.

  Args:
    claim: in words.
    a: of the arm that is to have more, a value a seed.
    b: of the other.
    margin: what is to be ruled out where it fails; less is no difference that matters.
    unit: of the values.
  """
  if len(a) < 2:
    return _one_pair(claim, a, b, unit)
  difference = paired(a, b)
  p, p_less = difference.p_above(0), difference.p_below(margin)
  outcome: Outcome = "no power"
  if p < LEVEL:
    outcome = "holds"
  elif p_less < LEVEL:
    outcome = "fails"
  ruled_out = f"; {margin:g} {unit} or more: ruled out, {_p(p_less)}"
  return Statement(
    claim,
    outcome,
    f"{_told(difference, unit)}; paired one-sided t: {_p(p)}"
    + (ruled_out if p_less < LEVEL else ""),
  )


def not_more(
  claim: str,
  a: Sequence[float],
  b: Sequence[float],
  *,
  power: Sequence[float],
  margin: float = MARGIN,
  unit: str = "nats",
) -> Statement:
  """Whether one arm comes to no more than the other, but for less than a margin.

  It fails where the arm is shown to come to more by the margin; "no power" is between.

  Args:
    claim: in words.
    a: of the arm that is to have no more, a value a seed.
    b: of the other.
    power: of an arm that has more than `b` for certain. If the same runs cannot show that
      it has, by the margin, the outcome is "no power".
    margin: differences below it are none.
    unit: of the values.
  """
  if len(a) < 2:
    return _one_pair(claim, a, b, unit)
  difference, control = paired(a, b), paired(power, b)
  p, p_control = difference.p_below(margin), control.p_above(margin)
  apart = p_control < LEVEL
  outcome: Outcome = "no power"
  if apart and p < LEVEL:
    outcome = "holds"
  elif apart and difference.p_above(margin) < LEVEL:
    outcome = "fails"
  return Statement(
    claim,
    outcome,
    f"{_told(difference, unit)}; less than {margin:g} {unit}: {_p(p)}; the arm that is "
    f"known to differ is {_apart(apart)} ({control.mean:+.4f} {unit}, more than the "
    f"margin: {_p(p_control)})",
  )


def _one_pair(claim: str, a: Sequence[float], b: Sequence[float], unit: str) -> Statement:
  found = f"difference {a[0] - b[0]:+.4f} {unit}; " if len(a) == len(b) == 1 else ""
  return Statement(claim, "no power", f"{found}1 pair, which no test can judge")


def _apart(apart: bool) -> str:
  return "told apart" if apart else "not told apart"


def _told(difference: Difference, unit: str) -> str:
  low, high = difference.interval()
  return (
    f"difference {difference.mean:+.4f} {unit}, 95 % interval {low:+.4f} to {high:+.4f}, "
    f"{difference.pairs} pairs"
  )


def _p(p: float) -> str:
  return "p < 0.0001" if p < 1e-4 else f"p = {p:.4f}"
