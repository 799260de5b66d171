"""The packs of a plan over a dataset with random access."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch.utils.data import Dataset

import packing
from packing.epochs import PlannedPacks
from packing.errors import check_integer


class PackedDataset(Dataset):
  """A map-style dataset whose items are packs: lists of examples that share a row.

  Use it with `PackedCollator`. Samplers shuffle the packs, and `DistributedSampler` deals
  them to ranks. `set_epoch` makes a new random choice of which sequences share a pack, also
  in persistent workers. The packs are computed when they are read; what all workers share
  is a temporary file of 4 bytes a sequence (8 above 2^32 sequences). Up to 2^20 sequences,
  each process computes all packs of an epoch at its first read, in 8 bytes a sequence.

  Args:
    dataset: gives an example for each number, such as a list or a Hugging Face dataset.
    plan: a plan for exactly these lengths.
    lengths: int[N]; tokens of each example. Without it, all examples are read once.
    seed: determines the choice, together with the epoch.

  Raises:
    packing.InputError: the plan is for other lengths.

  Example:
    >>> examples = [{"input_ids": [1] * n} for n in (4, 2, 3, 2)]
    >>> dataset = PackedDataset(examples, packing.pack([4, 2, 3, 2], max_sequence_length=6))
    >>> sorted(sorted(len(x["input_ids"]) for x in pack) for pack in dataset)
    [[2, 3], [2, 4]]
  """

  def __init__(
    self, dataset: Any, plan: packing.Plan, *, lengths: Any = None, seed: int = 0
  ):
    self._packs = PlannedPacks(dataset, plan, lengths=lengths, seed=seed, shared=True)
    # In shared memory, so that workers see the epoch that the main process sets.
    self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()

  def set_epoch(self, epoch: int):
    """Draws other packs; to be called before the loader begins the epoch.

    A loader prepared by accelerate sets its own count from 0 when it begins. So call
    `set_epoch` of that loader, too; docs/how_to_pack.md says more.
    """
    self._epoch[0] = check_integer("epoch", epoch, at_least=0)

  def with_own_epoch(self) -> Self:
    """A copy whose epoch is 0, and does not change when that of this dataset is set."""
    other = copy.copy(self)
    other._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()
    return other

  @property
  def epoch(self) -> int:
    """The epoch that was set last."""
    return int(self._epoch)

  @property
  def plan(self) -> packing.Plan:
    """The plan of all epochs."""
    return self._packs.plan

  @property
  def assignment(self) -> packing.Assignment:
    """Which examples share a pack in this epoch."""
    return self._packs.assignment(self.epoch)

  def __len__(self) -> int:
    return self._packs.plan.num_packs

  def __getitem__(self, number: int) -> list[Any]:
    return self.__getitems__([number])[0]

  def __getitems__(self, numbers: Sequence[int]) -> list[list[Any]]:
    return self._packs.read(self.epoch, numbers)
