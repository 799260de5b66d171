"""Differences of runs in pairs: two arms with the same seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats

Values = Sequence[float]  # of each run, by seed


class Difference(NamedTuple):
  """The mean of differences of pairs, its standard error, and the number of pairs."""

  mean: float
  error: float
  pairs: int

  def interval(self) -> tuple[float, float]:
    """The 95 % confidence interval of the mean, symmetric.

    Example:
      >>> low, high = Difference(1.0, 0.5, 3).interval()
      >>> round(low, 3), round(high, 3)
      (-1.151, 3.151)
    """
    half = self.error * float(scipy.stats.t.ppf(0.975, self.pairs - 1))
    return self.mean - half, self.mean + half

  def p_above(self, value: float) -> float:
    """The chance of this mean or a larger one if the true mean is `value`."""
    if self.error == 0:
      return float(self.mean <= value)
    return float(scipy.stats.t.sf((self.mean - value) / self.error, self.pairs - 1))

  def p_below(self, value: float) -> float:
    """The chance of this mean or a smaller one if the true mean is `value`."""
    return Difference(-self.mean, self.error, self.pairs).p_above(-value)

  def p_apart(self) -> float:
    """Two-sided: below 0.05 if the 95 % interval of the mean leaves out 0."""
    return min(1.0, 2 * min(self.p_above(0), self.p_below(0)))

  def p_equivalent(self, margin: float) -> float:
    """Two one-sided tests: small if the true mean is within the margin of 0."""
    return max(self.p_above(-margin), self.p_below(margin))

  def p_beyond(self, margin: float) -> float:
    """Small if the true mean is farther from 0 than the margin, on the mean's own side."""
    return min(self.p_above(margin), self.p_below(-margin))


def paired(a: Values, b: Values) -> Difference:
  """a - b, pair by pair; both have one value per seed, in the same order.

  Raises:
    ValueError: they differ in number, or there are fewer than two pairs.

  Example:
    >>> paired([3.0, 5.0], [2.0, 2.0])
    Difference(mean=2.0, error=1.0, pairs=2)
  """
  if len(a) != len(b) or len(a) < 2:
    raise ValueError(f"Expected pairs, at least 2; found {len(a)} and {len(b)} values.")
  differences = np.subtract(a, b)
  error = float(scipy.stats.sem(differences))
  return Difference(float(differences.mean()), error, len(differences))


def paired_difference(a: Values, b: Values) -> str:
  """The mean of a - b, with its 95 % interval if there are several pairs.

  Raises:
    ValueError: they differ in number.
  """
  if len(a) != len(b):
    raise ValueError(f"Expected pairs, found {len(a)} and {len(b)} values.")
  mean = f"{np.mean(np.subtract(a, b)):+.4f}"
  if len(a) < 2:
    return mean
  low, high = paired(a, b).interval()
  return f"{mean} ({low:+.4f} to {high:+.4f})"
