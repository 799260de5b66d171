"""Packs a stream of examples, with a state that a checkpoint can hold."""

from __future__ import annotations

import base64
import collections
import copy
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from packing.errors import InputError, check_integer
from packing.online.packer import OnlinePacker, intact
from packing.row import SameTypes, length_of, make_rows

_FIELDS = {"packer", "held", "ready"}


class StreamPacker:
  """An `OnlinePacker` that holds the examples of its open packs.

  Args:
    length: a function from an example to its number of tokens.
    options: options of `OnlinePacker`, such as `row_length` and `open_packs`.

  Raises:
    InputError: an option is out of range.

  Example:
    >>> packer = StreamPacker(row_length=8, open_packs=2, look_ahead=0)
    >>> for n in (5, 6, 3):
    ...   packer.add({"input_ids": [n] * n})
    >>> [[len(x["input_ids"]) for x in pack] for pack in packer.take()]
    [[5, 3]]
    >>> other = StreamPacker(row_length=8, open_packs=2, look_ahead=0)
    >>> other.restore(packer.state())  # a JSON value
    >>> other.flush()
    >>> [[len(x["input_ids"]) for x in pack] for pack in other.take()]
    [[6]]
  """

  def __init__(self, *, length: Callable[[Any], int] = length_of, **options: Any):
    self._length, self._same_types = length, SameTypes()
    self._packer = OnlinePacker(**options)
    self._row_length = options["row_length"]
    width = options.get("max_sequences_per_pack")
    self._width = None if width == "max" else width
    self._held: dict[int, Any] = {}  # examples of waiting sequences and open packs
    self._ready: collections.deque[list[Any]] = collections.deque()  # closed packs

  def add(self, example: Any):
    """Adds one example; packs that it closes can then be taken.

    Raises:
      InputError: the example is empty, longer than a row or padded. It is not added.
    """
    number = self._packer.num_added
    closed = self._packer.add(number, self._length(example))
    self._held[number] = example
    self._close(closed)

  def flush(self):
    """Closes all packs; to be called at the end of a stream."""
    self._close(self._packer.flush())

  def _close(self, packs: list[list]):
    self._ready.extend([self._held.pop(number) for number in pack] for pack in packs)

  def take(self) -> Iterator[list[Any]]:
    """The packs that are ready; each leaves the state before it is yielded."""
    while self._ready:
      yield self._ready.popleft()

  def take_rows(self) -> Iterator[dict[str, np.ndarray]]:
    """The packs that are ready, each as a row of `make_rows`, [S].

    Single values of examples become [M], with M = `max_sequences_per_pack`.

    Raises:
      InputError: examples have single values, but `max_sequences_per_pack` is not set; or
        their types change.

    Example:
      >>> packer = StreamPacker(row_length=6, max_sequences_per_pack=3)
      >>> packer.add({"input_ids": [5, 6], "label": 1})
      >>> packer.flush()
      >>> (row,) = packer.take_rows()
      >>> row["input_ids"].tolist(), row["labels"].tolist()
      ([5, 6, 0, 0, 0, 0], [1, -100, -100])
    """
    for pack in self.take():
      rows = make_rows([pack], self._row_length, max_sequences=self._width)
      if "sequence_mask" in rows and self._width is None:
        raise InputError(
          "Examples have single values, which need places. Pass max_sequences_per_pack."
        )
      yield {name: x[0] for name, x in self._same_types(rows).items()}

  def __copy__(self) -> StreamPacker:
    """A packer that goes on by itself, with the same examples.

    Copying takes a fraction of the time of `state`, which can be called later.
    """
    other = object.__new__(type(self))
    other.__dict__ |= self.__dict__
    other._packer, other._held = copy.copy(self._packer), {**self._held}
    other._ready = collections.deque(self._ready)
    return other

  def state(self) -> dict[str, Any]:
    """The whole state: that of the packer, and the examples that it holds.

    JSON can store the state if it can store the examples; NumPy arrays are encoded.

    Raises:
      InputError: an example has an array of objects.
    """
    return {
      "packer": self._packer.state(),
      "held": [[number, encode(example)] for number, example in self._held.items()],
      "ready": [[encode(example) for example in pack] for pack in self._ready],
    }

  def restore(self, state: Mapping[str, Any]):
    """Continues from the point where `state` was called.

    Raises:
      InputError: the argument is not a state of this class, is damaged, or has other
        options; then nothing changes.
    """
    if not isinstance(state, Mapping) or set(state) != _FIELDS:
      raise InputError("Expected a state of StreamPacker, found another.")
    packer = OnlinePacker.from_state(state["packer"])
    before, now = packer.state(), self._packer.state()
    for name in OnlinePacker.OPTIONS:
      if before[name] != now[name]:
        raise InputError(
          f"{name} is {now[name]}; expected {before[name]}, as in the state."
        )
    with intact():
      held = {number: decode(example) for number, example in state["held"]}
      ready = collections.deque([decode(x) for x in pack] for pack in state["ready"])
      content = itertools.chain(*(content for _, content in before["packs"]))
      lengths = [
        *((name, length) for length, _, name in before["waiting"]),
        *((name, length) for name, length in content),
      ]
      if sorted(name for name, _ in lengths) != sorted(held) or any(
        name != check_integer("A sequence", name, at_least=0, at_most=packer.num_added - 1)
        or self._length(held[name]) != length
        for name, length in lengths
      ):
        raise ValueError("it holds other examples than those of its packs")
      for pack in ready:
        tokens = sum(map(self._length, pack))
        check_integer("A pack", tokens, at_least=1, at_most=self._row_length)
    self._packer, self._held, self._ready = packer, held, ready


def is_hugging_face(stream: Any) -> bool:
  """Whether this is a `datasets.IterableDataset`; imports nothing."""
  datasets = sys.modules.get("datasets")  # which a stream of its kind has imported
  return isinstance(stream, getattr(datasets, "IterableDataset", ()))


def encode(value: Any) -> Any:
  """Turns NumPy arrays, also inside dictionaries and lists, into values for JSON.

  Raises:
    InputError: an array has objects, whose bytes are only their places in memory.
  """
  if isinstance(value, (np.ndarray, np.generic)):
    if value.dtype.hasobject:
      raise InputError(
        f"An example has an array of {value.dtype}; expected numbers or text, which a "
        "state can hold. Give a list instead."
      )
    data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
    return {"array": data, "dtype": value.dtype.str, "shape": list(value.shape)}
  if isinstance(value, dict):
    return {name: encode(x) for name, x in value.items()}
  return [encode(x) for x in value] if isinstance(value, list) else value


def decode(value: Any) -> Any:
  """The inverse of `encode`."""
  if isinstance(value, dict):
    if value.keys() == {"array", "dtype", "shape"}:
      data = base64.b64decode(value["array"])
      array = np.frombuffer(data, np.dtype(value["dtype"])).reshape(value["shape"]).copy()
      return array if value["shape"] else array[()]
    return {name: decode(x) for name, x in value.items()}
  return [decode(x) for x in value] if isinstance(value, list) else value
