"""Groups of sequences, each on one device: few packs on each, at nearly equal cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from packing.batches.exchange import Ceiling, Dealt

Packs = list[list[int]]

_TRIES = 3  # exchanges between two devices that are tried to save a pack
_THOROUGH = 8  # times that `pack` is called to save packs, and to make costs equal


class Placed:
  """Groups on devices, and the packs of each device.

  The groups are spread by cost, then by how much of a pack they take, and what needs fewer
  packs on the device with most counts. Then exchanges save packs.

  Args:
    group_of: int64[n]; the group of each sequence, numbered from 0 without gaps.
    costs: float64[G]; the cost of each group.
    shares: float64[G]; how many packs each group fills.
    devices: the number of devices.
    pack: makes few packs of some sequences, given their indices.
    quick: makes packs more quickly, which may be more.
    bound: gives a number of packs that some sequences need at least.
    least: no plan has fewer packs per device than this.

  Attributes:
    device_of: int64[G]; the device of each group.
    packs: for each device its packs of indices of sequences.
  """

  def __init__(
    self,
    group_of: np.ndarray,
    costs: np.ndarray,
    shares: np.ndarray,
    *,
    devices: int,
    pack: Callable[[np.ndarray], Packs],
    quick: Callable[[np.ndarray], Packs],
    bound: Callable[[np.ndarray], int],
    least: int,
  ):
    self._group_of, self._shares, self._devices = group_of, shares, devices
    self._pack, self._quick, self._bound = pack, quick, bound
    self._thorough = _THOROUGH
    best: tuple[int, float] | None = None
    for values in (costs, shares):
      device_of = _spread(values, devices)
      members = [np.flatnonzero(device_of[group_of] == d) for d in range(devices)]
      packs = [quick(own) if own.size else [] for own in members]
      key = max(map(len, packs)), float(np.bincount(device_of, costs, devices).max())
      if best is None or key < best:
        best, self.device_of, self.packs = key, device_of, packs
    for device in range(devices):
      own = np.flatnonzero(self.device_of[group_of] == device)
      if len(self.packs[device]) > max(least, bound(own) if own.size else 0):
        self.packs[device] = min(self.packs[device], pack(own), key=len)
    while self.most > least and self._save(self.most - 1):
      pass
    self._thorough = _THOROUGH  # as often again to make costs equal

  @property
  def most(self) -> int:
    """The packs of the device that has most."""
    return max(map(len, self.packs))

  def of_devices(self, values: np.ndarray) -> np.ndarray:
    """float64[devices]; the sums of the groups' values."""
    return np.bincount(self.device_of, values, self._devices)

  def level(self, values: np.ndarray, *, enough: float, ceiling: Ceiling | None = None):
    """Makes the devices' sums of `values`, float64[G], equal, in as many packs at most."""
    most = self.most

    def admit(device_of: np.ndarray, *two: int) -> bool:
      return self._place(device_of, two, most)

    dealt = _dealt(self.device_of, self._devices, admit)
    dealt.level(values, enough=enough, ceiling=ceiling)

  def _place(self, device_of: np.ndarray, changed: Sequence[int], most: int) -> bool:
    """Moves some groups to other devices if `most` packs suffice on each changed one."""
    members = [np.flatnonzero(device_of[self._group_of] == d) for d in changed]
    if any(own.size and self._bound(own) > most for own in members):
      return False
    packs = []
    for own in members:
      packs.append(self._quick(own) if own.size else [])
      if len(packs[-1]) > most and self._thorough:
        self._thorough -= 1
        packs[-1] = self._pack(own)
      if len(packs[-1]) > most:
        return False
    self.device_of = device_of
    for device, made in zip(changed, packs, strict=True):
      self.packs[device] = made
    return True

  def _save(self, most: int) -> bool:
    """Exchanges groups until no device has more than `most` packs; whether that worked."""
    for high in [d for d, packs in enumerate(self.packs) if len(packs) > most]:
      load = np.bincount(self.device_of, self._shares, self._devices)
      others = [d for d in np.argsort(load, kind="stable") if len(self.packs[d]) <= most]
      if not any(self._relieve(high, int(low), load, most) for low in others):
        return False
    return True

  def _relieve(self, high: int, low: int, load: np.ndarray, most: int) -> bool:
    """Exchanges groups of two devices so that both have at most `most` packs, if it can."""
    first, second = (np.flatnonzero(self.device_of == d) for d in (high, low))
    partners = np.append(second, -1)  # -1 stands for exchanging with nothing
    moved = self._shares[first][:, None] - np.append(self._shares[second], 0)
    fits = (moved > 0) & (load[low] + moved <= most)
    distance = np.where(fits, np.abs(moved - (load[high] - load[low]) / 2), np.inf)
    for index in np.argsort(distance, axis=None, kind="stable")[:_TRIES]:
      row, column = np.unravel_index(index, distance.shape)
      if not fits[row, column]:
        return False
      device_of = self.device_of.copy()
      device_of[first[row]] = low
      if partners[column] >= 0:
        device_of[partners[column]] = high
      if self._place(device_of, (high, low), most):
        return True
    return False


def _dealt(device_of: np.ndarray, devices: int, admit=None) -> Dealt:
  """Groups as items, devices as packs that nothing limits but `admit`."""
  sizes = np.zeros((device_of.size, 0), np.int64)
  return Dealt(sizes, np.zeros(0, np.int64), device_of, devices, devices, admit)


def _spread(values: np.ndarray, devices: int) -> np.ndarray:
  """int64[G]; the largest goes first, to the device that has least; then exchanges."""
  device_of, so_far = np.empty(values.size, np.int64), np.zeros(devices)
  for group in np.argsort(-values, kind="stable").tolist():
    device_of[group] = so_far.argmin()
    so_far[device_of[group]] += values[group]
  dealt = _dealt(device_of, devices)
  dealt.level(values, enough=float(values.sum()) / devices * (1 + 1e-3))
  return dealt.pack_of
