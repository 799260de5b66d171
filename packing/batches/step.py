"""The packs of one training step: the same number for each device, at nearly the same cost.

Fine-tuning and reinforcement learning pack a few hundred sequences at every step, most of
them long. Here the plan has few packs (`fewest`). Then packs and sequences are exchanged
between devices until their costs are as equal as the rows allow.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from packing.assignment import Assignment, Slots, sort_by_length
from packing.batches import Cost, deal
from packing.batches.exchange import Ceiling, Dealt
from packing.batches.fewest import fewest
from packing.batches.groups import Placed
from packing.batches.two_sizes import fewest_of_two, quick
from packing.errors import InputError, as_array, check, check_integer, check_numbers
from packing.histogram import Histogram, check_lengths
from packing.problem import MAX_ROW_LENGTH, Problem

_NEAR = 1e-3  # the share above the bound at which costs are equal enough
# With units, the share above the bound that a device's cost may have. Within it most pairs
# of sequences of about one length can be exchanged.
_NEAR_WITH_UNITS = 5e-3
_TOGETHER = ("pack", "device")

Packs = list[list[int]]


@dataclasses.dataclass(frozen=True)
class StepPacks:
  """The packs of a step.

  Attributes:
    devices: for each device, its packs; for each pack, the indices of its sequences. All
      devices have the same number of packs; one is empty only if its device has fewer
      sequences, or fewer groups that share a pack.
    bounds: for `lengths` alone, and for `also` alone if it is given, a number of packs. No
      step that has the same number on each device can have fewer.
    costs: float64[devices]; the cost of each device's sequences.
    cost_bound: the largest cost of a device cannot be smaller.
    units: float64[devices]; the units of each device. None without `units`.
    units_bound: the most units of a device cannot be fewer. None without `units`.
  """

  devices: list[list[list[int]]]
  bounds: dict[str, int]
  costs: np.ndarray
  cost_bound: float
  units: np.ndarray | None = None
  units_bound: float | None = None

  @property
  def lower_bound(self) -> int:
    """No step that has the same number of packs on each device can have fewer."""
    return max(self.bounds.values())

  @property
  def num_packs(self) -> int:
    """The packs of all devices."""
    return sum(map(len, self.devices))


def pack_step(
  lengths,
  *,
  row_length: int,
  devices: int = 1,
  cost: Cost | None = None,
  groups: Any = None,
  together: str = "pack",
  also: tuple[Any, int] | None = None,
  units: Any = None,
) -> StepPacks:
  """Packs the sequences of one step and deals them to devices.

  Args:
    lengths: int[n]; the lengths in tokens, each from 1 to row_length.
    row_length: tokens of a row.
    devices: the number of devices.
    cost: what a token and a pair of tokens of one sequence cost; padding costs nothing
      here. By default a token costs 1 and a pair nothing.
    groups: int or str[n]; sequences with the same value stay together, such as the pair of
      a preference or the samples of a prompt.
    together: where they stay together: in one "pack", or on one "device".
    also: a second size and what a pack holds of it: int[n], each from 0 to the limit, and
      the limit, such as `(image_tokens, 4096)`.
    units: int or float[n]; what is spread evenly over the devices, too, such as the number
      of targets of each sequence. Costs may then differ by half a percent.

  Returns:
    The packs by device, what was reached, and the bounds.

  Raises:
    InputError: there is no sequence; a length does not fit in a row, or a group in a pack;
      a size exceeds its limit; or an argument is out of range or of another type or length.

  Example:
    >>> step = pack_step([60, 50, 40, 30, 20], row_length=100, devices=2)
    >>> step.devices, step.costs.tolist(), step.lower_bound
    ([[[0, 2]], [[1, 3, 4]]], [100.0, 100.0], 2)
    >>> step = pack_step([60, 50, 40, 30, 20], row_length=100, groups=[0, 1, 1, 0, 2])
    >>> sorted(step.devices[0])  # 0 and 3 share a pack, and 1 and 2
    [[0, 3], [1, 2], [4]]
    >>> images = [90, 0, 60, 60, 0]
    >>> step = pack_step([60, 50, 40, 30, 20], row_length=100, also=(images, 100))
    >>> step.num_packs, step.bounds
    (3, {'lengths': 2, 'also': 3})
  """
  row_length = check_integer("row_length", row_length, at_least=1, at_most=MAX_ROW_LENGTH)
  devices = check_integer("devices", devices, at_least=1)
  lengths = check_lengths(lengths, row_length).astype(np.int64)  # small types overflow
  cost = Cost() if cost is None else cost
  check(isinstance(cost, Cost), "cost", cost, "a packing.Cost, such as Cost(linear=1.0)")
  check(together in _TOGETHER, "together", together, '"pack" or "device"')
  expected = '"pack" without groups, since only groups stay together'
  check(groups is not None or together == "pack", "together", together, expected)
  sizes, limits = lengths[:, None], np.array([row_length])
  if also is not None:
    second, limit = _check_also(also, lengths.size)
    sizes, limits = np.stack([lengths, second], axis=1), np.append(limits, limit)
  group_of = None if groups is None else _check_groups(groups, lengths.size)
  values = {"costs": cost.linear * lengths + cost.quadratic * lengths.astype(float) ** 2}
  if units is not None:
    units = check_numbers("units", units, axes=1)
    _check_size("units", units.size, lengths.size)
    values["units"] = units.astype(float)
  if group_of is None or together == "pack":
    of_item = np.arange(lengths.size) if group_of is None else group_of
    return _in_packs(sizes, limits, of_item, values, devices, groups)
  return _on_devices(sizes, limits, group_of, values, devices)


def _check_size(name: str, found: int, expected: int):
  if found != expected:
    raise InputError(
      f"{name} has {found} values and lengths {expected}. Give one for each sequence."
    )


def _check_also(also, number: int) -> tuple[np.ndarray, int]:
  """The second size of each sequence and its limit."""
  if not isinstance(also, tuple | list) or len(also) != 2:
    raise InputError(
      f"also is {type(also).__name__}; expected the sizes and their limit in a pack, such "
      "as also=(image_tokens, 4096)."
    )
  limit = check_integer("The limit in also", also[1], at_least=1, at_most=MAX_ROW_LENGTH)
  sizes = as_array(also[0])
  if sizes.ndim != 1 or sizes.dtype.kind not in "iu":
    raise InputError(
      f"The sizes in also have shape {sizes.shape} of {sizes.dtype}; expected a vector of "
      "integers, one for each sequence."
    )
  _check_size("also", sizes.size, number)
  wrong = np.flatnonzero((sizes < 0) | (sizes > limit))
  if wrong.size:
    raise InputError(
      f"The size of sequence {wrong[0]} in also is {sizes[wrong[0]]}; expected 0 to the "
      f"limit, {limit}. Leave the sequence out, or raise the limit."
    )
  return sizes.astype(np.int64), limit


def _check_groups(groups, number: int) -> np.ndarray:
  """int64[n]; the group of each sequence, numbered from 0."""
  array = as_array(groups)
  if array.ndim != 1 or array.dtype.kind not in "iuU":
    raise InputError(
      f"groups have shape {array.shape} of {array.dtype}; expected a vector of integers or "
      "strings, one for each sequence."
    )
  _check_size("groups", array.size, number)
  return np.unique(array, return_inverse=True)[1].astype(np.int64)


def _sum_by(of_item: np.ndarray, values: np.ndarray) -> np.ndarray:
  """The sums of each item's rows of values."""
  sums = np.zeros((int(of_item.max()) + 1, *values.shape[1:]), values.dtype)
  np.add.at(sums, of_item, values)
  return sums


def _problem(sizes: np.ndarray, limit: int) -> Problem:
  """One size alone; items of which nothing counts are left out."""
  return Problem(np.bincount(sizes, minlength=limit + 1)[1:], limit, limit)


def _bound(sizes: np.ndarray, limit: int) -> int:
  """Packs that items of int64[m] need at least."""
  return _problem(sizes, limit).simple_bound if sizes.any() else 1


def _bounds(sizes: np.ndarray, limits: np.ndarray) -> list[int]:
  """Packs that items need at least, for each of their sizes."""
  return [_bound(own, int(limit)) for own, limit in zip(sizes.T, limits, strict=True)]


def _fewest_of_one(sizes: np.ndarray, limit: int) -> np.ndarray:
  """int64[m]; a plan for items of at least 1."""
  histogram = Histogram.from_lengths(sizes, max_sequence_length=limit)
  best = fewest(_problem(sizes, limit))
  counts = np.array([count for count, _ in best.packs])
  strategies = [strategy for _, strategy in best.packs]
  pack_of = np.empty(sizes.size, np.int64)
  slots = Slots(histogram, strategies, counts)
  for number, ids in enumerate(Assignment(slots, sort_by_length(sizes), seed=0)):
    pack_of[ids] = number
  return pack_of


def _fewest(sizes: np.ndarray, limits: np.ndarray) -> np.ndarray:
  """int64[m]; a plan for items of one size or two."""
  if limits.size == 1:
    return _fewest_of_one(sizes[:, 0], int(limits[0]))
  bounds = _bounds(sizes, limits)
  return fewest_of_two(
    sizes,
    limits,
    bound=max(bounds),
    of_one=_fewest_of_one,
    scarcer=int(np.argmax(bounds)),
  )


def _rounded(bounds: list[int], devices: int) -> dict[str, int]:
  """Bounds of the packs of all devices, from bounds of the packs of one."""
  return {name: n * devices for name, n in zip(("lengths", "also"), bounds, strict=False)}


def _in_packs(sizes, limits, of_item, values, devices: int, groups) -> StepPacks:
  """Packs items, each of which is a sequence or a group that stays in one pack."""
  totals = _sum_by(of_item, sizes)
  names = "tokens", "of the second size (also)"
  for what, own, limit in zip(names, totals.T, limits, strict=False):
    if own.max() > limit:
      name = as_array(groups)[of_item.tolist().index(own.argmax())]
      raise InputError(
        f"Group {name} has {own.max()} {what}; a pack holds {limit}. Make the group "
        'smaller, or keep it on one device with together="device".'
      )
  pack_of = _fewest(totals, limits)
  by_item = {name: _sum_by(of_item, own) for name, own in values.items()}
  num_packs = -(-(int(pack_of.max()) + 1) // devices) * devices
  rank = np.empty(num_packs, np.int64)
  order = deal(np.bincount(pack_of, by_item["costs"], num_packs), devices)
  rank[order] = np.arange(num_packs)
  dealt = Dealt(totals, limits, rank[pack_of], num_packs, devices)
  cost_bound, units_bound = _level(dealt, by_item, devices)
  packs: Packs = [[] for _ in range(num_packs)]  # of items
  for item, number in enumerate(dealt.pack_of.tolist()):
    packs[number].append(item)
  members = _members(of_item)
  each = num_packs // devices
  by_device = [_without_empty(packs[d * each : (d + 1) * each]) for d in range(devices)]
  bounds = _bounds(totals, limits)
  return StepPacks(
    devices=[
      [sorted(i for item in pack for i in members[item]) for pack in own]
      for own in by_device
    ],
    bounds=_rounded([-(-bound // devices) for bound in bounds], devices),
    costs=dealt.of_devices(by_item["costs"]),
    cost_bound=cost_bound,
    units=dealt.of_devices(by_item["units"]) if "units" in by_item else None,
    units_bound=units_bound,
  )


def _on_devices(sizes, limits, group_of, values, devices: int) -> StepPacks:
  """Packs sequences whose groups stay on one device."""
  members = _members(group_of)
  by_group = {name: _sum_by(group_of, own) for name, own in values.items()}
  of_groups = np.array([_bounds(sizes[own], limits) for own in members]).max(axis=0)
  used = min(devices, len(members))
  bounds = [
    max(-(-bound // used), int(of_group))
    for bound, of_group in zip(_bounds(sizes, limits), of_groups, strict=True)
  ]

  def pack(own: np.ndarray) -> Packs:
    pack_of = _fewest(sizes[own], limits)
    return [own[where].tolist() for where in _members(pack_of)]

  placed = Placed(
    group_of,
    by_group["costs"],
    (_sum_by(group_of, sizes) / limits).max(axis=1),
    devices=devices,
    pack=pack,
    quick=lambda own: [own[x].tolist() for x in quick(sizes[own], limits)],
    bound=lambda own: max(_bounds(sizes[own], limits)),
    least=max(bounds),
  )
  cost_bound, units_bound = _level(placed, by_group, devices)
  empty: Packs = [[] for _ in range(placed.most)]
  return StepPacks(
    devices=[_without_empty((own + empty)[: placed.most]) for own in placed.packs],
    bounds=_rounded(bounds, devices),
    costs=placed.of_devices(by_group["costs"]),
    cost_bound=cost_bound,
    units=placed.of_devices(by_group["units"]) if "units" in by_group else None,
    units_bound=units_bound,
  )


def _level(
  dealt: Dealt | Placed, values: dict[str, np.ndarray], devices: int
) -> tuple[float, float | None]:
  """Makes costs and then units of the devices equal; returns the bounds of both."""
  bounds = {name: max(x.sum() / devices, x.max()) for name, x in values.items()}
  costs, bound = values["costs"], float(bounds["costs"])
  dealt.level(costs, enough=bound * (1 + _NEAR))
  if "units" not in values:
    return bound, None
  most = max(float(dealt.of_devices(costs).max()), bound * (1 + _NEAR_WITH_UNITS))
  enough = bounds["units"] * (1 + _NEAR)
  dealt.level(values["units"], enough=enough, ceiling=Ceiling(costs, most))
  return bound, float(bounds["units"])


def _members(of_item: np.ndarray) -> Packs:
  """For each item, the indices of its sequences, ascending."""
  order = np.argsort(of_item, kind="stable")
  ends = np.cumsum(np.bincount(of_item))[:-1]
  return [own.tolist() for own in np.split(order, ends)]


def _without_empty(packs: Packs) -> Packs:
  """A device's packs, of which empty ones get an item of the pack that has most."""
  packs = [list(pack) for pack in packs]
  for empty in packs:
    if not empty and len(longest := max(packs, key=len)) > 1:
      empty.append(longest.pop())
  return packs
