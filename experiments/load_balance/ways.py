"""Ways to make the batches of many devices, and how long each device computes on its own.

A sequence is drawn from the dataset; a batch is what one device computes in one step.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import packing
from experiments.load_balance.cost import Coefficients
from experiments.load_balance.simulation import Deal, Lengths, Steps, Way, draw

PADDING, UNPADDING = "padding", "un-padding"
BY_TOKENS, BY_TIME = "un-padding, balanced by tokens", "un-padding, balanced by time"
AT_ONCE = "un-padding, at the pace of the longest"
SORTED, BUCKETS = "sorted batches", "length buckets"
SAME = ", the same on all"
NUM_BUCKETS = 4  # of equal width


def make_ways(
  costs: Coefficients, lengths: Lengths, plans: Mapping[str, packing.Plan]
) -> dict[str, Way]:
  """All ways to make batches, by name, for plans by depth; speed-ups are over the first."""
  size = np.arange(lengths.longest + 1.0)
  bounds = [lengths.longest * k // NUM_BUCKETS for k in range(1, NUM_BUCKETS + 1)]
  ways = {PADDING: bucketed(costs, lengths, bounds=bounds[-1:], together=True)}
  for suffix, together in (("", False), (SAME, True)):
    ways[SORTED + suffix] = sorted_batches(costs, lengths, together=together)
    ways[BUCKETS + suffix] = bucketed(costs, lengths, bounds=bounds, together=together)
  ways[UNPADDING] = unpadded(costs, lengths)
  ways[BY_TOKENS] = unpadded(costs, lengths, balance=size)
  ways[BY_TIME] = unpadded(costs, lengths, balance=costs.row_seconds(size))
  ways[AT_ONCE] = unpadded(costs, lengths, at_once=True)
  for depth, plan in plans.items():
    ways[f"packing, depth {depth}"] = packed(costs, plan)
  ways[f"packing, depth {depth}, own attention"] = packed(costs, plan, own_attention=True)
  return ways


def unpadded(
  costs: Coefficients,
  lengths: Lengths,
  *,
  at_once: bool = False,
  balance: np.ndarray | None = None,
) -> Way:
  """For each sequence, only its own tokens are computed.

  Args:
    costs: of a device.
    lengths: of the dataset.
    at_once: whether a device works on all its sequences at the pace of the longest, so
      that each takes as long as the longest; otherwise their own times add up.
    balance: float[S + 1]; the weight of a sequence of each length. If given, sequences are
      dealt again so that all devices have about the same weight.
  """
  table = _table(costs, lengths)

  def way(rng, deal):
    _, devices, batch = deal.lengths.shape
    dealt = deal.lengths
    if balance is not None and devices > 1:
      dealt = balanced(dealt, balance)
    rows = batch * table[dealt.max(2)] if at_once else table[dealt].sum(2)
    return _steps(costs, deal, rows)

  return way


def balanced(dealt: np.ndarray, weights: np.ndarray) -> np.ndarray:
  """Deals the sequences of each step again, as many to each device, the heaviest first.

  In each round, the device with the least weight so far takes the heaviest of the next n
  sequences, and so on. A step whose heaviest device would be no lighter stays as it was.

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
  by_round = np.empty_like(rounds)
  loads = np.zeros((steps, devices))
  for number in range(batch):
    lightest_first = np.argsort(loads, axis=1)
    np.put_along_axis(by_round[:, number], lightest_first, rounds[:, number], 1)
    loads += weights[by_round[:, number]]
  worse = loads.max(1) >= weights[dealt].sum(2).max(1)
  return np.where(worse[:, None, None], dealt, by_round.swapaxes(1, 2))


def sorted_batches(costs: Coefficients, lengths: Lengths, *, together: bool) -> Way:
  """The dataset in order of length, cut into batches, each padded to its longest.

  If `together`, the devices of a step take consecutive batches; otherwise they take random
  batches of the dataset.
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
    return _steps(costs, deal, batch * table[lengths.at((number + 1) * batch - 1)])

  return way


def bucketed(
  costs: Coefficients, lengths: Lengths, *, bounds: list[int], together: bool
) -> Way:
  """Batches from one bucket of lengths, padded to its upper end.

  Args:
    costs: of a device.
    lengths: of the dataset.
    bounds: the upper ends, ascending to the longest length; a single bucket is padding.
    together: whether the devices of a step take the same bucket, or each its own.
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
    return _steps(costs, deal, batch * each[np.searchsorted(ends, drawn, side="right")])

  return way


def packed(costs: Coefficients, plan: packing.Plan, *, own_attention: bool = False) -> Way:
  """Packs of a plan, with about as many sequences on a device as without packing.

  A device has batch / packing factor packs, rounded, and at least one. With
  `own_attention` it computes only pairs of tokens of the same sequence, so its time depends
  on what is in the packs; otherwise it computes all pairs of a row.
  """
  depth = np.array([len(strategy) for strategy in plan.strategies])
  each = np.full(depth.size, costs.row_seconds(plan.row_length))
  if own_attention:
    each = each + costs.token_pair * (plan.squares - plan.row_length**2)

  def way(rng, deal):
    steps, devices, batch = deal.lengths.shape
    rows = max(1, round(batch / plan.packing_factor))
    drawn = draw(rng, plan.repeat_counts, (steps, devices, rows))
    return _steps(costs, deal, each[drawn].sum(2), depth[drawn].sum((1, 2)))

  return way


def _steps(
  costs: Coefficients, deal: Deal, rows: np.ndarray, sequences: np.ndarray | None = None
) -> Steps:
  """Steps from the seconds of the rows, [K, n]; by default, of all dealt sequences."""
  steps, devices, batch = deal.lengths.shape
  if sequences is None:
    sequences = np.full(steps, devices * batch)
  return Steps(costs.step + rows, sequences)


def _table(costs: Coefficients, lengths: Lengths) -> np.ndarray:
  """Seconds of a row by its length, float[S + 1]."""
  return costs.row_seconds(np.arange(lengths.longest + 1.0))
