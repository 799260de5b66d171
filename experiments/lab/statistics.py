"""Claims about paired runs, tested over seeds.

Both arms of a pair start from the same weights and see the same sequences, so we test the
mean of their differences by Student's t. The margin below which a difference does not
matter is fixed here, before any run.

`equivalent`, `larger` and `not_more` take a claim in words, the values `a` and `b` of two
arms, one a seed and in the same order, a margin and the unit of all of them. `power` has
the values of an arm that is known to have more than `b`. If the same runs cannot tell it
apart from `b`, the outcome is "no power".

References:
  Schuirmann, A comparison of the two one-sided tests procedure, 1987.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats

from experiments.lab.exhibits import Statement, judged

MARGIN = 0.02  # nats of masked-token loss; a smaller difference does not matter
SCORE_MARGIN = 2.0  # points of a score; a smaller difference does not matter
LEVEL = 0.05  # of each test
Runs = Sequence[float]  # a value of each run, by seed


class Difference(NamedTuple):
  """The mean of differences of pairs, its standard error, and the number of pairs."""

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
    """The chance of this mean or a larger one if the true mean is `value`."""
    if self.error == 0:
      return float(self.mean <= value)
    return float(scipy.stats.t.sf((self.mean - value) / self.error, self.pairs - 1))

  def p_below(self, value: float) -> float:
    """The chance of this mean or a smaller one if the true mean is `value`."""
    return Difference(-self.mean, self.error, self.pairs).p_above(-value)

  def p_equivalent(self, margin: float) -> float:
    """Two one-sided tests: small if the true mean is within the margin of 0."""
    return max(self.p_above(-margin), self.p_below(margin))


def paired(a: Runs, b: Runs) -> Difference:
  """a - b, pair by pair; each has a value a seed, in the same order.

  Raises:
    ValueError: their numbers differ, or there are fewer than two.

  Example:
    >>> paired([3.0, 5.0], [2.0, 2.0])
    Difference(mean=2.0, error=1.0, pairs=2)
  """
  if len(a) != len(b) or len(a) < 2:
    raise ValueError(f"Expected pairs, at least 2; found {len(a)} and {len(b)} values.")
  differences = np.subtract(a, b)
  error = float(scipy.stats.sem(differences))
  return Difference(float(differences.mean()), error, len(differences))


def equivalent(
  claim: str, a: Runs, b: Runs, *, power: Runs, margin: float = MARGIN, unit: str = "nats"
) -> Statement:
  """Tests whether two arms have the same value, within a margin.

  The claim fails if a two-sided t-test shows that they differ; otherwise "no power".
  """
  if len(a) < 2:
    return _one_pair(claim, a, b, unit)
  difference, control = paired(a, b), paired(power, b)
  p, p_control = difference.p_equivalent(margin), control.p_equivalent(margin)
  apart = p_control >= LEVEL and control.p_above(0) < LEVEL
  differ = min(difference.p_above(0), difference.p_below(0)) < LEVEL / 2
  return judged(
    claim,
    apart and p < LEVEL,
    apart and differ,
    f"{_estimate(difference, unit)}; two one-sided tests, margin {margin:g} {unit}: "
    f"{_p(p)}; the arm that is known to differ is {_apart(apart)} ({control.mean:+.4f} "
    f"{unit}, the same tests: {_p(p_control)}; above 0: {_p(control.p_above(0))})",
  )


def same_score(claim: str, packed: Runs, unpacked: Runs, no_mask: Runs) -> Statement:
  """Tests whether two arms score the same, in points; `no_mask` is known to score less."""
  # A high score is good, but the control of the test has to be larger.
  control = (np.multiply(2, unpacked) - no_mask).tolist()
  return equivalent(
    claim, packed, unpacked, power=control, margin=SCORE_MARGIN, unit="points"
  )


def throughout(claim: str, statements: Sequence[Statement]) -> Statement:
  """Tests whether all of several statements hold, at the level of one of them.

  The evidence is that of the first statement with the least favourable outcome
  (intersection-union).
  """
  order = ("fails", "no power", "holds")
  worst = min(statements, key=lambda x: order.index(x.outcome))
  held = sum(x.outcome == "holds" for x in statements)
  evidence = f"{held} of {len(statements)} hold; of '{worst.claim}': {worst.evidence}"
  return Statement(claim, worst.outcome, evidence)


def larger(
  claim: str, a: Runs, b: Runs, *, margin: float = MARGIN, unit: str = "nats"
) -> Statement:
  """Tests whether `a` has more than `b`.

  The claim holds if the difference is shown to be above 0, and fails if a difference of
  the margin is ruled out; otherwise "no power". If both are shown it holds, and the
  evidence says that the difference is smaller than the margin.
  """
  if len(a) < 2:
    return _one_pair(claim, a, b, unit)
  difference = paired(a, b)
  p, p_less = difference.p_above(0), difference.p_below(margin)
  evidence = f"{_estimate(difference, unit)}; paired one-sided t: {_p(p)}"
  if p_less < LEVEL:
    evidence += f"; {margin:g} {unit} or more: ruled out, {_p(p_less)}"
  return judged(claim, p < LEVEL, p_less < LEVEL, evidence)


def not_more(
  claim: str, a: Runs, b: Runs, *, power: Runs, margin: float = MARGIN, unit: str = "nats"
) -> Statement:
  """Tests whether `a` has at most a margin more than `b`.

  The claim fails if `a` is shown to have more by the margin; otherwise "no power". The
  arm of `power` has to be shown to have more by the margin, too.
  """
  if len(a) < 2:
    return _one_pair(claim, a, b, unit)
  difference, control = paired(a, b), paired(power, b)
  p, p_control = difference.p_below(margin), control.p_above(margin)
  apart = p_control < LEVEL
  return judged(
    claim,
    apart and p < LEVEL,
    apart and difference.p_above(margin) < LEVEL,
    f"{_estimate(difference, unit)}; less than {margin:g} {unit}: {_p(p)}; the arm that is "
    f"known to differ is {_apart(apart)} ({control.mean:+.4f} {unit}, more than the "
    f"margin: {_p(p_control)})",
  )


def mean_and_sd(values: Runs | np.ndarray, digits: int = 4) -> str:
  """A mean, with the standard deviation if there are several values.

  Example:
    >>> mean_and_sd([1.0, 3.0], 1), mean_and_sd([1.0], 1)
    ('2.0 ± 1.4', '1.0')
  """
  mean = f"{np.mean(values):.{digits}f}"
  return f"{mean} ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else mean


def paired_difference(a: Runs, b: Runs) -> str:
  """The mean of a - b, with its 95 % interval if there are several pairs."""
  mean = f"{np.mean(np.subtract(a, b)):+.4f}"
  if len(a) < 2:
    return mean
  low, high = paired(a, b).interval()
  return f"{mean} ({low:+.4f} to {high:+.4f})"


def _one_pair(claim: str, a: Runs, b: Runs, unit: str) -> Statement:
  estimate = f"difference {a[0] - b[0]:+.4f} {unit}; " if len(a) == len(b) == 1 else ""
  return Statement(claim, "no power", f"{estimate}1 pair, too few for a test")


def _apart(apart: bool) -> str:
  return "told apart" if apart else "not told apart"


def _estimate(difference: Difference, unit: str) -> str:
  low, high = difference.interval()
  return (
    f"difference {difference.mean:+.4f} {unit}, 95 % interval {low:+.4f} to {high:+.4f}, "
    f"{difference.pairs} pairs"
  )


def _p(p: float) -> str:
  return "p < 0.0001" if p < 1e-4 else f"p = {p:.4f}"
