"""Our models against Hugging Face's, with weights that went through `model.hf`."""

import dataclasses
import functools

import flax.nnx as nnx
import jax
import numpy as np
import pytest

from model import MODELS, Bert, hf, losses
from model.weights import resize_vocabulary
from tests import packs

pytest.importorskip("torch", reason="the extra `reference` is not installed")
pytest.importorskip("transformers", reason="the extra `reference` is not installed")

from tests.model import reference

ABSOLUTE, RELATIVE = 1e-4, 1e-5


@functools.cache
def encoder(config):
  """The last hidden state; all heads of a size share it, and so its compilation."""
  graphdef = nnx.graphdef(nnx.eval_shape(lambda: Bert(config, rngs=nnx.Rngs(0))))

  @jax.jit
  def encode(params, batch):
    return list(nnx.merge(graphdef, params).hidden_states(batch).values())[-1]

  return encode


def graphdef_of(config, head):
  return nnx.graphdef(nnx.eval_shape(lambda: MODELS[head](config, rngs=nnx.Rngs(0))))


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


def imported(model, folder):
  model.save_pretrained(folder)
  config, params = hf.import_bert(folder)
  return config, params, hf.head_of(params)


def assert_close(ours, theirs, mask):
  """Both tolerances, where the reference computes anything."""
  ours, theirs = np.asarray(ours)[mask], theirs[mask]
  difference = np.abs(ours - theirs).max()
  assert difference <= ABSOLUTE
  assert difference <= RELATIVE * np.abs(theirs).max()


def compare(model, batch, config, params, head):
  outputs, per_sequence = run(config, head, params, batch)
  expected, expected_loss = reference.run(model, batch)
  assert outputs.keys() == expected.keys()
  used = {
    "mlm_logits": batch["mlm_segment_ids"] > 0,
    "token_logits": batch["segment_ids"] > 0,
    "answer_logits": batch["segment_ids"] > 0,
  }
  for name, theirs in expected.items():
    ours = outputs[name][..., : theirs.shape[-1]]
    assert_close(ours, theirs, used.get(name, batch["sequence_mask"]))
  heads = [name.removesuffix("_logits") for name in outputs]
  loss = sum(np.asarray(per_sequence[f"{head}_loss"][0]) for head in heads)
  assert_close(loss, expected_loss, batch["sequence_mask"])


@pytest.mark.parametrize("size", reference.SIZES)
@pytest.mark.parametrize("architecture", reference.HEADS)
def test_a_packed_row_gives_what_the_reference_gives_for_each_sequence_alone(
  tmp_path, architecture, size
):
  fields = reference.SIZES[size] | reference.HEADS[architecture]
  model = reference.make(architecture, **fields)
  config, params, head = imported(model, tmp_path)
  assert config.next_sentence == (architecture != "BertForMaskedLM")
  compare(model, reference.make_batch(), config, params, head)


def test_regression_and_a_padded_vocabulary(tmp_path):
  size = reference.SIZES["odd"]
  model = reference.make("BertForSequenceClassification", num_labels=1, **size)
  config, params, head = imported(model, tmp_path / "regression")
  compare(model, reference.make_batch(regression=True), config, params, head)

  model = reference.make("BertForPreTraining", **size)
  config, params, head = imported(model, tmp_path / "padded")
  config, params = resize_vocabulary(config, params, multiple=8)
  assert config.padded_vocab_size == 32
  batch = reference.make_batch()
  compare(model, batch, config, params, head)
  logits = run(config, head, params, batch)[0]["mlm_logits"]
  assert (logits[..., packs.VOCAB_SIZE :] == np.finfo(np.float32).min).all()


def test_gradients_of_a_packed_batch_are_those_of_the_reference(tmp_path):
  model = reference.make("BertForMaskedLM", **reference.SIZES["odd"])
  config, params, head = imported(model, tmp_path)
  graphdef = graphdef_of(config, head)
  batch = reference.make_batch()

  @jax.jit
  def loss_and_gradients(params, batch):
    def loss(params):
      return losses.loss(nnx.merge(graphdef, params)(batch), batch, unit="token")[0]

    return jax.value_and_grad(loss)(params)

  loss, ours = loss_and_gradients(params, batch)
  expected, gradients = reference.gradients(model, batch)
  assert float(loss) == pytest.approx(expected, rel=RELATIVE)

  def theirs(keys, _):
    path = tuple(key.key for key in keys)
    array = gradients[hf.tensor_name(path)]
    return array.T if path[-1] == "kernel" else array

  theirs = jax.tree_util.tree_map_with_path(theirs, ours)
  assert packs.relative_error(ours, theirs) <= RELATIVE
  assert len(jax.tree.leaves(theirs)) == len(gradients)
