"""Exchanges between devices that make their costs, or their numbers of targets, equal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

_PAIRS = 2**18  # of items that are compared at a time, which bounds the memory
_LEAST = 1e-3  # of the gap between two devices that an exchange must close
_TRIES = 6  # exchanges of two devices that `admit` may refuse


@dataclasses.dataclass(frozen=True)
class Ceiling:
  """What an exchange must not do to another cost of the devices.

  Attributes:
    values: float64[n]; that cost of each item.
    most: the most that a device may have after an exchange.
  """

  values: np.ndarray
  most: float


class Dealt:
  """Items in packs, packs on devices: device `d` has the `d`-th block of packs.

  Args:
    sizes: int64[n, K]; the sizes of each item. K is 0 where nothing limits a pack.
    limits: int64[K]; what a pack holds of each size.
    pack_of: int64[n]; the pack of each item. Exchanges change it.
    num_packs: the packs of all devices.
    devices: a divisor of `num_packs`.
    admit: is asked before two devices exchange something. It gets the devices of all items
      after the exchange, and the two devices.
  """

  def __init__(
    self,
    sizes: np.ndarray,
    limits: np.ndarray,
    pack_of: np.ndarray,
    num_packs: int,
    devices: int,
    admit: Callable[[np.ndarray, int, int], bool] | None = None,
  ):
    # The last entry is a dummy: an item that is exchanged with it moves.
    self._sizes = np.append(sizes, np.zeros((1, limits.size), np.int64), axis=0)
    self.pack_of = pack_of
    self._devices, self._each, self._admit = devices, num_packs // devices, admit
    self._space = np.tile(limits, (num_packs, 1))
    np.subtract.at(self._space, pack_of, sizes)

  def of_devices(self, values: np.ndarray) -> np.ndarray:
    """float64[devices]; the sums of the items' values."""
    return np.bincount(self.pack_of // self._each, values, self._devices)

  def level(self, values: np.ndarray, *, enough: float, ceiling: Ceiling | None = None):
    """Exchanges between the costliest device and others while that makes it cheaper.

    Args:
      values: float64[n]; what is made equal.
      enough: the largest sum of a device that is good enough.
      ceiling: another cost, which stays below it. Since only items of nearly the same cost
        can be exchanged then, whole packs are exchanged first.
    """
    if ceiling is not None and self._each > 1:
      self._level_packs(values, enough, ceiling)
    while True:
      sums = self.of_devices(values)
      order = np.argsort(sums, kind="stable")
      most = int(order[-1])
      if sums[most] <= enough:
        return
      if not any(self._exchange(most, int(d), values, sums, ceiling) for d in order[:-1]):
        return

  def _level_packs(self, values: np.ndarray, enough: float, ceiling: Ceiling):
    """Exchanges whole packs, of which each device keeps as many."""
    number = len(self._space)
    dealt = Dealt(
      np.ones((number, 1), np.int64),
      np.array([self._each]),
      np.arange(number) // self._each,
      self._devices,
      self._devices,
    )
    of_packs = np.bincount(self.pack_of, ceiling.values, number)
    own = Ceiling(of_packs, ceiling.most)
    dealt.level(np.bincount(self.pack_of, values, number), enough=enough, ceiling=own)
    order = np.argsort(dealt.pack_of, kind="stable")
    rank = np.empty(number, np.int64)
    rank[order] = np.arange(number)
    self.pack_of, self._space = rank[self.pack_of], self._space[order]

  def _exchange(self, high: int, low: int, values, sums, ceiling: Ceiling | None) -> bool:
    """Exchanges the pair that levels two devices most; whether there was one."""
    gap = sums[high] - sums[low]
    if gap <= 0:
      return False
    device_of = self.pack_of // self._each
    first, second = np.flatnonzero(device_of == high), np.flatnonzero(device_of == low)
    # Rows: items of the costlier device. Columns: those of the other, then, for each of its
    # packs, the space in it.
    packs = np.arange(low * self._each, (low + 1) * self._each)
    partners = np.append(second, np.full(packs.size, self.pack_of.size))
    into = np.append(self.pack_of[second], packs)
    values = np.append(values, 0.0)
    tries = 1 if self._admit is None else _TRIES
    found: list[tuple[float, int, int]] = []
    size = max(_PAIRS // partners.size, 1)
    for start in range(0, first.size, size):
      some = first[start : start + size]
      moved = values[some][:, None] - values[partners]
      fits = self._fits(some, partners, into)
      if ceiling is not None:
        fits &= self._below(ceiling, some, partners, high, low)
      gain = np.where(fits, gap / 2 - np.abs(moved - gap / 2), 0)
      best = gain.argpartition(-tries, axis=None)[-tries:] if gain.size > tries else None
      for index in [gain.argmax()] if tries == 1 or best is None else best:
        row, column = np.unravel_index(index, gain.shape)
        if gain[row, column] > _LEAST * gap:
          found.append((float(gain[row, column]), int(some[row]), int(column)))
    # Of equal gains the first, so that the result does not depend on `_PAIRS`.
    for _, a, column in sorted(found, key=lambda x: (-x[0], x[1], x[2]))[:tries]:
      if self._swap(a, int(partners[column]), int(into[column]), high, low):
        return True
    return False

  def _fits(self, some, partners, into) -> np.ndarray:
    """bool[some, partners]; whether both packs hold what they get."""
    fits = np.ones((some.size, partners.size), bool)
    for sizes, space in zip(self._sizes.T, self._space.T, strict=True):
      longer = sizes[some][:, None] - sizes[partners]
      fits &= (longer <= space[into]) & (-longer <= space[self.pack_of[some]][:, None])
    return fits

  def _below(self, ceiling: Ceiling, some, partners, high: int, low: int) -> np.ndarray:
    """bool[some, partners]; whether both devices stay below the ceiling."""
    sums = self.of_devices(ceiling.values)
    values = np.append(ceiling.values, 0.0)
    moved = values[some][:, None] - values[partners]
    return (sums[low] + moved <= ceiling.most) & (sums[high] - moved <= ceiling.most)

  def _swap(self, a: int, b: int, there: int, high: int, low: int) -> bool:
    """Puts item `a` into pack `there`, and item `b` into the pack that `a` leaves."""
    here = int(self.pack_of[a])
    pack_of = self.pack_of.copy()
    pack_of[a] = there
    if b < pack_of.size:
      pack_of[b] = here
    if self._admit is not None and not self._admit(pack_of // self._each, high, low):
      return False
    more = self._sizes[a] - self._sizes[b]
    self._space[here] += more
    self._space[there] -= more
    self.pack_of = pack_of
    return True
