"""Packed equals unpacked, and no sequence touches another."""

import functools

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import BertConfig
from model.losses import pretraining_loss, pretraining_per_sequence
from tests import packs

PRECISIONS = [(jnp.float32, 1e-5), (jnp.float64, 1e-12)]


@functools.partial(jax.jit, static_argnums=1)
@functools.partial(jax.value_and_grad, has_aux=True)
def loss_and_gradients(params, graphdef, batch):
  outputs = nnx.merge(graphdef, params)(batch)
  return pretraining_loss(outputs, batch)[0], pretraining_per_sequence(outputs, batch)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_packed_equals_unpacked(dtype, tolerance, seed):
  with jax.enable_x64(dtype == jnp.float64):
    config = packs.small_config(dtype=dtype, param_dtype=dtype)
    packed_def, params = packs.random_params(config, seed)
    unpacked_def, _ = packs.random_params(packs.ordinary(config), seed)
    sequences = packs.random_sequences(seed=seed)
    packed, unpacked = packs.lay_out(sequences), packs.one_a_row(sequences)

    ours = loss_and_gradients(params, packed_def, packed)
    theirs = loss_and_gradients(params, unpacked_def, unpacked)
    (packed_loss, packed_each), packed_grads = ours
    (unpacked_loss, unpacked_each), unpacked_grads = theirs

    assert packs.relative_error(packed_loss, unpacked_loss) < tolerance
    assert packs.relative_error(packed_grads, unpacked_grads) < tolerance
    for name, (values, _) in packed_each.items():
      each, counts = unpacked_each[name]
      assert values.dtype == dtype
      ours = values[packed["sequence_mask"]]
      assert ours.shape == (counts.size,)
      assert packs.relative_error(ours, each[:, 0]) < tolerance, name


@pytest.mark.parametrize("fields", [{"attention_mask": "none"}, {"position_reset": False}])
def test_each_ablation_breaks_the_equality(fields):
  config = packs.small_config()
  unpacked_def, params = packs.random_params(packs.ordinary(config))
  ablated_def, _ = packs.random_params(packs.small_config(**fields))
  sequences = packs.random_sequences()
  packed, unpacked = packs.lay_out(sequences), packs.one_a_row(sequences)

  @functools.partial(jax.jit, static_argnums=0)
  def loss(graphdef, batch):
    return pretraining_loss(nnx.merge(graphdef, params)(batch), batch)[0]

  ours, theirs = loss(ablated_def, packed), loss(unpacked_def, unpacked)
  assert packs.relative_error(ours, theirs) > 1e-4


def influence(config: BertConfig) -> np.ndarray:
  """Largest |d output of sequence i / d embedding of sequence j|, with padding as 0."""
  graphdef, params = packs.random_params(config)
  model = nnx.merge(graphdef, params)
  batch = jax.tree.map(jnp.asarray, packs.lay_out(packs.random_sequences([[5, 4, 3]])))
  embeddings = jax.jit(model.embeddings)(
    batch["input_ids"], batch["token_type_ids"], batch["position_ids"]
  )

  def outputs(embeddings):
    hidden = model.encoder(embeddings, batch["segment_ids"])
    return {"hidden": hidden} | model.heads(hidden, batch)

  jacobian = jax.jit(jax.jacrev(outputs))(embeddings)
  owners = {
    "hidden": batch["segment_ids"][0],
    "mlm_logits": batch["mlm_segment_ids"][0],
    "nsp_logits": jnp.arange(1, packs.MAX_SEQUENCES + 1),
  }
  largest = np.zeros((packs.MAX_SEQUENCES + 1, packs.MAX_SEQUENCES + 1))
  for name, owner in owners.items():
    block = np.abs(jacobian[name][0, :, :, 0]).max((1, 3))  # [outputs, S]
    for i in range(1, packs.MAX_SEQUENCES + 1):
      for j in range(packs.MAX_SEQUENCES + 1):
        part = block[np.asarray(owner == i)][:, np.asarray(batch["segment_ids"][0] == j)]
        largest[i, j] = max(largest[i, j], part.max())
  return largest[1:]


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
def test_no_sequence_touches_another(dtype, tolerance):
  del tolerance  # the influence is exactly zero
  with jax.enable_x64(dtype == jnp.float64):
    largest = influence(packs.small_config(dtype=dtype, param_dtype=dtype))
  own = np.eye(packs.MAX_SEQUENCES, packs.MAX_SEQUENCES + 1, k=1, dtype=bool)
  assert (largest[own] > 0.01).all()
  assert (largest[~own] == 0).all()


def test_without_the_mask_sequences_touch_each_other():
  largest = influence(packs.small_config(attention_mask="none"))
  assert (largest[:, 1:] > 0).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_rows_of_padding_stay_finite(dtype):
  graphdef, params = packs.random_params(packs.small_config(dtype=dtype))
  batch = packs.lay_out([[], []])

  def loss(params):
    outputs = nnx.merge(graphdef, params)(batch)
    total = sum(x.astype(jnp.float32).sum() for x in jax.tree.leaves(outputs))
    return total + pretraining_loss(outputs, batch)[0]

  value, grads = jax.jit(jax.value_and_grad(loss))(params)
  assert np.isfinite(value)
  assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in jax.tree.leaves(grads))


def test_dropout_needs_a_key_and_repeats_with_it():
  config = packs.small_config(dropout_rate=0.5)
  graphdef, params = packs.random_params(config)
  model, batch = nnx.merge(graphdef, params), packs.lay_out(packs.random_sequences())
  logits = jax.jit(lambda key: model(batch, dropout_key=key)["mlm_logits"])
  first, again, other = (logits(jax.random.key(i)) for i in (0, 0, 1))
  np.testing.assert_array_equal(first, again)
  assert (first != other).any()
  np.testing.assert_array_equal(logits(None), logits(None))
  assert (first != logits(None)).any()


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"num_heads": 3}, "not divisible by num_heads=3"),
    ({"attention_mask": "causal"}, "expected one of"),
  ],
)
def test_bad_configs_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    packs.small_config(**fields)


def test_an_unknown_size_is_refused():
  with pytest.raises(ValueError, match="no size 'huge'; expected one of tiny"):
    BertConfig.from_size("huge", vocab_size=3, max_position_embeddings=5)
