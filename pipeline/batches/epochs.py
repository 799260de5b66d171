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
    mode: `fresh`, new neighbours in each epoch; `fixed`, always those of epoch 0; or an
      assignment for all epochs.

  Raises:
    InputError: the mode is unknown, or the assignment belongs to another plan or to
      other lengths.
  """

  def __init__(
    self,
    plan: packing.Plan,
    lengths: np.ndarray,
    *,
    seed: int,
    mode: AssignmentMode | packing.Assignment,
  ):
    if isinstance(mode, packing.Assignment):
      _check_belongs(mode, plan, lengths)
    elif mode not in ("fresh", "fixed"):
      raise InputError(
        f"assignment is {short_repr(mode)}; expected 'fresh', for new neighbours in each "
        "epoch, 'fixed', or an Assignment of this plan."
      )
    self.plan, self.mode = plan, mode
    self._assigned = PerEpoch(functools.partial(assign_epoch, plan, lengths, seed))

  def assignment(self, epoch: int) -> packing.Assignment:
    """Which sequences each pack holds in an epoch, in the plan's order of packs."""
    if isinstance(self.mode, packing.Assignment):
      return self.mode
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


def _check_belongs(assignment: packing.Assignment, plan: packing.Plan, lengths: np.ndarray):
  """Checks that an assignment belongs to this plan and to sequences of these lengths."""
  ids = assignment.sequence_ids
  depths = np.repeat([len(s) for s in plan.strategies], plan.repeat_counts)
  if not np.array_equal(np.diff(assignment.offsets), depths):
    raise InputError(
      f"The assignment has {assignment.num_packs:,} packs; the plan has "
      f"{plan.num_packs:,}, or other depths. Give the plan that it was made from."
    )
  inside = ids[(ids >= 0) & (ids < lengths.size)]
  once = np.bincount(inside, minlength=lengths.size) == 1
  if ids.size != lengths.size or not once.all():
    raise InputError(
      f"The assignment has {ids.size:,} sequence numbers and the dataset has "
      f"{lengths.size:,} sequences; expected each number once. Assign this dataset."
    )
  planned = np.concatenate(
    [np.tile(s, n) for s, n in zip(plan.strategies, plan.repeat_counts, strict=True)]
  )
  if (wrong := lengths[ids] != planned).any():
    place = int(wrong.argmax())
    raise InputError(
      f"The assignment has sequence {ids[place]} in a slot of {planned[place]} tokens; in "
      f"this dataset it has {lengths[ids[place]]}. Assign this dataset."
    )
