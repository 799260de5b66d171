"""The packs of a plan over a dataset with random access."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

import packing
from packing.epochs import PlannedPacks


class PackedDataset(Dataset):
  """A map-style dataset whose items are packs: lists of examples that share a row.

  It is used with `PackedCollator`. Samplers shuffle packs; `DistributedSampler` deals them
  to ranks. `set_epoch` draws which sequences share a pack anew, also in workers that stay.

  Args:
    dataset: examples by number, such as a list or a dataset of Hugging Face.
    plan: of exactly these lengths.
    lengths: int[N]; tokens of each example. Without it, all examples are read once.
    seed: of the draw, with the epoch.

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
    self._packs = PlannedPacks(dataset, plan, lengths=lengths, seed=seed)
    # In memory that workers share, so that they see the epoch of the loader.
    self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()

  def set_epoch(self, epoch: int):
    """Draws other packs; called before the loader begins the epoch."""
    self._epoch[0] = epoch

  @property
  def assignment(self) -> packing.Assignment:
    """Which examples share a pack in this epoch."""
    return self._packs.assignment(int(self._epoch))

  def __len__(self) -> int:
    return self._packs.plan.num_packs

  def __getitem__(self, number: int) -> list[Any]:
    return self.__getitems__([number])[0]

  def __getitems__(self, numbers: Sequence[int]) -> list[list[Any]]:
    return self._packs.read(int(self._epoch), numbers)
