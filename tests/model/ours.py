"""Our models, compiled, with what comparisons with a reference ask of them."""

import dataclasses
import functools

import flax.nnx as nnx
import jax
import numpy as np

from model import Bert, losses
from model.hf import names as hf_names
from model.models import abstract_model
from model.testing import relative_difference

ABSOLUTE, RELATIVE = 1e-4, 1e-5


@functools.cache
def encoder(config):
  """The last hidden state; all heads of a size share it, and so its compilation."""
  graphdef = nnx.graphdef(nnx.eval_shape(lambda: Bert(config, rngs=nnx.Rngs(0))))

  @jax.jit
  def encode(params, batch):
    return list(nnx.merge(graphdef, params).hidden_states(batch).values())[-1]

  return encode


@functools.cache
def graphdef_of(config, head):
  return abstract_model(config, head)[0]


def run(config, head, params, batch):
  """Logits, and losses of each sequence."""
  graphdef = graphdef_of(config, head)

  @jax.jit
  def read(params, hidden, batch):
    outputs = nnx.merge(graphdef, params).heads(hidden, batch)
    return outputs, losses.per_sequence(outputs, batch)

  encode = encoder(dataclasses.replace(config, next_sentence=True, num_labels=2))
  of_encoder = {name: params[name] for name in ("embeddings", "encoder")}
  return read(params, encode(of_encoder, batch), batch)


def whole(config, head, params, batch):
  """As `run`, where nothing is shared with other heads."""
  graphdef = graphdef_of(config, head)

  @jax.jit
  def run(params, batch):
    outputs = nnx.merge(graphdef, params)(batch)
    return outputs, losses.per_sequence(outputs, batch)

  return run(params, batch)


def loss_and_gradients(config, head, params, batch):
  """Of the loss over tokens."""
  graphdef = graphdef_of(config, head)

  @jax.jit
  def run(params, batch):
    def loss(params):
      return losses.loss(nnx.merge(graphdef, params)(batch), batch, unit="token")[0]

    return jax.value_and_grad(loss)(params)

  loss, gradients = run(params, batch)
  return float(loss), gradients


def assert_close(ours, theirs, mask):
  """Both tolerances, where the reference computes anything."""
  ours, theirs = np.asarray(ours)[mask], theirs[mask]
  difference = np.abs(ours - theirs).max()
  assert difference <= ABSOLUTE
  assert difference <= RELATIVE * np.abs(theirs).max()


def assert_equal(found, reference, batch):
  """What `run` gives, against logits and float[B, M], the loss of each sequence."""
  outputs, per_sequence = found
  expected, expected_loss = reference
  assert outputs.keys() == expected.keys()
  used = {
    "mlm_logits": batch["mlm_segment_ids"] > 0,
    "token_logits": batch["segment_ids"] > 0,
    "answer_logits": batch["segment_ids"] > 0,
    "causal_logits": batch["segment_ids"] > 0,
  }
  for name, theirs in expected.items():
    ours = outputs[name][..., : theirs.shape[-1]]
    assert_close(ours, theirs, used.get(name, batch["sequence_mask"]))
  heads = [name.removesuffix("_logits") for name in outputs]
  loss = sum(np.asarray(per_sequence[f"{head}_loss"][0]) for head in heads)
  assert_close(loss, expected_loss, batch["sequence_mask"])


def assert_equal_gradients(ours, tensors, head="pretraining"):
  """Against gradients by the names of the reference's tensors."""
  theirs = hf_names.from_tensors(tensors.__getitem__, ours, head=head)
  assert relative_difference(ours, theirs) <= RELATIVE
  assert hf_names.shapes_there(ours, head=head).keys() == tensors.keys()
