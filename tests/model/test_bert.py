"""What BERT alone has, and what its layers and heads are made of."""

import dataclasses
import functools
import re

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import BertForPreTraining, attention, bert, blocks, losses
from model.attention import kernels
from model.testing import (
  assert_no_cross_contamination,
  assert_packed_equals_unpacked,
  differences,
  relative_difference,
)
from packing.testing import lay_out
from tests import packs

DTYPES = [jnp.float32, jnp.float64, jnp.bfloat16]


def make_batch():
  return packs.lay_out(packs.random_sequences())


def make_model(head="pretraining", **fields):
  return packs.random_model(packs.small_config(**fields), head=head)


@jax.jit(static_argnums=(1, 3))
def losses_of(params, graphdef, batch, unit):
  outputs = nnx.merge(graphdef, params)(batch)
  each = losses.per_sequence(outputs, batch)
  return losses.loss(outputs, batch, unit=unit)[0], each["mlm_loss"][0]


@pytest.mark.parametrize(
  ("fields", "unit"),
  [
    ({"attention_mask": "none"}, "sequence"),
    ({"position_reset": False}, "sequence"),
    ({"attention_mask": "none", "position_reset": False}, "pack"),
    ({"attention_mask": "token_type"}, "sequence"),
    ({}, "pack"),
  ],
)
def test_each_ablation_breaks_the_equality(fields, unit):
  config = packs.small_config(num_layers=1)
  packed_def, params = packs.random_params(config)
  ablated_def, _ = packs.random_params(dataclasses.replace(config, **fields))
  ours = losses_of(params, packed_def, make_batch(), "sequence")
  ablated = losses_of(params, ablated_def, make_batch(), unit)
  assert relative_difference(ablated, ours) > 1e-4


@jax.jit
def hidden_states(model, batch):
  return model.hidden_states(batch)


@pytest.mark.slow
def test_the_token_type_mask_separates_the_sentences_of_a_sequence():
  batch = make_batch()
  real = batch["segment_ids"] > 0
  ids = np.where(real, 2 * batch["segment_ids"] - 1 + batch["token_type_ids"], 0)
  ours = make_model(attention_mask="token_type")
  a = hidden_states(ours, batch)
  b = hidden_states(make_model(), batch | {"segment_ids": ids})
  assert relative_difference(a["layer 2"][real], b["layer 2"][real]) < 1e-6
  assert_no_cross_contamination(ours, batch)


# ---- what goes in ----------------------------------------------------------------------


def test_patches_of_images_are_packed_as_well():
  """No ids: patches of another width, projected by the user's own layer."""
  rng = np.random.default_rng(0)
  model = make_model("sequence_classification", num_layers=1, num_labels=3)
  graphdef, state = nnx.split(model, nnx.Param)
  projection = rng.standard_normal((5, 14)).astype(np.float32)
  params = {"bert": nnx.to_pure_dict(state), "projection": projection}
  images = [
    {"input_embeddings": rng.standard_normal((height * width, 5)).astype(np.float32)}
    for height, width in [(1, 1), (2, 3), (1, 2), (3, 3), (2, 2)]
  ]

  def apply(params, batch):
    model = nnx.merge(graphdef, params["bert"])
    embeddings = batch["input_embeddings"] @ params["projection"]
    return model.hidden_states({**batch, "input_embeddings": embeddings})

  assert_packed_equals_unpacked(apply, images, params=params)
  batch = lay_out([images[:2], images[2:4]], row_length=13)
  assert_no_cross_contamination(functools.partial(apply, params), batch)


def test_rows_without_positions_are_refused():
  with pytest.raises(ValueError, match="Rows of 13 tokens need as many"):
    make_model(position_reset=False, max_position_embeddings=12)(make_batch())


# ---- dropout ---------------------------------------------------------------------------


def test_dropout_needs_a_key_and_repeats_with_it():
  model, batch = make_model(dropout_rate=0.5), make_batch()
  logits = jax.jit(lambda key: model(batch, dropout_key=key)["mlm_logits"])
  first, again, other = (logits(jax.random.key(i)) for i in (0, 0, 1))
  np.testing.assert_array_equal(first, again)
  assert (first != other).any()
  np.testing.assert_array_equal(logits(None), logits(None))
  assert (first != logits(None)).any()


@pytest.mark.parametrize("head", ["sequence_classification", "token_classification"])
def test_each_use_of_dropout_has_its_own_key(monkeypatch, head):
  seen: list[jax.Array] = []
  rates = []

  def record(x, rate, key):
    rates.append(rate)
    seen.append(key)
    return x

  for module in (attention, blocks, bert):
    monkeypatch.setattr(module, "dropout", record)
  model = make_model(head, dropout_rate=0.5, attention_dropout_rate=0.125)
  model(make_batch(), dropout_key=jax.random.key(0))
  layers = model.config.num_layers
  assert rates == [0.5, *[0.125, 0.5, 0.5] * layers, 0.5]  # the classifier's too
  assert len({jax.random.key_data(key).tobytes() for key in seen}) == len(seen)


def test_computing_layers_twice_changes_nothing():
  rates = {"dropout_rate": 0.3, "attention_dropout_rate": 0.3}
  config = packs.small_config(num_layers=1, next_sentence=False, **rates)
  batch, found = make_batch(), []
  for remat in ("none", "layers"):
    graphdef, params = packs.random_params(dataclasses.replace(config, remat=remat))

    def loss(params, key, graphdef=graphdef):
      return losses.loss(nnx.merge(graphdef, params)(batch, dropout_key=key), batch)[0]

    found.append(jax.jit(jax.value_and_grad(loss))(params, jax.random.key(0)))
    program = str(jax.make_jaxpr(loss)(params, jax.random.key(0)))
    assert ("remat" in program or "checkpoint" in program) == (remat == "layers")
  for ours, theirs in zip(*found, strict=True):
    assert relative_difference(ours, theirs) < 1e-6


@pytest.mark.parametrize(("mask", "expected"), [("segment", 3), ("token_type", 15)])
def test_attention_is_told_how_many_segments_there_can_be(monkeypatch, mask, expected):
  found = []

  def record(query, key, value, segment_ids, max_segments, **options):
    assert options == {"causal": False}
    found.append(max_segments)
    return value

  kernel = kernels.Kernel(record, "any device", ("float32",))
  monkeypatch.setitem(kernels.KERNELS, "cudnn_packed", kernel)
  fields = {"attention_impl": "cudnn_packed", "attention_mask": mask, "type_vocab_size": 5}
  config = packs.small_config(**fields)
  jax.eval_shape(lambda: BertForPreTraining(config, rngs=nnx.Rngs(0))(make_batch()))
  assert found == [expected] * 2


# ---- numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("head", "fields"),
  [
    pytest.param("pretraining", {"next_sentence": False}, marks=pytest.mark.slow),
    ("question_answering", {}),
  ],
)
def test_bfloat16_is_for_the_computation_alone(head, fields):
  model = make_model(head, num_layers=1, dtype=jnp.bfloat16, **fields)
  sequences = packs.random_sequences([(13, 5, 4, 3, 2, 2, 2, 7)])[0]
  for difference in differences(model, sequences, row_length=13):
    assert difference.size < difference.limit, difference
  batch = packs.lay_out([sequences[1:4]])
  assert_no_cross_contamination(model, batch)
  outputs = jax.jit(lambda model: model(batch))(model)
  kept = losses.loss(outputs, batch), nnx.state(model, nnx.Param)
  for tree, dtype in ((outputs, jnp.bfloat16), (kept, jnp.float32)):
    assert {x.dtype for x in jax.tree.leaves(tree)} == {jnp.dtype(dtype)}


def test_weights_start_as_wide_as_the_initializer_range():
  def drawn(width):
    config = packs.small_config(num_layers=1, initializer_range=width)
    make = lambda: BertForPreTraining(config, rngs=nnx.Rngs(0))  # noqa: E731
    state = jax.jit(lambda: nnx.to_pure_dict(nnx.state(make(), nnx.Param)))()
    return jax.tree_util.tree_flatten_with_path(state)[0]

  for (path, narrow), (_, wide) in zip(drawn(0.125), drawn(0.25), strict=True):
    if path[-1].key in ("kernel", "embedding"):
      assert 0.1 < np.abs(narrow).max() < 0.3, path
      np.testing.assert_allclose(wide, 2 * narrow, rtol=1e-6)
    else:
      assert (narrow == float(path[-1].key == "scale")).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_is_the_exact_one(dtype):
  exact = functools.partial(jax.nn.gelu, approximate=False)
  with jax.enable_x64(dtype == jnp.float64):
    x = jnp.linspace(-7, 7, 1001, dtype=dtype)
    wide = x.astype(np.promote_types(dtype, np.float32))
    for of in (lambda function: function, jax.grad):
      ours, theirs = jax.vmap(of(blocks.gelu))(x), jax.vmap(of(exact))(wide)
      assert ours.dtype == dtype
      gap = jnp.abs(ours.astype(wide.dtype) - theirs).max()
      assert gap < 8 * float(jnp.finfo(dtype).eps)


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_the_mask_is_never_stored():
  """XLA compares the ids where it needs the answer: the same memory as a padding mask."""
  found = {}
  for mask in ("segment", "none"):
    graphdef, params = packs.random_params(packs.small_config(attention_mask=mask))
    gradients = jax.jit(jax.grad(lambda *x: losses_of(*x)[0]), static_argnums=(1, 3))
    lowered = gradients.lower(params, graphdef, make_batch(), "sequence")
    compiled = lowered.compile({"xla_cpu_use_fusion_emitters": True})  # as users do
    program = compiled.as_text() or ""
    stored = re.findall(r" = pred\[([\d,]+)\]", program[program.index("ENTRY") :])
    assert "5,3" in stored  # the search finds what is there: sequence_mask
    assert not [shape for shape in stored if shape.endswith("13,13")]
    memory = compiled.memory_analysis()
    assert memory is not None
    found[mask] = memory.temp_size_in_bytes
  assert found["segment"] == pytest.approx(found["none"], rel=0.01)
