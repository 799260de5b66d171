"""Our models, compiled, with what comparisons with a reference ask of them."""

import functools

import flax.nnx as nnx
import jax
import numpy as np

from model import losses
from model.hf import names as hf_names
from model.models import abstract_model
from model.testing import relative_difference
from model.testing.probe import owners_of

ABSOLUTE, RELATIVE = 1e-4, 1e-5


@functools.cache
def graphdef_of(config, head):
  return abstract_model(config, head)[0]


def run(config, head, params, batch):
  """Logits, and losses of each sequence."""

  @jax.jit
  def run(params, batch):
    outputs = nnx.merge(graphdef_of(config, head), params)(batch)
    return outputs, losses.per_sequence(outputs, batch)

  return run(params, batch)


def outputs(config, head, params, batch):
  """The outputs alone."""
  run = jax.jit(lambda params, batch: nnx.merge(graphdef_of(config, head), params)(batch))
  return run(params, batch)


def loss_and_gradients(config, head, params, batch):
  """Of the loss over tokens."""

  @jax.jit
  @jax.value_and_grad
  def run(params, batch):
    outputs = nnx.merge(graphdef_of(config, head), params)(batch)
    return losses.loss(outputs, batch, unit="token")[0]

  return run(params, batch)


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
  for name, theirs in expected.items():
    real = np.asarray(owners_of(name, batch)) > 0
    assert_close(outputs[name], theirs, real)
  loss = sum(np.asarray(per_sequence[f"{x}_loss"][0]) for x in losses.heads_of(outputs))
  assert_close(loss, expected_loss, batch["sequence_mask"])


def assert_equal_gradients(found, reference, config, head):
  """What `loss_and_gradients` gives, against gradients by the reference's names."""
  (loss, gradients), (expected, tensors) = found, reference
  assert abs(loss - expected) <= RELATIVE * abs(expected)
  kind = hf_names.kind_of(config, head)
  theirs = hf_names.from_tensors(tensors.__getitem__, gradients, kind)
  assert relative_difference(gradients, theirs) <= RELATIVE
  assert hf_names.shapes_there(gradients, kind).keys() == tensors.keys()
