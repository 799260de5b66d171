"""What ModernBERT has and BERT has not; `test_models` has what all models promise."""

import dataclasses

import flax.nnx as nnx
import jax.numpy as jnp
import numpy as np
import pytest

from model import hf
from model.modern_bert import ModernBertConfig, geglu, rotate
from model.weights import WeightsError
from tests import packs

MODERN = "ModernBertForMaskedLM"


def test_products_of_rotated_vectors_depend_on_distance_alone():
  rng = np.random.default_rng(0)
  query, key = jnp.asarray(rng.standard_normal((2, 1, 7, 3, 10)))
  positions = jnp.arange(7)[None]

  def products(shift):
    turned = (rotate(x, positions + shift, 50.0) for x in (query, key))
    return np.einsum("bqnh,bknh->bnqk", *turned)

  np.testing.assert_allclose(products(0), products(1000), atol=1e-4)
  assert abs(products(0) - np.einsum("bqnh,bknh->bnqk", query, key)).max() > 1


def test_pairs_turn_by_angles_that_fall_with_the_base():
  """Against complex numbers, one pair at a time."""
  x = np.random.default_rng(1).standard_normal((1, 1, 1, 6)).astype(np.float32)
  turned = np.asarray(rotate(jnp.asarray(x), jnp.array([[5]]), 20.0))[0, 0, 0]
  for pair in range(3):
    number = complex(x[0, 0, 0, pair], x[0, 0, 0, pair + 3])
    expected = number * np.exp(5j * 20 ** (-2 * pair / 6))
    found = complex(turned[pair], turned[pair + 3])
    assert found == pytest.approx(expected, rel=1e-5)
  half = jnp.asarray(x, jnp.bfloat16)  # the angles stay in float32
  far, near = (rotate(h, jnp.array([[1001]]), 20.0) for h in (half, half.astype("f4")))
  np.testing.assert_allclose(far.astype("f4"), near, atol=0.02)


def test_the_second_half_is_the_gate():
  assert geglu(jnp.array([100.0, -100.0, 3.0, 5.0])).tolist() == [300.0, 0.0]


@pytest.mark.parametrize(
  ("every", "windows"), [(1, [None] * 3), (2, [None, 2, None]), (5, [None, 2, 2])]
)
def test_layers_are_global_at_regular_distances(every, windows):
  config = packs.small_modern_bert(num_layers=3, global_every=every, local_window=4)
  assert [config.window_of(layer) for layer in range(3)] == windows


def test_a_local_layer_sees_its_window_and_nothing_beyond():
  """By change: token 6 of a sequence of 13 reaches tokens 4 to 8."""
  config = packs.small_modern_bert(num_layers=2, local_window=4)
  layer = packs.random_model(config).encoder.layers[1]
  rows = packs.random_model(config).rows(packs.lay_out(packs.random_sequences([[13]])))
  hidden = jnp.asarray(np.random.default_rng(0).standard_normal((1, 13, 12)), jnp.float32)
  changed = layer(hidden.at[0, 6].add(1.0), rows) != layer(hidden, rows)
  assert np.flatnonzero(changed.any(-1)[0]).tolist() == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_classes_are_computed_from_what_the_config_names(pooling):
  """Packed, so that the mean is that of each sequence's own tokens."""
  config = packs.small_modern_bert(pooling=pooling, num_labels=3)
  batch = packs.lay_out(packs.random_sequences())
  model = packs.random_model(config, head="sequence_classification")
  normalised = model.final_layer_norm(model.hidden_states(batch)["layer 2"])
  found = np.asarray(model(batch)["sequence_logits"])
  for row, slot in np.argwhere(batch["sequence_mask"]):
    tokens = normalised[row][batch["segment_ids"][row] == slot + 1]
    pooled = tokens[0] if pooling == "cls" else tokens.mean(0)
    expected = model.classifier(model.head(pooled[None, None]))[0, 0]
    np.testing.assert_allclose(found[row, slot], expected, rtol=1e-4, atol=1e-5)


ROTARY = {"rope_type": "default", "rope_theta": 9.0}


@pytest.mark.parametrize(
  ("values", "message"),
  [
    ({"layer_types": ["full_attention"] * 2 + ["sliding_attention"]}, "layer_types is"),
    ({"rope_parameters": {"full_attention": ROTARY | {"rope_type": "yarn"}}}, "rope_type"),
    ({"rope_scaling": {"type": "linear"}}, "rope_scaling is"),
    ({"hidden_activation": "silu"}, "hidden_activation is"),
    ({"architectures": ["ModernBertForQuestionAnswering"]}, "architectures is"),
  ],
)
def test_what_this_model_cannot_do_is_refused(altered, values, message):
  with pytest.raises(WeightsError, match=message):
    hf.open_model(altered(MODERN, **values))


def test_configs_of_older_files_are_read(altered):
  """Published ModernBERTs name the bases and the distance of global layers this way."""
  new = dict.fromkeys(("layer_types", "rope_parameters"))
  old = {"global_rope_theta": 11.0, "local_rope_theta": 7.0}
  folder = altered(MODERN, **new, **old, global_attn_every_n_layers=2)
  config = hf.open_model(folder).config_as(ModernBertConfig)
  assert (config.global_every, config.global_base, config.local_base) == (2, 11.0, 7.0)


def test_bfloat16_changes_little():
  config = packs.small_modern_bert()
  batch = packs.lay_out(packs.random_sequences())
  half = dataclasses.replace(config, dtype=jnp.bfloat16)
  graphdef, params = packs.random_params(config)
  first, logits = (
    nnx.merge(graph, params)(batch)["mlm_logits"]
    for graph in (graphdef, packs.random_params(half)[0])
  )
  assert logits.dtype == jnp.bfloat16
  wide = logits.astype(jnp.float32)
  np.testing.assert_allclose(wide, first, atol=0.05 * abs(first).max())
