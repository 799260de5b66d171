"""The packs of a plan as a `datasets.Dataset`."""

from __future__ import annotations

from typing import Any

import datasets
import numpy as np

import packing
from packing.arrow import column_lengths
from packing.epochs import PlannedPacks
from packing.errors import InputError, check_integer

_TABLES = ("arrow", "pandas", "polars")  # formats that give no examples


def pack_dataset(
  dataset: datasets.Dataset,
  plan: packing.Plan,
  *,
  epoch: int = 0,
  lengths: Any = None,
  seed: int = 0,
) -> datasets.Dataset:
  """Packs a dataset into rows; tokens are read only when their row is read.

  A record of the result is a row of `packing.make_rows`: `input_ids`, `segment_ids` and
  `position_ids`, int32[S]; the other columns of lists with a number for each token, [S];
  and the columns of single numbers, [M] with M the plan's packing depth, together with
  `cls_positions` and `sequence_mask`. The result can be shuffled, sharded and read by
  workers like any dataset.

  Args:
    dataset: a dataset with `input_ids` and other columns of numbers, but no text.
    plan: a plan for exactly these lengths.
    epoch: the number of the epoch; in each epoch, other sequences share a pack.
    lengths: int[N]; tokens of each example. Without it, the lengths are counted in the
      column `input_ids`, without reading its tokens.
    seed: determines the assignments, together with the epoch.

  Returns:
    A dataset with one column, the number of the pack, which a transform turns into rows.

  Raises:
    packing.InputError: the plan is for other lengths, the dataset is of another kind, or
      its `input_ids` are not lists of tokens or are padded.

  Example:
    >>> columns = {"input_ids": [[4] * 4, [2] * 2, [3] * 3], "label": [1, 0, 2]}
    >>> plan = packing.pack([4, 2, 3], max_sequence_length=6)
    >>> rows = pack_dataset(datasets.Dataset.from_dict(columns), plan)
    >>> [(row["input_ids"].tolist(), row["labels"].tolist()) for row in rows]
    [([2, 2, 4, 4, 4, 4], [0, 1]), ([3, 3, 3, 0, 0, 0], [2, -100])]
  """
  if not isinstance(dataset, datasets.Dataset):
    raise InputError(
      f"dataset is a {type(dataset).__name__}; expected a Dataset. For a stream, use "
      "packing.torch.PackedIterableDataset; for a DatasetDict, pack each split."
    )
  check_integer("epoch", epoch, at_least=0)
  if lengths is None and "input_ids" in dataset.column_names:
    wanted = "input_ids", "attention_mask", "position_ids"
    names = [x for x in wanted if x in dataset.column_names]
    table = dataset.select_columns(names).with_format("arrow")[:]
    lengths = column_lengths(table, "input_ids", "the dataset")
  if dataset.format["type"] in _TABLES:
    dataset = dataset.with_format(None, columns=dataset.format["columns"])
  packs = PlannedPacks(dataset, plan, lengths=lengths, seed=seed)
  numbers = datasets.Dataset.from_dict({"pack": np.arange(plan.num_packs)})
  return numbers.with_transform(_Rows(packs, epoch))


class _Rows:
  """A transform from numbers of packs to rows; it can be pickled for workers."""

  def __init__(self, packs: PlannedPacks, epoch: int):
    self._packs, self._epoch = packs, epoch

  def __call__(self, batch: dict[str, list]) -> dict[str, np.ndarray]:
    return self._packs.rows(self._epoch, batch["pack"])
