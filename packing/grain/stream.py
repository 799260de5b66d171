"""A `grain.IterDataset`, packed while it is read."""

from __future__ import annotations

from typing import Any

import grain
import numpy as np

from packing.errors import InputError
from packing.online import StreamPacker

_FIELDS = {"parent", "packer", "ended"}


class PackedIterDataset(grain.IterDataset):
  """Packs the examples of another dataset into rows as they arrive.

  Elements are like those of `PackedMapDataset`, with M = `max_sequences_per_pack`. Each
  example appears in exactly one row. The end of the stream closes all open packs.

  The state of the iterator holds the state of the stream and the examples of open packs, in
  a form that JSON can store. It resumes after any row, without reading the stream again.

  Args:
    parent: examples with `input_ids`, other lists with a number for each token, and single
      values.
    row_length: S, in tokens; a longer example is an error.
    max_sequences_per_pack: M; needed if examples have single values.
    options: options of `packing.OnlinePacker`, such as `open_packs` and `look_ahead`.

  Raises:
    packing.InputError: an option is out of range, or the parent is of another kind.

  Example:
    >>> examples = [{"input_ids": [n] * n, "label": n % 3} for n in (5, 6, 3, 2, 8)]
    >>> stream = grain.MapDataset.source(examples).to_iter_dataset()
    >>> options = {"row_length": 8, "max_sequences_per_pack": 3, "open_packs": 2}
    >>> rows = iter(PackedIterDataset(stream, **options, look_ahead=0))
    >>> next(rows)["labels"].tolist()
    [2, 0, -100]
    >>> state = rows.get_state()
    >>> next(rows)["input_ids"].tolist()
    [6, 6, 6, 6, 6, 6, 2, 2]
    >>> rows.set_state(state)
    >>> next(rows)["input_ids"].tolist()
    [6, 6, 6, 6, 6, 6, 2, 2]
  """

  def __init__(
    self,
    parent: grain.IterDataset,
    *,
    row_length: int,
    max_sequences_per_pack: int | None = None,
    **options: Any,
  ):
    if not isinstance(parent, grain.IterDataset):
      raise InputError(
        f"parent is a {type(parent).__name__}; expected the result of to_iter_dataset()."
      )
    super().__init__(parent)
    self._options = {
      "row_length": row_length,
      "max_sequences_per_pack": max_sequences_per_pack,
      **options,
    }
    StreamPacker(**self._options)  # reports wrong options now, not when iterating

  def __iter__(self) -> grain.DatasetIterator:
    return _PackedIterator(self._parent.__iter__(), self._options)


class _PackedIterator(grain.DatasetIterator):
  def __init__(self, parent: grain.DatasetIterator, options: dict[str, Any]):
    super().__init__(parent)
    self._ended = False
    self._packer = StreamPacker(**options)

  def __next__(self) -> dict[str, np.ndarray]:
    while (row := next(self._packer.take_rows(), None)) is None:
      if self._ended:
        raise StopIteration
      try:
        example = next(self._parent)
      except StopIteration:
        self._ended = True
        self._packer.flush()
      else:  # arrays take little space in a state
        self._packer.add({name: np.asarray(x) for name, x in example.items()})
    return row

  def get_state(self) -> dict[str, Any]:
    return {
      "parent": self._parent.get_state(),
      "packer": self._packer.state(),
      "ended": self._ended,
    }

  def set_state(self, state: dict[str, Any]):
    if not isinstance(state, dict) or set(state) != _FIELDS:
      raise InputError("Expected a state of PackedIterDataset, found another.")
    self._packer.restore(state["packer"])
    self._parent.set_state(state["parent"])
    self._ended = state["ended"]
