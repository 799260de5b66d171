"""The packs of a plan as a `datasets.Dataset`."""

from __future__ import annotations

from typing import Any

import datasets
import numpy as np
import pyarrow.compute

import packing
from packing.epochs import PlannedPacks
from packing.errors import InputError, check_integer


def pack_dataset(
  dataset: datasets.Dataset,
  plan: packing.Plan,
  *,
  epoch: int = 0,
  lengths: Any = None,
  seed: int = 0,
) -> datasets.Dataset:
  """Packs a dataset into rows; its tokens are read when a row is.

  A record of the result is a row of `packing.make_rows`: `input_ids`, `segment_ids` and
  `position_ids`, int32[S]; columns with lists of as many integers beside them, [S]; columns
  with single numbers, [M] with M the plan's packing depth, with `sequence_starts` and
  `sequence_mask`. It can be shuffled, sharded and read by workers as any dataset.

  Args:
    dataset: with `input_ids` and other columns of numbers, no text.
    plan: of exactly these lengths.
    epoch: in each one, other sequences share a pack.
    lengths: int[N]; tokens of each example. Without it they are those of the column
      `input_ids`, whose tokens are not read.
    seed: of the assignments, with the epoch.

  Returns:
    A dataset with one column, the number of the pack, which a transform turns into rows.

  Raises:
    packing.InputError: the plan is for other lengths, or the dataset of another kind.

  Example:
    >>> columns = {"input_ids": [[4] * 4, [2] * 2, [3] * 3], "label": [1, 0, 2]}
    >>> plan = packing.pack([4, 2, 3], max_sequence_length=6)
    >>> rows = pack_dataset(datasets.Dataset.from_dict(columns), plan)
    >>> [(row["input_ids"].tolist(), row["labels"].tolist()) for row in rows]
    [([2, 2, 4, 4, 4, 4], [0, 1]), ([3, 3, 3, 0, 0, 0], [2, -100])]
  """
  if not isinstance(dataset, datasets.Dataset):
    raise InputError(
      f"dataset is of type {type(dataset).__name__}; expected a datasets.Dataset. For a "
      "stream, use pack_iterable_dataset; of a DatasetDict, pack each split."
    )
  check_integer("epoch", epoch, at_least=0)
  if lengths is None and "input_ids" in dataset.column_names:
    table = dataset.select_columns("input_ids").with_format("arrow")[:]
    lengths = pyarrow.compute.list_value_length(table["input_ids"]).to_numpy()
  packs = PlannedPacks(dataset, plan, lengths=lengths, seed=seed)
  numbers = datasets.Dataset.from_dict({"pack": np.arange(plan.num_packs)})
  return numbers.with_transform(_Rows(packs, epoch))


class _Rows:
  """A transform from numbers of packs to rows; workers can be sent it."""

  def __init__(self, packs: PlannedPacks, epoch: int):
    self._packs, self._epoch = packs, epoch

  def __call__(self, batch: dict[str, list]) -> dict[str, np.ndarray]:
    return self._packs.rows(self._epoch, batch["pack"])
