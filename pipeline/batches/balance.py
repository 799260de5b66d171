"""Which packs share a step, so that no device waits if attention skips foreign tokens."""

from __future__ import annotations

import functools
from typing import Literal, get_args

import numpy as np

import packing
from packing.epochs import LastTwo
from packing.errors import check, check_integer, multiples_near

Balance = Literal["none", "devices"]
BALANCES = get_args(Balance)


class BalancedOrder:
  """The rows of each step, as numbers that continue from epoch to epoch.

  The order depends on the seed, the epoch and the group. The number of devices decides only
  which device gets which rows.

  Args:
    plan: the plan of the packs.
    devices: how many share a step; each gets a block of its rows.
    group: how many packs of similar cost stay together: as many as the run had devices
      when it began.
    batch_size: rows of a step.
    seed: selects the order, which differs from epoch to epoch.

  Raises:
    InputError: the devices or the group do not divide the batch.
  """

  def __init__(
    self, plan: packing.Plan, *, devices: int, group: int, batch_size: int, seed: int
  ):
    for name, number in (("devices", devices), ("group", group)):
      divides = batch_size % check_integer(name, number, at_least=1) == 0
      near = multiples_near(batch_size, number)
      expected = f"a multiple of {name}={number} to balance, such as {near}"
      check(divides, "batch_size", batch_size, expected)
    self._devices, self._batch_size = devices, batch_size
    self._squares, self._ends = plan.squares, np.cumsum(plan.repeat_counts)
    order = functools.partial(_order, plan, batch_size, group, seed)
    self._order = LastTwo(order)

  def __call__(self, step: int) -> np.ndarray:
    """int64[B]; the rows of a step, in blocks by device."""
    number = int(self._ends[-1])
    places = step * self._batch_size + np.arange(self._batch_size)
    epochs, places = np.divmod(places, number)
    rows = np.empty_like(places)
    for epoch in np.unique(epochs).tolist():
      rows[epochs == epoch] = self._order(epoch)[places[epochs == epoch]]
    costs = self._squares[np.searchsorted(self._ends, rows, side="right")]
    return (epochs * number + rows)[packing.deal(costs, self._devices)]


def _order(
  plan: packing.Plan, batch_size: int, group: int, seed: int, epoch: int
) -> np.ndarray:
  return packing.balanced_order(
    np.repeat(plan.squares, plan.repeat_counts),
    batch_size=batch_size,
    group=group,
    first_row=epoch * plan.num_packs,
    rng=np.random.default_rng([seed, epoch]),
  )
