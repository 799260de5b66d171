"""The packs of a plan over a dataset with random access."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

import packing


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
    if lengths is None:
      lengths = [len(dataset[i]["input_ids"]) for i in range(len(dataset))]
    self._dataset, self._plan, self._seed = dataset, plan, seed
    self._lengths = np.asarray(lengths)
    # In memory that workers share, so that they see the epoch of the loader.
    self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()
    self._assigned = (0, self._assign(0))

  def set_epoch(self, epoch: int):
    """Draws other packs; called before the loader begins the epoch."""
    self._epoch[0] = epoch

  def _assign(self, epoch: int) -> packing.Assignment:
    (seed,) = np.random.SeedSequence([self._seed, epoch]).generate_state(1)
    return self._plan.assign(self._lengths, seed=int(seed))

  @property
  def assignment(self) -> packing.Assignment:
    """Which examples share a pack in this epoch."""
    epoch = int(self._epoch)
    if self._assigned[0] != epoch:
      self._assigned = (epoch, self._assign(epoch))
    return self._assigned[1]

  def __len__(self) -> int:
    return self._plan.num_packs

  def __getitem__(self, number: int) -> list[Any]:
    return self.__getitems__([number])[0]

  def __getitems__(self, numbers: Sequence[int]) -> list[list[Any]]:
    assignment = self.assignment
    packs = [assignment[number].tolist() for number in numbers]
    flat = [i for pack in packs for i in pack]
    if hasattr(self._dataset, "__getitems__"):  # reads a batch at a time
      examples = iter(self._dataset.__getitems__(flat))
    else:
      examples = (self._dataset[i] for i in flat)
    return [[next(examples) for _ in pack] for pack in packs]
