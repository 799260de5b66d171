"""Which sequences share a pack in each epoch."""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np

import packing
from packing import InputError
from packing.epochs import PerEpoch, assign_epoch
from packing.errors import short_repr

AssignmentMode = Literal["fresh", "fixed"]


class Epochs:
  """The assignments of a plan: a fresh one for each epoch, or one for all.

  The two most recent ones are cached; each takes 8 bytes per sequence and 8 per pack.

  Args:
    plan: made from the lengths.
    lengths: int[num_sequences], in tokens.
    seed: selects the assignments, together with the epoch.
    mode: `fresh`, new neighbours in each epoch; `fixed`, always those of epoch 0.

  Raises:
    InputError: the mode is unknown.
  """

  def __init__(
    self,
    plan: packing.Plan,
    lengths: np.ndarray,
    *,
    seed: int,
    mode: AssignmentMode,
  ):
    if mode not in ("fresh", "fixed"):
      raise InputError(
        f"assignment is {short_repr(mode)}; expected 'fresh', for new neighbours in each "
        "epoch, or 'fixed'."
      )
    self.plan, self.mode = plan, mode
    self._assigned = PerEpoch(functools.partial(assign_epoch, plan, lengths, seed))

  def assignment(self, epoch: int) -> packing.Assignment:
    """Which sequences each pack holds in an epoch, in the plan's order of packs."""
    return self._assigned(0 if self.mode == "fixed" else epoch)

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
