"""The packs of a plan as a `grain.MapDataset`."""

from __future__ import annotations

from typing import Any

import grain
import numpy as np

import packing
from packing.epochs import PlannedPacks
from packing.errors import check_integer


class PackedMapDataset(grain.MapDataset):
  """The packs of a plan, as rows.

  An element is a row of `packing.make_rows`: `input_ids`, `segment_ids` and `position_ids`,
  int32[S]; the other lists of the examples, [S]; and their single values, [M] with M the
  plan's packing depth, together with `cls_positions` and `sequence_mask`.

  In each epoch of `repeat`, other sequences share a pack. The packs are in the plan's
  order; `shuffle` reorders them. Each example is read as in the source's first epoch, so
  put a `random_map` after this dataset: before it, each epoch would get the same result.

  Args:
    source: gives an example for each number: a list, a `MapDataset` or a Grain data source.
    plan: a plan for exactly these lengths.
    lengths: int[N]; tokens of each example. Without it, all examples are read once.
    seed: determines the assignments, together with the epoch.

  Raises:
    packing.InputError: the plan is for other lengths, or an index is below 0.

  Example:
    >>> examples = [{"input_ids": [n] * n, "label": n % 3} for n in (4, 2, 3, 2)]
    >>> plan = packing.pack([4, 2, 3, 2], max_sequence_length=6)
    >>> rows = PackedMapDataset(examples, plan).repeat(2)
    >>> len(rows), rows[0]["input_ids"].tolist(), rows[0]["labels"].tolist()
    (4, [2, 2, 3, 3, 3, 0], [2, 0])
  """

  def __init__(
    self, source: Any, plan: packing.Plan, *, lengths: Any = None, seed: int = 0
  ):
    super().__init__()
    self._packs = PlannedPacks(source, plan, lengths=lengths, seed=seed)

  def __len__(self) -> int:
    return self._packs.plan.num_packs

  def __getitem__(self, index):
    if isinstance(index, slice):
      return self.slice(index)
    # `repeat` keeps counting past the end, so no index counts from there.
    index = check_integer("The index of a row", index, at_least=0)
    epoch, number = divmod(index, len(self))
    row: dict[str, np.ndarray] = self._packs.rows(epoch, [number])
    return {name: x[0] for name, x in row.items()}
