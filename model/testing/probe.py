"""The proofs' view of a model: its outputs, and the sequence that each item belongs to.

A model is a function from a packed batch to arrays of its tokens, [B, S, ...], one or
several by name. The heads of this project's models may give fewer items than tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.nnx as nnx
import jax
import numpy as np

from model import losses
from model.blocks import Transformer

Arrays = Mapping[str, Any]
PADDING = 0
_OF_TOKENS = ("token", "answer", "causal")  # heads with logits for every token


class Place(NamedTuple):
  """A sequence of a batch, or the padding of a row: `number` 0."""

  row: int
  number: int

  def __str__(self) -> str:
    what = "the padding" if self.number == PADDING else f"sequence {self.number}"
    return f"{what} of row {self.row}"


class Probe(NamedTuple):
  """A model as the proofs see it.

  Attributes:
    apply: params and a batch -> outputs by name, in the order of computation.
    params: a tree of arrays; None if the function takes only a batch.
    is_ours: whether it is a model of this project.
  """

  apply: Callable[[Any, Arrays], dict[str, Any]]
  params: Any
  is_ours: bool

  def owners(self, name: str, output: Any, batch: Arrays) -> np.ndarray:
    """int[B, K]: the number of the sequence that each item belongs to, 0 for none."""
    owners = np.asarray(our_owners(name, batch) if self.is_ours else batch["segment_ids"])
    shape = tuple(getattr(output, "shape", ()))
    if shape[:2] != owners.shape:
      raise ValueError(
        f"Expected output {name!r} to have a value for each token, [B, S, ...] = "
        f"[{owners.shape[0]}, {owners.shape[1]}, ...], found {shape}."
      )
    return owners


def make_probe(model: Callable[..., Any], params: Any = None) -> Probe:
  """For a model of this project, a function of a batch, or one of params and a batch."""
  if isinstance(model, Transformer):
    graphdef, state = nnx.split(model, nnx.Param)
    run = functools.partial(_run_ours, graphdef)
    return Probe(run, nnx.to_pure_dict(state), is_ours=True)
  if params is None:
    return Probe(lambda _, batch: _named(model(batch)), None, is_ours=False)
  return Probe(lambda *args: _named(model(*args)), params, is_ours=False)


def as_array(name: str, output: Any) -> np.ndarray:
  """An output as a NumPy array.

  Raises:
    ValueError: it cannot become an array of numbers.
  """
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


def _run_ours(graphdef, params, batch: Arrays) -> dict[str, jax.Array]:
  """Layers, logits, and the losses of each sequence if the batch has labels."""
  model = nnx.merge(graphdef, params)
  outputs = model.hidden_states(batch)
  outputs |= model.heads(list(outputs.values())[-1], batch)
  for name in ("mlm_logits", "causal_logits"):  # without the entries `vocab_multiple` adds
    if name in outputs:
      outputs[name] = outputs[name][..., : model.config.vocab_size]
  labels = [x for head in losses.heads_of(outputs) for x in losses.HEADS[head].labels]
  if all(label in batch for label in labels):
    each = losses.per_sequence(outputs, batch)
    outputs |= {name: values for name, (values, _) in each.items()}
  return outputs


def our_owners(name: str, batch: Arrays) -> jax.Array:
  """int32[B, K]: whose the items of an output of our models are, 0 for none."""
  head, _, kind = name.rpartition("_")
  if head not in losses.HEADS or (kind == "logits" and head in _OF_TOKENS):
    return batch["segment_ids"]
  if kind == "logits":
    return losses.HEADS[head].owners(batch)
  return losses.sequence_numbers(batch)


def _named(outputs: Any) -> dict[str, Any]:
  if isinstance(outputs, tuple | list):
    outputs = {f"output {number}": output for number, output in enumerate(outputs)}
  elif not isinstance(outputs, Mapping):
    outputs = {"output": outputs}
  if not outputs:
    raise ValueError("Expected at least one output of the model, found none.")
  return dict(outputs)
