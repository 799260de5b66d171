"""Ways to make the batches of many devices, and how long each device computes on its own.

A sequence is drawn from the dataset; a batch is what one device does in one step.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import packing
from experiments.load_balance.cost import Coefficients
from experiments.load_balance.simulation import Lengths, Steps, Way, draw

PADDING, UNPADDING = "padding", "un-padding"
BY_TOKENS, BY_TIME = "un-padding, balanced by tokens", "un-padding, balanced by time"


def make_ways(
  costs: Coefficients,
  lengths: Lengths,
  plans: Mapping[str, packing.Plan],
  *,
  bounds: tuple[int, ...],
  sequences: str,
) -> dict[str, Way]:
  """All ways to make batches, by name; the first is what the others are held against.

  Args:
    costs: of a device.
    lengths: of the dataset.
    plans: by depth.
    bounds: upper ends of the buckets.
    sequences: of un-padding, "in_turn" or "at_once".
  """
  size = np.arange(lengths.longest + 1.0)
  ways = {PADDING: padded(costs, lengths)}
  for told, together in (("", False), (", the same on all", True)):
    ways[f"sorted batches{told}"] = sorted_batches(costs, lengths, together=together)
    ways[f"length buckets{told}"] = bucketed(
      costs, lengths, bounds=bounds, together=together
    )
  weights = {UNPADDING: None, BY_TOKENS: size, BY_TIME: costs.row_seconds(size)}
  for name, balance in weights.items():
    ways[name] = unpadded(costs, lengths, sequences=sequences, balance=balance)
  for depth, plan in plans.items():
    ways[f"packing, depth {depth}"] = packed(costs, lengths, plan)
  depth, plan = list(plans.items())[-1]
  ways[f"packing, depth {depth}, own attention"] = packed(
    costs, lengths, plan, attention="sequence"
  )
  return ways


def padded(costs: Coefficients, lengths: Lengths) -> Way:
  """Each sequence in a row of the longest length."""

  def way(rng, deal):
    steps, devices, batch = deal.lengths.shape
    each = costs.step + batch * costs.row_seconds(lengths.longest)
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
    in_turn = sequences == "in_turn"
    seconds = table[dealt].sum(2) if in_turn else batch * table[dealt.max(2)]
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

  def way(rng, deal):
    steps, devices, batch = deal.lengths.shape
    rows = max(1, round(batch / plan.packing_factor))
    drawn = draw(rng, plan.repeat_counts, (steps, devices, rows))
    seconds = costs.step + each[drawn].sum(2)
    return Steps(seconds, depth[drawn].sum((1, 2)))

  return way


def _table(costs: Coefficients, lengths: Lengths) -> np.ndarray:
  """Seconds of a row by its length, float[S + 1]."""
  return costs.row_seconds(np.arange(lengths.longest + 1.0))
