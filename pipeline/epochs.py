"""Which sequences stand in which row, epoch after epoch."""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np

import packing
from packing import InputError

AssignmentMode = Literal["fresh", "fixed"]


class Epochs:
  """The assignments of a plan: a fresh one an epoch, or one for all.

  The two used last are kept, in 8 bytes a sequence and 8 a pack each. A pickle leaves
  them out: they follow from the plan, the lengths and the seed.

  Args:
    plan: made from the lengths.
    lengths: int[num_sequences], in tokens.
    seed: of the assignments.
    mode: `fresh`, other neighbours each epoch; `fixed`, those of epoch 0 always.

  Raises:
    InputError: there is no such mode.
  """

  def __init__(
    self, plan: packing.Plan, lengths: np.ndarray, *, seed: int, mode: AssignmentMode
  ):
    if mode not in ("fresh", "fixed"):
      raise InputError(
        f"assignment is {mode!r}; expected 'fresh', other neighbours each epoch, or "
        "'fixed'."
      )
    self.plan, self.lengths, self.seed, self.mode = plan, lengths, seed, mode
    self._forget()

  def assignment(self, epoch: int) -> packing.Assignment:
    """Which sequence is in which pack in an epoch, in the plan's order of packs."""
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

  def _assign(self, epoch: int) -> packing.Assignment:
    seed = int(np.random.SeedSequence([self.seed, epoch]).generate_state(1)[0])
    return self.plan.assign(self.lengths, seed=seed)

  def _forget(self):
    self._assigned = functools.lru_cache(maxsize=2)(self._assign)

  def __getstate__(self):
    return {name: value for name, value in vars(self).items() if name != "_assigned"}

  def __setstate__(self, state):
    vars(self).update(state)
    self._forget()
