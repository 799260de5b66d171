"""How the proofs see a model: its outputs, and which sequence owns each item of them.

A model is a function from a packed batch to an array with a value for each token,
[B, S, ...], or to several by name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

Arrays = Mapping[str, Any]
PADDING = 0
LARGEST = 1e3  # larger numbers come from masks and are ignored in the scale
# The largest relative difference that rounding may cause, by dtype.
TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 3e-2, "float16": 4e-3}


class Place(NamedTuple):
  """A sequence of a batch, or with `number` 0 the padding of a row."""

  row: int
  number: int

  def __str__(self) -> str:
    what = "the padding" if self.number == PADDING else f"sequence {self.number}"
    return f"{what} of row {self.row}"


def owners_of_tokens(name: str, output: Any, batch: Arrays) -> np.ndarray:
  """int[B, S]: the number of the sequence that each token belongs to, 0 for padding."""
  return np.asarray(batch["segment_ids"])


class Probe(NamedTuple):
  """A model, as the proofs see it.

  Attributes:
    apply: params and a batch -> outputs by name, in the order of computation.
    params: the parameters to differentiate with respect to: a tree of JAX arrays, or a dict
      or list of PyTorch tensors; None if the function takes only a batch.
    item_owners: name, output and batch -> int[B, K], the number of the sequence that each
      item belongs to, 0 for none.
    embed: a batch -> its `input_embeddings`, for a model that takes token ids or these.
    methods: the methods of `find_leaks`; None for all that the function supports.
    has_derivative: whether the output of this name depends on embeddings smoothly.
    is_of_tokens: whether the output of this name has a value for each token.
  """

  apply: Callable[[Any, Arrays], dict[str, Any]]
  params: Any = None
  item_owners: Callable[[str, Any, Arrays], np.ndarray] = owners_of_tokens
  embed: Callable[[Arrays], Any] | None = None
  methods: tuple[str, ...] | None = None
  has_derivative: Callable[[str], bool] = lambda name: True
  is_of_tokens: Callable[[str], bool] = lambda name: True

  def owners(self, name: str, output: Any, batch: Arrays) -> np.ndarray:
    """The `item_owners` of an output, after checking that its shape is theirs.

    Raises:
      ValueError: the output has another shape.
    """
    owners = self.item_owners(name, output, batch)
    shape = tuple(getattr(output, "shape", ()))
    if shape[:2] != owners.shape:
      raise ValueError(
        f"Output {name!r} has shape {shape}; expected one that begins with {owners.shape}."
      )
    return owners


@functools.singledispatch
def make_probe(model: Callable[..., Any], params: Any = None) -> Probe:
  """The probe of a function of a batch, or of params and a batch; other types register."""
  if params is None:
    return Probe(lambda _, batch: named(model(batch)))
  return Probe(lambda *args: named(model(*args)), params)


def named(outputs: Any) -> dict[str, Any]:
  """The outputs by name, in the order of computation."""
  if isinstance(outputs, tuple | list):
    outputs = {f"output {number}": output for number, output in enumerate(outputs)}
  elif not isinstance(outputs, Mapping):
    outputs = {"output": outputs}
  if not outputs:
    raise ValueError("Expected at least one output of the model, found none.")
  return dict(outputs)


def as_array(name: str, output: Any) -> np.ndarray:
  """An output of NumPy, JAX or PyTorch as a NumPy array; PyTorch's bfloat16 is widened.

  Raises:
    ValueError: the output cannot be converted to an array of numbers.
  """
  if hasattr(output, "detach"):
    output = output.detach().cpu()
    if dtype_name(output) == "bfloat16":
      output = output.float()
  try:
    array = np.asarray(output)
  except Exception as error:  # such as a tensor on a device
    raise ValueError(
      f"Output {name!r} is a {type(output).__name__}; expected a NumPy array: {error}"
    ) from error
  if array.dtype == object:
    raise ValueError(f"Output {name!r} is a {type(output).__name__}; expected an array.")
  return array


def dtype_name(output: Any) -> str:
  """The name of a dtype of NumPy, JAX or PyTorch, such as float32."""
  return str(getattr(output, "dtype", "")).removeprefix("torch.")


def is_floating(output: Any) -> bool:
  """Whether an output has a floating dtype, bfloat16 included."""
  return dtype_name(output).startswith(("float", "bfloat"))


def run_arrays(probe: Probe, batch: Arrays) -> dict[str, np.ndarray]:
  """The outputs as NumPy arrays."""
  outputs = probe.apply(probe.params, batch)
  return {name: as_array(name, x) for name, x in outputs.items()}


def places(batch: Arrays, *, padding: bool = False) -> list[Place]:
  """The sequences of a batch, optionally also the padding of each row."""
  return [
    Place(row, int(number))
    for row, ids in enumerate(np.asarray(batch["segment_ids"]))
    for number in np.unique(ids)
    if number != PADDING or padding
  ]


def items_of(place: Place, owners: np.ndarray) -> np.ndarray:
  """bool[B, K]: which items belong to a place."""
  rows = np.arange(len(owners))[:, None]
  return (rows == place.row) & (owners == place.number)
