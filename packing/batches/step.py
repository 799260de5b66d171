"""The packs of one training step: as many for each device, at nearly the same cost.

Fine-tuning and reinforcement learning pack a few hundred sequences at every step, most of
them long. Here the plan has few packs (`fewest`). Then packs and sequences are exchanged
between devices until their costs are as equal as the rows allow.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from packing.assignment import assign
from packing.batches import Cost, deal
from packing.batches.fewest import fewest
from packing.errors import check, check_integer
from packing.histogram import Histogram, check_lengths
from packing.problem import MAX_ROW_LENGTH, Problem

_NEAR = 1e-3  # the share above the bound at which costs are equal enough
_PAIRS = 2**18  # of sequences that are compared at a time, which bounds the memory


@dataclasses.dataclass(frozen=True)
class StepPacks:
  """The packs of a step.

  Attributes:
    devices: for each device, its packs; for each pack, the indices of its sequences. All
      devices have as many packs; one is empty only if its device has fewer sequences.
    lower_bound: no step of as many packs on each device can have fewer.
    costs: float64[devices]; the cost of each device's sequences.
    cost_bound: the largest cost of a device cannot be smaller.
  """

  devices: list[list[list[int]]]
  lower_bound: int
  costs: np.ndarray
  cost_bound: float

  @property
  def num_packs(self) -> int:
    """The packs of all devices."""
    return sum(map(len, self.devices))


def pack_step(
  lengths, *, row_length: int, devices: int = 1, cost: Cost | None = None
) -> StepPacks:
  """Packs the sequences of one step and deals them to devices.

  Args:
    lengths: int[n]; the lengths in tokens, each from 1 to row_length.
    row_length: tokens of a row.
    devices: the number of devices.
    cost: what a token and a pair of tokens of one sequence cost; padding costs nothing
      here. By default a token costs 1 and a pair nothing.

  Returns:
    The packs by device, what was reached, and the bounds.

  Raises:
    InputError: there is no sequence, a length does not fit in a row, or an argument is out
      of range or of another type.

  Example:
    >>> step = pack_step([60, 50, 40, 30, 20], row_length=100, devices=2)
    >>> step.devices, step.costs.tolist(), step.lower_bound
    ([[[0, 2]], [[1, 3, 4]]], [100.0, 100.0], 2)
  """
  row_length = check_integer("row_length", row_length, at_least=1, at_most=MAX_ROW_LENGTH)
  devices = check_integer("devices", devices, at_least=1)
  lengths = check_lengths(lengths, row_length).astype(np.int64)  # small types overflow
  cost = Cost() if cost is None else cost
  check(isinstance(cost, Cost), "cost", cost, "a packing.Cost, such as Cost(linear=1.0)")
  histogram = Histogram.from_lengths(lengths, max_sequence_length=row_length)
  problem = Problem(histogram.counts, row_length, row_length)
  best = fewest(problem)
  num_packs, lower_bound = (
    -(-n // devices) * devices for n in (best.num_packs, problem.simple_bound)
  )
  counts = np.array([count for count, _ in best.packs])
  strategies = [strategy for _, strategy in best.packs]
  pack_of = np.empty(lengths.size, np.int64)
  for number, ids in enumerate(assign(histogram, strategies, counts, lengths, seed=0)):
    pack_of[ids] = number
  costs = cost.linear * lengths + cost.quadratic * lengths.astype(float) ** 2
  by_pack = np.bincount(pack_of, costs, num_packs)
  rank = np.empty(num_packs, np.int64)
  rank[deal(by_pack, devices)] = np.arange(num_packs)
  dealt = _Dealt(lengths, costs, rank[pack_of], row_length, num_packs, devices)
  bound = max(costs.sum() / devices, costs.max())
  dealt.level(enough=bound * (1 + _NEAR))
  packs: list[list[int]] = [[] for _ in range(num_packs)]
  for i, number in enumerate(dealt.pack_of.tolist()):
    packs[number].append(i)
  each = num_packs // devices
  by_device = [packs[d * each : (d + 1) * each] for d in range(devices)]
  for own in by_device:
    for empty in own:
      if not empty and len(longest := max(own, key=len)) > 1:
        empty.append(longest.pop())
  return StepPacks(
    devices=by_device,
    lower_bound=lower_bound,
    costs=dealt.costs_of_devices(),
    cost_bound=float(bound),
  )


class _Dealt:
  """Sequences in packs, packs on devices: device `d` has the `d`-th block of packs."""

  def __init__(
    self, lengths, costs, pack_of, row_length: int, num_packs: int, devices: int
  ):
    # The last entry is no sequence: exchanging with it moves a sequence.
    self._lengths, self._costs = np.append(lengths, 0), np.append(costs, 0.0)
    self.pack_of = pack_of
    self._devices, self._each = devices, num_packs // devices
    self._space = row_length - np.bincount(pack_of, lengths, num_packs).astype(np.int64)

  def costs_of_devices(self) -> np.ndarray:
    """float64[devices]"""
    return np.bincount(self.pack_of // self._each, self._costs[:-1], self._devices)

  def level(self, *, enough: float):
    """Exchanges between the costliest device and others while that makes it cheaper."""
    while True:
      costs = self.costs_of_devices()
      order = np.argsort(costs, kind="stable")
      most = int(order[-1])
      if costs[most] <= enough:
        return
      if not any(self._exchange(most, int(d), costs) for d in order[:-1]):
        return

  def _exchange(self, high: int, low: int, costs: np.ndarray) -> bool:
    """Exchanges the pair that levels two devices most; whether there was one."""
    gap = costs[high] - costs[low]
    if gap <= 0:
      return False
    device_of = self.pack_of // self._each
    first, second = np.flatnonzero(device_of == high), np.flatnonzero(device_of == low)
    # Rows: sequences of the costlier device. Columns: those of the other, then, for each of
    # its packs, the space in it.
    packs = np.arange(low * self._each, (low + 1) * self._each)
    partners = np.append(second, np.full(packs.size, self.pack_of.size))
    into = np.append(self.pack_of[second], packs)
    best, pair = _NEAR * gap, None
    size = max(_PAIRS // partners.size, 1)
    for start in range(0, first.size, size):
      some = first[start : start + size]
      longer = self._lengths[some][:, None] - self._lengths[partners]
      fits = (longer <= self._space[into]) & (
        -longer <= self._space[self.pack_of[some]][:, None]
      )
      moved = self._costs[some][:, None] - self._costs[partners]
      gain = np.where(fits, gap / 2 - np.abs(moved - gap / 2), 0)
      row, column = np.unravel_index(gain.argmax(), gain.shape)
      if gain[row, column] > best:
        best, pair = gain[row, column], (int(some[row]), int(column))
    if pair is None:
      return False
    a, b = pair[0], int(partners[pair[1]])
    here, there = int(self.pack_of[a]), int(into[pair[1]])
    more = self._lengths[a] - self._lengths[b]
    self._space[here] += more
    self._space[there] -= more
    self.pack_of[a] = there
    if b < self.pack_of.size:
      self.pack_of[b] = here
    return True
