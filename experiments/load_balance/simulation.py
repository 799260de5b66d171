"""Simulated training steps on many devices, each of which waits for the slowest.

A way to make batches is a function of what the devices are dealt, and says how long each of
them computes. All lengths are tokens, all times seconds.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

import packing
from experiments.load_balance.cost import Network

CHUNK = 2**22  # sequences that are looked at together; bounds the memory
FEWEST_STEPS, MOST_STEPS = 100, 2**16  # of fewer there is no 99th percentile


class Steps(NamedTuple):
  """K steps of n devices.

  Attributes:
    seconds: float[K, n]; of the devices' own work.
    sequences: int[K]; real ones in the step, over all devices.
  """

  seconds: np.ndarray
  sequences: np.ndarray


class Deal(NamedTuple):
  """What the devices are dealt in K steps.

  Attributes:
    lengths: int[K, n, b]; of each device's sequences.
    places: float[K]; for ways that go through the dataset in order of length, how far
      along each step is. Evenly spread, in random order.
  """

  lengths: np.ndarray
  places: np.ndarray


Way = Callable[[np.random.Generator, Deal], Steps]


class Lengths:
  """The lengths of a dataset, in order, to draw from.

  Args:
    histogram: of the dataset.
  """

  def __init__(self, histogram: packing.Histogram):
    self.histogram = histogram
    self.longest = histogram.max_sequence_length
    self._ranks = np.cumsum(histogram.counts)

  def at(self, ranks: np.ndarray) -> np.ndarray:
    """The lengths of some sequences, by their places in the order of length."""
    return np.searchsorted(self._ranks, ranks, side="right") + 1

  def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """int[shape]; each sequence of the dataset is as likely."""
    return draw(rng, self.histogram.counts, shape) + 1


def simulate(
  ways: Mapping[str, Way],
  lengths: Lengths,
  *,
  devices: int,
  batch: int,
  sequences: int,
  seed: int,
) -> dict[str, Steps]:
  """Steps of each way, all dealt the same sequences.

  Args:
    ways: by name.
    lengths: of the dataset.
    devices: n.
    batch: b, sequences of a device.
    sequences: to draw, about; at least 100 steps of them.
    seed: of the draws. A way's draws do not depend on which others there are.
  """
  of_step = devices * batch
  steps = min(max(sequences // of_step, FEWEST_STEPS), MOST_STEPS)
  dealer = np.random.default_rng([seed, devices, batch])
  rngs = {
    name: np.random.default_rng([seed, devices, batch, zlib.crc32(name.encode())])
    for name in ways
  }
  found: dict[str, list[Steps]] = {name: [] for name in ways}
  places = dealer.permutation((np.arange(steps) + dealer.random(steps)) / steps)
  part = max(1, CHUNK // of_step)
  for first in range(0, steps, part):
    some = places[first : first + part]
    deal = Deal(lengths.draw(dealer, (some.size, devices, batch)), some)
    for name, way in ways.items():
      found[name].append(way(rngs[name], deal))
  return {
    name: Steps(*map(np.concatenate, zip(*parts, strict=True)))
    for name, parts in found.items()
  }


class Summary(NamedTuple):
  """What the steps of one way came to.

  Attributes:
    steps: K, simulated.
    mean: seconds of a step, the exchange of gradients included.
    deviation: of them, the standard one.
    percentile_99: of them.
    sequences_per_second: real ones.
    idle: the fraction of the devices' time between the start of a step and the exchange
      in which they wait for the slowest.
  """

  steps: int
  mean: float
  deviation: float
  percentile_99: float
  sequences_per_second: float
  idle: float


def summarise(steps: Steps, network: Network) -> Summary:
  """Lets each step wait for its slowest device, and exchange gradients.

  Args:
    steps: as a way gives them.
    network: that joins the devices.
  """
  slowest = steps.seconds.max(1)
  whole = slowest + network.seconds(steps.seconds.shape[1])
  return Summary(
    steps=slowest.size,
    mean=float(whole.mean()),
    deviation=float(whole.std()) if np.ptp(whole) else 0.0,  # no rounding error
    percentile_99=float(np.quantile(whole, 0.99)),
    sequences_per_second=float(steps.sequences.sum() / whole.sum()),
    idle=idle(steps.seconds),
  )


def idle(seconds: np.ndarray) -> float:
  """The fraction of the devices' time in which they wait for the slowest of their step.

  Args:
    seconds: [K, n]; of the devices' own work.

  Example:
    >>> idle(np.array([[0.0, 2.0], [2.0, 2.0]]))
    0.25
  """
  return max(0.0, float(1 - seconds.mean(1).sum() / seconds.max(1).sum()))


def draw(rng: np.random.Generator, counts: np.ndarray, shape: tuple) -> np.ndarray:
  """Indices with chances in proportion to counts, independent of each other.

  Args:
    rng: to draw with.
    counts: int[C].
    shape: of what is drawn.
  """
  # As many of each as chance gives, in random order: sooner than one by one.
  found = rng.multinomial(math.prod(shape), counts / counts.sum())
  drawn = np.repeat(np.arange(counts.size, dtype=np.min_scalar_type(counts.size)), found)
  rng.shuffle(drawn)
  return drawn.reshape(shape)
