"""The paper's estimate of un-padding on many devices: section E, Figures 5 and 6.

The speed-up of n devices is the smallest of n draws from the distribution of one device.
The paper's equations are solved in closed form, and the mean of the smallest draw is an
integral.

References:
  Krell et al., https://arxiv.org/abs/2107.02027, section E.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import scipy.integrate
import scipy.stats


class Gumbel(NamedTuple):
  """The Gumbel distribution of maxima: its mode and scale, the paper's alpha and beta."""

  location: float
  scale: float


DEVICES = 8  # to whose speed-ups the distribution is fitted
PAPER = Gumbel(1.6038, 0.1288)  # the paper's fit, Listing 1
PAPER_PACKING = 1.913  # the paper's speed-up on any number of devices, section E
MOST = 2048  # devices in the paper's estimate


def fit(speedups) -> Gumbel:
  """The distribution of observed speed-ups, float[K], by maximum likelihood."""
  return Gumbel(*map(float, scipy.stats.gumbel_r.fit(speedups)))


def goodness_of_fit(speedups, fitted: Gumbel) -> dict[str, float]:
  """Kolmogorov and Smirnov's test of the observed speed-ups, float[K], against their fit.

  Returns:
    `distance`, the largest between the two cumulative distributions; and `p`. Since the
    distribution was fitted to the same speed-ups, the true p is smaller still: the test may
    fail to reject a wrong distribution, but does not reject a right one too often.

  Example:
    >>> drawn = scipy.stats.gumbel_r.rvs(*PAPER, size=500, random_state=0)
    >>> [goodness_of_fit(x, fit(x))["p"] > 0.01 for x in (drawn, 1 / drawn)]
    [True, False]
  """
  found = scipy.stats.kstest(speedups, scipy.stats.gumbel_r(*fitted).cdf)
  return {"distance": float(found.statistic), "p": float(found.pvalue)}


def infer_one_device(several: Gumbel) -> Gumbel:
  """The distribution of one device from that of the slowest of `DEVICES`.

  The chance that all of n devices are faster than s is 1 - P_n(s) = (1 - P_1(s))^n. The
  two distributions agree in this at the median (13) and at the mode (14) of the second:
  two equations, each linear in location and scale once -ln(-ln) is taken.

  Example:
    >>> one = infer_one_device(PAPER)
    >>> f"alpha {one.location:.3f}, beta {one.scale:.3f}"
    'alpha 1.941, beta 0.318'

  References:
    Equations (12) to (14). The paper prints beta 0.108, which does not solve them.
  """
  median = several.location - several.scale * math.log(math.log(2))
  at_median = _reduced_quantile(-math.expm1(math.log(0.5) / DEVICES))
  at_mode = _reduced_quantile(-math.expm1(math.log1p(-math.exp(-1)) / DEVICES))
  scale = (median - several.location) / (at_median - at_mode)
  return Gumbel(several.location - scale * at_mode, scale)


def quantile_of_slowest(one: Gumbel, devices: int, *, probability: float) -> float:
  """A quantile of the speed-up of n devices, the smallest of n draws."""
  of_one = -math.expm1(math.log1p(-probability) / devices)
  return one.location + one.scale * _reduced_quantile(of_one)


def mean_of_slowest(one: Gumbel, devices: int) -> float:
  """The expected speed-up of n devices, the mean of the smallest of n draws.

  Example:
    >>> one = infer_one_device(PAPER)
    >>> [f"{mean_of_slowest(one, n):.2f}" for n in (1, 2, 32, 2048)]
    ['2.12', '1.90', '1.51', '1.28']

  References:
    Figure 5.
  """
  middle = quantile_of_slowest(Gumbel(0, 1), devices, probability=0.5)

  def above(z: float) -> float:  # the chance that all n are above z
    return math.exp(devices * math.log(-math.expm1(-math.exp(-z))))

  # The mean is middle + the tail above it - the tail below it. Below, exp(-exp(-z)) falls
  # so fast that nothing is left at middle - 10; above, at most exp(-z) is.
  right, _ = scipy.integrate.quad(above, middle, middle + 50, limit=200, epsabs=1e-12)
  left, _ = scipy.integrate.quad(
    lambda z: 1 - above(z), middle - 10, middle, limit=200, epsabs=1e-12
  )
  return one.location + one.scale * (middle + right - left)


def _reduced_quantile(probability: float) -> float:
  """z with exp(-exp(-z)) = probability."""
  return -math.log(-math.log(probability))
