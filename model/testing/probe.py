"""How the proofs see this project's models: outputs, and which sequence owns each item."""

from __future__ import annotations

import collections
import functools
from typing import Any

import flax.nnx as nnx
import jax
import numpy as np

from model import losses
from model.blocks import Transformer
from packing.testing.probe import Arrays, Probe, make_probe

_OF_TOKENS = ("token", "answer", "causal")  # heads with logits for every token


@make_probe.register
def _(model: Transformer, params: Any = None) -> Probe:
  """Tests layers, logits, and losses if the batch has labels; by derivatives only."""
  graphdef, state = nnx.split(model, nnx.Param)
  return Probe(
    jax.jit(functools.partial(_run, graphdef)),
    nnx.to_pure_dict(state),
    item_owners=lambda name, _, batch: np.asarray(owners_of(name, batch)),
    embed=model.embeddings.of_tokens,
    methods=("derivative",),
    has_derivative=lambda name: not name.endswith("_accuracy"),  # it is a step function
    is_of_tokens=_is_of_tokens,
  )


def _run(graphdef, params, batch: Arrays) -> dict[str, jax.Array]:
  """The layers, the logits, and each sequence's losses if the batch has labels."""
  model = nnx.merge(graphdef, params)
  hidden = model.hidden_states(batch)
  # Ordered, since JAX sorts a plain dictionary, and the first output that leaks is named.
  outputs = collections.OrderedDict(hidden)
  outputs |= model.heads(list(hidden.values())[-1], batch)
  labels = [x for head in losses.heads_of(outputs) for x in losses.HEADS[head].labels]
  if all(label in batch for label in labels):
    each = losses.per_sequence(outputs, batch)
    outputs |= {name: values for name, (values, _) in each.items()}
  return outputs


def _is_of_tokens(name: str) -> bool:
  head, _, kind = name.rpartition("_")
  return head not in losses.HEADS or (kind == "logits" and head in _OF_TOKENS)


def owners_of(name: str, batch: Arrays) -> jax.Array:
  """int32[B, K]: the number of the sequence that owns each item of an output, or 0."""
  head, _, kind = name.rpartition("_")
  if _is_of_tokens(name):
    return batch["segment_ids"]
  if kind == "logits":
    return losses.HEADS[head].owners(batch)
  return losses.sequence_numbers(batch)
