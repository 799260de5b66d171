"""Which sequences share a pack in each epoch."""

from __future__ import annotations

import functools

import numpy as np

import packing
from packing.epochs import PerEpoch, assign_epoch


class Epochs:
  """The assignments of a plan, another one for each epoch.

  The two most recent ones are cached; each takes 8 bytes per sequence and 8 per pack.

  Args:
    plan: made from the lengths.
    lengths: int[num_sequences], in tokens.
    seed: selects the assignments, together with the epoch.
  """

  def __init__(self, plan: packing.Plan, lengths: np.ndarray, *, seed: int):
    self.plan = plan
    self._assigned = PerEpoch(functools.partial(assign_epoch, plan, lengths, seed))

  def assignment(self, epoch: int) -> packing.Assignment:
    """Which sequences each pack holds in an epoch, in the plan's order of packs."""
    return self._assigned(epoch)

  def sequence_ids(self, epoch: int, packs: np.ndarray) -> np.ndarray:
    """The sequences of some packs.

    Args:
      epoch: from 0.
      packs: int[R]; numbers of packs in the plan's order.

    Returns:
      int64[R, M]; sequence numbers from the left, then -1. M is the packing depth.
    """
    assignment = self.assignment(epoch)
    starts, ends = assignment.offsets[packs], assignment.offsets[packs + 1]
    slots = starts[:, None] + np.arange(self.plan.packing_depth)
    inside = slots < ends[:, None]
    return np.where(inside, assignment.sequence_ids[np.where(inside, slots, 0)], -1)
