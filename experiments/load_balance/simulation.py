"""Simulated training steps on many devices, each of which waits for the slowest.

A way to make batches is a function from what the devices are dealt to how long each of them
computes. All lengths are in tokens, all times in seconds.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

import packing
from experiments.load_balance.cost import Network

CHUNK = 2**22  # sequences that are simulated together; bounds the memory
FEWEST_STEPS, MOST_STEPS = 100, 2**16  # fewer have no 99th percentile


class Steps(NamedTuple):
  """K steps of n devices.

  Attributes:
    seconds: float[K, n]; of the devices' own work.
    sequences: int[K]; real sequences in the step, over all devices.
  """

  seconds: np.ndarray
  sequences: np.ndarray


class Deal(NamedTuple):
  """What the devices are dealt in K steps.

  Attributes:
    lengths: int[K, n, b]; of each device's sequences.
    places: float[K] in [0, 1); for ways that go through the dataset in order of length,
      how far along each step is. Evenly spread, in random order.
  """

  lengths: np.ndarray
  places: np.ndarray


Way = Callable[[np.random.Generator, Deal], Steps]


class Lengths:
  """The lengths of a dataset, in order, to draw from."""

  def __init__(self, histogram: packing.Histogram):
    self.histogram = histogram
    self.longest = histogram.max_sequence_length
    self._ranks = np.cumsum(histogram.counts)

  def at(self, ranks: np.ndarray) -> np.ndarray:
    """The lengths of some sequences, by their places in the order of length."""
    return np.searchsorted(self._ranks, ranks, side="right") + 1

  def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """int[shape]; all sequences of the dataset are equally likely."""
    return draw(rng, self.histogram.counts, shape) + 1


def simulate(
  ways: Mapping[str, Way],
  lengths: Lengths,
  *,
  devices: int,
  batch: int,
  sequences: int,
) -> dict[str, Steps]:
  """Steps of each way, all dealt the same sequences.

  Args:
    ways: by name. A way's random draws do not depend on which other ways there are.
    lengths: of the dataset.
    devices: n.
    batch: b, sequences of a device.
    sequences: how many to draw, about; in any case 100 to 65,536 steps.
  """
  of_step = devices * batch
  steps = min(max(sequences // of_step, FEWEST_STEPS), MOST_STEPS)
  dealer = np.random.default_rng([0, devices, batch])
  rngs = {
    name: np.random.default_rng([0, devices, batch, zlib.crc32(name.encode())])
    for name in ways
  }
  parts: dict[str, list[Steps]] = {name: [] for name in ways}
  places = dealer.permutation((np.arange(steps) + dealer.random(steps)) / steps)
  chunk = max(1, CHUNK // of_step)
  for first in range(0, steps, chunk):
    some = places[first : first + chunk]
    deal = Deal(lengths.draw(dealer, (some.size, devices, batch)), some)
    for name, way in ways.items():
      parts[name].append(way(rngs[name], deal))
  return {
    name: Steps(*map(np.concatenate, zip(*some, strict=True)))
    for name, some in parts.items()
  }


class Summary(NamedTuple):
  """The steps of one way.

  Attributes:
    steps: K, how many were simulated.
    mean: seconds of a step, including the exchange of gradients.
    deviation: standard deviation of the seconds.
    percentile_99: of the seconds.
    sequences_per_second: real sequences.
    idle: the fraction of the time from the start of a step to the exchange that devices
      wait for the slowest.
  """

  steps: int
  mean: float
  deviation: float
  percentile_99: float
  sequences_per_second: float
  idle: float


def summarise(steps: Steps, network: Network) -> Summary:
  """Summarises steps that wait for their slowest device and then exchange gradients."""
  slowest = steps.seconds.max(1)
  whole = slowest + network.seconds(steps.seconds.shape[1])
  idle = 1 - steps.seconds.mean(1).sum() / slowest.sum()
  return Summary(
    steps=slowest.size,
    mean=float(whole.mean()),
    deviation=float(whole.std()) if np.ptp(whole) else 0.0,  # no rounding error
    percentile_99=float(np.quantile(whole, 0.99)),
    sequences_per_second=float(steps.sequences.sum() / whole.sum()),
    idle=max(0.0, float(idle)),
  )


def draw(rng: np.random.Generator, counts: np.ndarray, shape: tuple) -> np.ndarray:
  """Independent indices, int[shape], with chances in proportion to the counts."""
  # Draws how often each occurs, then a random order: faster than one by one.
  times = rng.multinomial(math.prod(shape), counts / counts.sum())
  drawn = np.repeat(np.arange(counts.size, dtype=np.min_scalar_type(counts.size)), times)
  rng.shuffle(drawn)
  return drawn.reshape(shape)
