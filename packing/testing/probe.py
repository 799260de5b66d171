"""The proofs' view of a model: its outputs, and the sequence that each item belongs to.

A model is a function from a packed batch to arrays of its tokens, [B, S, ...], one or
several by name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

Arrays = Mapping[str, Any]
PADDING = 0


class Place(NamedTuple):
  """A sequence of a batch, or the padding of a row: `number` 0."""

  row: int
  number: int

  def __str__(self) -> str:
    what = "the padding" if self.number == PADDING else f"sequence {self.number}"
    return f"{what} of row {self.row}"


def owners_of_tokens(name: str, output: Any, batch: Arrays) -> np.ndarray:
  """int[B, S]: the number of the sequence that each token belongs to, 0 for padding."""
  return np.asarray(batch["segment_ids"])


class Probe(NamedTuple):
  """A model as the proofs see it.

  Attributes:
    apply: params and a batch -> outputs by name, in the order of computation.
    params: what to differentiate by: a tree of arrays of JAX, or a dict or list of tensors
      of PyTorch; None if the function takes only a batch.
    item_owners: name, output and batch -> int[B, K], the number of the sequence that each
      item belongs to, 0 for none.
    embed: token ids -> `input_embeddings`, of a model that takes either.
    methods: of `find_leaks`; None for all that the function allows.
    has_derivative: whether the output of a name can depend on embeddings smoothly.
    is_of_tokens: whether the output of a name has a value for each token.
  """

  apply: Callable[[Any, Arrays], dict[str, Any]]
  params: Any = None
  item_owners: Callable[[str, Any, Arrays], np.ndarray] = owners_of_tokens
  embed: Callable[[Arrays], Any] | None = None
  methods: tuple[str, ...] | None = None
  has_derivative: Callable[[str], bool] = lambda name: True
  is_of_tokens: Callable[[str], bool] = lambda name: True

  def owners(self, name: str, output: Any, batch: Arrays) -> np.ndarray:
    """`item_owners`, if the output has their shape.

    Raises:
      ValueError: it has another.
    """
    owners = self.item_owners(name, output, batch)
    shape = tuple(getattr(output, "shape", ()))
    if shape[:2] != owners.shape:
      raise ValueError(
        f"Expected output {name!r} to have a value for each token, [B, S, ...] = "
        f"[{owners.shape[0]}, {owners.shape[1]}, ...], found {shape}."
      )
    return owners


@functools.singledispatch
def make_probe(model: Callable[..., Any], params: Any = None) -> Probe:
  """For a function of a batch, or one of params and a batch; other kinds can register."""
  if params is None:
    return Probe(lambda _, batch: named(model(batch)))
  return Probe(lambda *args: named(model(*args)), params)


def named(outputs: Any) -> dict[str, Any]:
  """Outputs by name, in the order of computation."""
  if isinstance(outputs, tuple | list):
    outputs = {f"output {number}": output for number, output in enumerate(outputs)}
  elif not isinstance(outputs, Mapping):
    outputs = {"output": outputs}
  if not outputs:
    raise ValueError("Expected at least one output of the model, found none.")
  return dict(outputs)


def as_array(name: str, output: Any) -> np.ndarray:
  """An output, of NumPy, JAX or PyTorch, as a NumPy array; bfloat16 of PyTorch is widened.

  Raises:
    ValueError: it cannot become an array of numbers.
  """
  if hasattr(output, "detach"):
    output = output.detach().cpu()
    if dtype_name(output) == "bfloat16":
      output = output.float()
  try:
    array = np.asarray(output)
  except Exception as error:  # a tensor of another framework, on a device or with a tape
    raise ValueError(
      f"Expected output {name!r} to be an array, found {type(output).__name__}: {error} "
      "Give it as a NumPy array."
    ) from error
  if array.dtype == object:
    raise ValueError(
      f"Expected output {name!r} to be an array, found {type(output).__name__}."
    )
  return array


def dtype_name(output: Any) -> str:
  """Such as float32, of NumPy, JAX or PyTorch."""
  return str(getattr(output, "dtype", "")).removeprefix("torch.")


def is_floating(output: Any) -> bool:
  """Whether an output has a floating type, bfloat16 too."""
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
  """bool[B, K], which items belong to a place."""
  rows = np.arange(len(owners))[:, None]
  return (rows == place.row) & (owners == place.number)
