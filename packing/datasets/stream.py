"""A `datasets.IterableDataset`, packed while it is read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import datasets
import numpy as np
from datasets import iterable_dataset

from packing.errors import InputError
from packing.online.stream import StreamPacker
from packing.row import LABELS

_NUMBERS = (datasets.Value, datasets.ClassLabel)  # features of single numbers


def pack_iterable_dataset(
  dataset: datasets.IterableDataset,
  *,
  row_length: int,
  max_sequences_per_pack: int | None = None,
  **options: Any,
) -> datasets.IterableDataset:
  """Packs a stream into rows while it is read.

  Rows are like those of `pack_dataset`, with M = `max_sequences_per_pack`. Each example
  appears in exactly one row. The end of the stream closes all open packs.

  The result has the shards of the stream, so each node and worker reads and packs its own,
  and `set_epoch` reshuffles a stream that was shuffled. `state_dict` holds the position of
  the stream and the examples of open packs, in a form that JSON can store;
  `load_state_dict` resumes exactly, without packing again, if `set_epoch` has set the epoch
  of the state; another one is an error. (The state does not include a shuffle buffer:
  `datasets` drops its examples on resuming. A stream that is derived from this one, such as
  by `map` or `shard`, is one of `datasets`, which ignores a state of another epoch.)

  Args:
    dataset: a stream with `input_ids` and other columns of numbers, but no text.
    row_length: S, in tokens; a longer example is an error.
    max_sequences_per_pack: M; needed if columns have single numbers.
    options: options of `packing.OnlinePacker`, such as `open_packs` and `look_ahead`.

  Raises:
    packing.InputError: an option is out of range, or the dataset is of another kind.

  Example:
    >>> columns = {"input_ids": [[5] * 5, [6] * 6, [3] * 3], "label": [1, 0, 2]}
    >>> stream = datasets.Dataset.from_dict(columns).to_iterable_dataset()
    >>> rows = pack_iterable_dataset(stream, row_length=8, max_sequences_per_pack=2)
    >>> [(row["input_ids"].tolist(), row["labels"].tolist()) for row in rows]
    [([5, 5, 5, 5, 5, 3, 3, 3], [1, 2]), ([6, 6, 6, 6, 6, 6, 0, 0], [0, -100])]
  """
  if not isinstance(dataset, datasets.IterableDataset):
    raise InputError(
      f"dataset is a {type(dataset).__name__}; expected a stream. Or use pack_dataset."
    )
  options |= {"row_length": row_length, "max_sequences_per_pack": max_sequences_per_pack}
  StreamPacker(**options)  # reports wrong options now, not when iterating
  if any(isinstance(x, _NUMBERS) for x in (dataset.features or {}).values()):
    dataset = dataset.map(_same, features=dataset.features)  # casts, as cast_column asks
  features = _features(dataset.features, row_length, max_sequences_per_pack)
  return _PackedStream(
    _Rows(dataset._ex_iterable, options, features),
    info=datasets.DatasetInfo(features=features),
    split=dataset.split,
    distributed=dataset._distributed,
  )


class _PackedStream(datasets.IterableDataset):
  """A stream that refuses a state of another epoch, which `datasets` would ignore."""

  _loaded: int | None = None  # the epoch of a state that was not used yet

  def load_state_dict(self, state_dict: dict) -> None:
    epoch = state_dict.get("epoch") if isinstance(state_dict, dict) else None
    if not isinstance(epoch, int) or _kinds(state_dict) != _kinds(self.state_dict()):
      raise InputError("Expected a state of these packed rows, found another.")
    super().load_state_dict(state_dict)
    self._loaded = epoch

  def __iter__(self) -> Iterator[Any]:
    if self._loaded is not None and self._loaded != self.epoch:
      raise InputError(
        f"The state is of epoch {self._loaded}. Call set_epoch({self._loaded}) first."
      )
    self._loaded = None
    return super().__iter__()


def _kinds(state: Any) -> list[Any]:
  """The types of the iterables in a state, from the outermost down to the rows."""
  kinds = []
  while isinstance(state, dict) and "packer" not in state:
    state = state.get("examples_iterable")
    kinds.append(state.get("type") if isinstance(state, dict) else None)
  return kinds


def _same(example: dict[str, Any]) -> dict[str, Any]:
  return example


def _features(
  given: datasets.Features | None, row_length: int, width: int | None
) -> datasets.Features | None:
  """The features of rows; None if those of examples are unknown."""
  if given is None:
    return None

  def values(dtype: str, length: int | None) -> datasets.List:
    return datasets.List(datasets.Value(dtype), length=length or -1)

  features = {name: values("int32", row_length) for name in ("segment_ids", "position_ids")}
  for name, feature in given.items():
    if not isinstance(feature, _NUMBERS):
      features[name] = values("int32", row_length)
      continue
    features |= {
      "labels" if name in LABELS else name: values(
        "float32" if feature.dtype.startswith("float") else "int32", width
      ),
      "sequence_starts": values("int32", width),
      "sequence_mask": values("bool", width),
    }
  return datasets.Features(features)


class _State:
  """Stands for the packer in the live state, which `datasets` copies deeply for users."""

  def __init__(self, packer: StreamPacker):
    self._packer = packer

  def __deepcopy__(self, memo) -> dict[str, Any]:
    return self._packer.state()


class _Rows(iterable_dataset._BaseExamplesIterable):
  """The rows of a stream, with the methods that `datasets` needs of its iterables."""

  is_typed = True  # rows have their types already

  def __init__(self, ex_iterable, options: dict[str, Any], features):
    super().__init__()
    self.ex_iterable, self._options, self._features = ex_iterable, options, features

  @property
  def features(self) -> datasets.Features | None:
    return self._features

  @property
  def num_shards(self) -> int:
    return self.ex_iterable.num_shards

  def _over(self, ex_iterable) -> _Rows:
    return _Rows(ex_iterable, self._options, self._features)

  def shuffle_data_sources(self, generator) -> _Rows:
    return self._over(self.ex_iterable.shuffle_data_sources(generator))

  def shard_data_sources(self, num_shards, index, contiguous=True) -> _Rows:
    ours = self.ex_iterable.shard_data_sources(num_shards, index, contiguous=contiguous)
    return self._over(ours)

  def reshard_data_sources(self) -> _Rows:
    return self._over(self.ex_iterable.reshard_data_sources())

  def _init_state_dict(self) -> dict[str, Any]:
    self._state_dict = {
      "examples_iterable": self.ex_iterable._init_state_dict(),
      "packer": None,
      "type": type(self).__name__,
    }
    return self._state_dict

  def __iter__(self) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    packer, keys = StreamPacker(**self._options), itertools.count()
    if self._state_dict is not None:
      if self._state_dict["packer"] is not None:
        packer.restore(self._state_dict["packer"])
      self._state_dict["packer"] = _State(packer)
    for _, example in self.ex_iterable:
      packer.add({name: np.asarray(x) for name, x in example.items()})
      for row in packer.take_rows():
        yield next(keys), row
    packer.flush()
    for row in packer.take_rows():
      yield next(keys), row
