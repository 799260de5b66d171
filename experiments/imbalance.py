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
from experiments.step_time import Coefficients, Network

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
    return _draw(rng, self.histogram.counts, shape) + 1


def padded(costs: Coefficients, lengths: Lengths) -> Way:
  """Each sequence in a row of the longest length."""
  seconds = costs.step

  def way(rng, deal):
    steps, devices, batch = deal.lengths.shape
    each = seconds + batch * costs.row_seconds(lengths.longest)
    return Steps(np.full((steps, devices), each), np.full(steps, devices * batch))

  return way


def unpadded(
  costs: Coefficients,
  lengths: Lengths,
  *,
  sequences: str = "in_turn",
  balance: np.ndarray | None = None,
) -> Way:
  """Each sequence computes its own tokens only.

  Args:
    costs: of a device.
    lengths: of the dataset.
    sequences: "in_turn" adds their times up; "at_once" has a device work on all at the
      pace of the longest, so that it takes its batch times the longest.
    balance: float[S + 1]; what a sequence of each length weighs when sequences are dealt
      again so that each device has about the same; not dealt again if None.
  """
  table = _table(costs, lengths)

  def way(rng, deal):
    steps, devices, batch = deal.lengths.shape
    dealt = deal.lengths
    if balance is not None and devices > 1:
      dealt = balanced(dealt, balance)
    if sequences == "in_turn":
      seconds = table[dealt].sum(2)
    else:
      seconds = batch * table[dealt.max(2)]
    return Steps(costs.step + seconds, np.full(steps, devices * batch))

  return way


def balanced(dealt: np.ndarray, weights: np.ndarray) -> np.ndarray:
  """Deals the sequences of each step again, as many to each device, the heaviest first.

  In each round the device with the least so far takes the heaviest of the next n
  sequences, and so on. A step whose heaviest device is then no lighter stays as it was.

  Args:
    dealt: int[K, n, b]; lengths.
    weights: float[S + 1]; of each length, growing with it.

  Returns:
    int[K, n, b]; the same lengths in each step.

  Example:
    >>> dealt = np.array([[[9, 7], [2, 1]]])
    >>> balanced(dealt, np.arange(10.0)).tolist()
    [[[9, 1], [7, 2]]]

  References:
    Graham, Bounds on multiprocessing timing anomalies, 1969 (longest first).
  """
  steps, devices, batch = dealt.shape
  ordered = np.sort(dealt.reshape(steps, -1), axis=1, kind="stable")[:, ::-1]
  rounds = ordered.reshape(steps, batch, devices)
  found = np.empty_like(rounds)
  loads = np.zeros((steps, devices))
  for number in range(batch):
    lightest_first = np.argsort(loads, axis=1)
    np.put_along_axis(found[:, number], lightest_first, rounds[:, number], 1)
    loads += weights[found[:, number]]
  worse = loads.max(1) >= weights[dealt].sum(2).max(1)
  redealt = found.swapaxes(1, 2)
  return np.where(worse[:, None, None], dealt, redealt)


def sorted_batches(costs: Coefficients, lengths: Lengths, *, together: bool) -> Way:
  """The dataset in order of length, cut into batches, each padded to its longest.

  Args:
    costs: of a device.
    lengths: of the dataset.
    together: whether the devices of a step take batches that follow each other; any
      batches of the dataset otherwise.
  """
  table = _table(costs, lengths)

  def way(rng, deal):
    steps, devices, batch = deal.lengths.shape
    whole = lengths.histogram.num_sequences // batch
    if together:
      first = (deal.places * (max(whole - devices, 0) + 1)).astype(np.int64)
      number = (first[:, None] + np.arange(devices)) % whole
    else:
      number = rng.integers(whole, size=(steps, devices))
    longest = lengths.at((number + 1) * batch - 1)
    seconds = costs.step + batch * table[longest]
    return Steps(seconds, np.full(steps, devices * batch))

  return way


def bucketed(
  costs: Coefficients, lengths: Lengths, *, bounds: tuple[int, ...], together: bool
) -> Way:
  """Batches from one bucket of lengths, padded to its upper end.

  Args:
    costs: of a device.
    lengths: of the dataset.
    bounds: the upper ends, rising to the longest length.
    together: whether the devices of a step take the same bucket; each its own otherwise.
  """
  parts = np.split(lengths.histogram.counts, bounds[:-1])
  ends = np.cumsum([part.sum() for part in parts[:-1]]) / lengths.histogram.num_sequences
  each = costs.row_seconds(np.array(bounds))

  def way(rng, deal):
    steps, devices, batch = deal.lengths.shape
    if together:
      drawn = np.broadcast_to(deal.places[:, None], (steps, devices))
    else:
      drawn = rng.random((steps, devices))
    seconds = costs.step + batch * each[np.searchsorted(ends, drawn, side="right")]
    return Steps(seconds, np.full(steps, devices * batch))

  return way


def packed(
  costs: Coefficients, lengths: Lengths, plan: packing.Plan, *, attention: str = "row"
) -> Way:
  """Packs of a plan; about as many sequences on a device as without packing.

  A device has batch / packing factor packs, rounded, and at least one.

  Args:
    costs: of a device.
    lengths: of the dataset.
    plan: of its histogram.
    attention: "row" computes all pairs of tokens of a row; "sequence" only those of the
      same sequence, so that the time depends on what is in the pack.
  """
  depth = np.array([len(strategy) for strategy in plan.strategies])
  full = costs.row_seconds(plan.row_length)
  if attention == "sequence":
    pairs = np.array([sum(x * x for x in strategy) for strategy in plan.strategies])
    each = full + costs.token_pair * (pairs - plan.row_length**2)
  else:
    each = np.full(depth.size, full)
  shares = plan.repeat_counts / plan.num_packs

  def way(rng, deal):
    steps, devices, batch = deal.lengths.shape
    rows = max(1, round(batch / plan.packing_factor))
    drawn = _draw(rng, plan.repeat_counts, (steps, devices, rows))
    seconds = costs.step + each[drawn].sum(2)
    return Steps(seconds, depth[drawn].sum((1, 2)))

  return way


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
    deviation=float(whole.std()),
    percentile_99=float(np.quantile(whole, 0.99)),
    sequences_per_second=float(steps.sequences.sum() / whole.sum()),
    idle=max(0.0, float(1 - steps.seconds.mean(1).sum() / slowest.sum())),
  )


def _table(costs: Coefficients, lengths: Lengths) -> np.ndarray:
  """Seconds of a row by its length, float[S + 1]."""
  return costs.row_seconds(np.arange(lengths.longest + 1.0))


def _draw(rng: np.random.Generator, counts: np.ndarray, shape: tuple) -> np.ndarray:
  """int[shape]; index i with a chance of counts[i], independently."""
  # As many of each as chance gives, in random order: sooner than one by one.
  found = rng.multinomial(math.prod(shape), counts / counts.sum())
  drawn = np.repeat(np.arange(counts.size, dtype=np.min_scalar_type(counts.size)), found)
  rng.shuffle(drawn)
  return drawn.reshape(shape)
