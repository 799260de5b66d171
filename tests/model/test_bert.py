"""Packed equals unpacked, and no sequence touches another."""

import dataclasses
import functools
import math
import re

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import (
  LANGUAGE_MODELS,
  MODELS,
  BertConfig,
  BertForPreTraining,
  blocks,
  kernels,
  losses,
)
from model.layout import lay_out
from model.testing import (
  TOLERANCES,
  assert_no_cross_contamination,
  assert_packed_equals_unpacked,
  differences,
  relative_difference,
)
from tests import packs

# Every head, and the other forms of some.
HEADS: dict[str, dict] = {
  "pretraining": {},
  "pretraining without NSP": {"next_sentence": False},
  "sequence_classification": {"num_labels": 2},
  "regression": {"num_labels": 1},
  "token_classification": {},
  "question_answering": {},
}
# Rows that hold the extremes: full, M of the shortest, all sorts. 128 is splash's least.
LENGTHS = {13: (13, 5, 4, 3, 2, 2, 2, 7), 128: (128, 60, 50, 18, 2, 2, 2, 1)}
CASES = [
  pytest.param("xla", jnp.float32, marks=pytest.mark.slow),
  ("xla", jnp.float64),
  pytest.param("splash_interpret", jnp.float32, marks=pytest.mark.slow),
]


def head_of(name: str) -> str:
  head = name.split()[0]
  return "sequence_classification" if head == "regression" else head


def make_model(name: str, *, seed=0, **fields):
  """One layer is enough for the heads; pretraining has two."""
  fields = {"num_layers": 2 if name == "pretraining" else 1} | HEADS[name] | fields
  return packs.random_model(packs.small_config(**fields), seed, head_of(name))


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize(("implementation", "dtype"), CASES)
def test_packed_equals_unpacked_and_none_touches_another(
  name, implementation, dtype, request
):
  if (name, implementation, dtype) == ("pretraining", "xla", jnp.float32):
    request.getfixturevalue("optimised")
  row_length = 128 if implementation == "splash_interpret" else packs.ROW_LENGTH
  sequences = packs.random_sequences([LENGTHS[row_length]])[0]
  with jax.enable_x64(dtype == jnp.float64):
    model = make_model(
      name,
      dtype=dtype,
      param_dtype=dtype,
      attention_impl=implementation,
      max_position_embeddings=row_length,
    )
    found = differences(model, sequences, row_length=row_length)
    rows = [sequences[:1], sequences[1:4], sequences[4:7], []]
    batch = lay_out(rows, row_length=row_length)
    assert_no_cross_contamination(model, batch)
  outputs = {difference.output for difference in found}
  assert {"embeddings", "layer 1", "gradients"} < outputs
  assert len([o for o in outputs if o.endswith("_loss")]) == (
    2 if name == "pretraining" else 1
  )
  for difference in found:
    assert difference.limit == TOLERANCES[jnp.dtype(dtype).name]
    assert difference.size < difference.limit, difference


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_the_same_in_float64_with_all_optimisations(request):
  test_packed_equals_unpacked_and_none_touches_another(
    "pretraining", "xla", jnp.float64, request
  )


@functools.partial(jax.jit, static_argnums=1)
@functools.partial(jax.value_and_grad, has_aux=True)
def loss_and_gradients(params, graphdef, batch):
  outputs = nnx.merge(graphdef, params)(batch)
  return losses.loss(outputs, batch)[0], losses.per_sequence(outputs, batch)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_packed_equals_an_ordinary_bert(dtype, seed):
  """One that knows of no packs: positions of the row, a mask of padding alone."""
  tolerance = TOLERANCES[jnp.dtype(dtype).name]
  with jax.enable_x64(dtype == jnp.float64):
    config = packs.small_config(dtype=dtype, param_dtype=dtype)
    packed_def, params = packs.random_params(config, seed)
    ordinary_def, _ = packs.random_params(packs.ordinary(config), seed)
    sequences = packs.random_sequences(seed=seed)
    packed, unpacked = packs.lay_out(sequences), packs.one_a_row(sequences)

    ours = loss_and_gradients(params, packed_def, packed)
    theirs = loss_and_gradients(params, ordinary_def, unpacked)
    (packed_loss, packed_each), packed_grads = ours
    (unpacked_loss, unpacked_each), unpacked_grads = theirs

    assert relative_difference(packed_loss, unpacked_loss) < tolerance
    assert relative_difference(packed_grads, unpacked_grads) < tolerance
    for name, (values, _) in packed_each.items():
      each, counts = unpacked_each[name]
      assert values.dtype == dtype
      ours = values[packed["sequence_mask"]]
      assert ours.shape == (counts.size,)
      assert relative_difference(ours, each[:, 0]) < tolerance, name


@functools.partial(jax.jit, static_argnums=(1, 3))
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
  batch = packs.lay_out(packs.random_sequences())
  ours = losses_of(params, packed_def, batch, "sequence")
  ablated = losses_of(params, ablated_def, batch, unit)
  assert relative_difference(ablated, ours) > 1e-4


def test_without_the_mask_the_first_layer_leaks():
  model = make_model("pretraining", attention_mask="none")
  batch = packs.lay_out(packs.random_sequences([[5, 4, 3]]))
  with pytest.raises(
    AssertionError, match=r"sequence 1 of row 0 .* first in 'layer 1'.*5 more"
  ):
    assert_no_cross_contamination(model, batch)


def test_the_ablation_without_nsp_has_no_such_head():
  _, params = packs.random_params(packs.small_config(next_sentence=False))
  assert not {"nsp", "pooler"} & set(params)


@jax.jit
def hidden_states(model, batch):
  return model.hidden_states(batch)


@pytest.mark.slow
def test_the_token_type_mask_separates_the_sentences_of_a_sequence():
  batch = packs.lay_out(packs.random_sequences())
  ids = np.where(
    batch["segment_ids"] > 0, 2 * batch["segment_ids"] - 1 + batch["token_type_ids"], 0
  )
  ours = make_model("pretraining", attention_mask="token_type")
  as_sequences = make_model("pretraining")
  a = hidden_states(ours, batch)
  b = hidden_states(as_sequences, batch | {"segment_ids": ids})
  real = batch["segment_ids"] > 0
  assert relative_difference(a["layer 2"][real], b["layer 2"][real]) < 1e-6
  assert_no_cross_contamination(ours, batch)


def test_patches_of_images_are_packed_as_well():
  """No ids: patches of another width, projected by the user's own layer."""
  rng = np.random.default_rng(0)
  model = make_model("sequence_classification", num_labels=3)
  graphdef, state = nnx.split(model, nnx.Param)
  params = {
    "bert": nnx.to_pure_dict(state),
    "projection": rng.standard_normal((5, 14)).astype(np.float32),
  }
  images = [
    {"input_embeddings": rng.standard_normal((height * width, 5)).astype(np.float32)}
    for height, width in [(1, 1), (2, 3), (1, 2), (3, 3), (2, 2)]
  ]

  def apply(params, batch):
    model = nnx.merge(graphdef, params["bert"])
    batch = {**batch, "input_embeddings": batch["input_embeddings"] @ params["projection"]}
    return model.hidden_states(batch)

  assert_packed_equals_unpacked(apply, images, params=params)
  batch = lay_out([images[:2], images[2:4]], row_length=13)
  assert_no_cross_contamination(functools.partial(apply, params), batch)


def test_embeddings_of_tokens_equal_their_ids():
  model = make_model("question_answering")
  batch = packs.lay_out(packs.random_sequences())
  embedded = {k: v for k, v in batch.items() if k != "input_ids"}
  embedded["input_embeddings"] = model.embeddings.token(batch["input_ids"])
  a, b = hidden_states(model, batch), hidden_states(model, embedded)
  assert (a["layer 1"] == b["layer 1"]).all()


def test_embeddings_of_another_width_are_refused():
  batch = packs.lay_out(packs.random_sequences())
  batch["input_embeddings"] = np.zeros((*batch["input_ids"].shape, 9), np.float32)
  with pytest.raises(ValueError, match=r"\[B, S, D\] = \(5, 13, 14\), found \(5, 13, 9\)"):
    make_model("pretraining")(batch)


def test_positions_of_a_row_longer_than_there_are_are_refused():
  model = make_model("pretraining", position_reset=False, max_position_embeddings=12)
  with pytest.raises(ValueError, match=r"at most max_position_embeddings=12 .* found 13"):
    model(packs.lay_out(packs.random_sequences()))


def test_computing_layers_twice_changes_nothing():
  config = packs.small_config(
    num_layers=1, dropout_rate=0.3, attention_dropout_rate=0.3, next_sentence=False
  )
  batch = packs.lay_out(packs.random_sequences())
  found = []
  for remat in ("none", "layers"):
    graphdef, params = packs.random_params(dataclasses.replace(config, remat=remat))

    def loss(params, key, graphdef=graphdef):
      return losses.loss(nnx.merge(graphdef, params)(batch, dropout_key=key), batch)[0]

    found.append(jax.jit(jax.value_and_grad(loss))(params, jax.random.key(0)))
    program = str(jax.make_jaxpr(loss)(params, jax.random.key(0)))
    assert ("remat" in program or "checkpoint" in program) == (remat == "layers")
  (value, gradients), (again, gradients_again) = found
  assert relative_difference(again, value) < 1e-6
  assert relative_difference(gradients_again, gradients) < 1e-6


def test_a_wider_vocabulary_changes_nothing():
  config = packs.small_config(num_layers=1)
  wide = dataclasses.replace(config, vocab_multiple=8)
  assert (config.padded_vocab_size, wide.padded_vocab_size) == (29, 32)
  graphdef, params = packs.random_params(config)
  wide_def, wide_params = packs.random_params(wide)
  copied = jax.tree.map(
    lambda x, y: y.at[: len(x)].set(x) if x.shape != y.shape else x, params, wide_params
  )
  batch = packs.lay_out(packs.random_sequences())
  (value, _), gradients = loss_and_gradients(params, graphdef, batch)
  (wide_value, _), wide_gradients = loss_and_gradients(copied, wide_def, batch)
  assert relative_difference(wide_value, value) < 1e-6
  assert (wide_gradients["mlm_bias"][29:] == 0).all()
  assert (wide_gradients["embeddings"]["token"]["embedding"][29:] == 0).all()
  wide_gradients["mlm_bias"] = wide_gradients["mlm_bias"][:29]
  token = wide_gradients["embeddings"]["token"]
  token["embedding"] = token["embedding"][:29]
  assert relative_difference(wide_gradients, gradients) < 1e-6


@pytest.mark.parametrize(
  "name",
  [
    pytest.param("pretraining without NSP", marks=pytest.mark.slow),
    "question_answering",
  ],
)
def test_bfloat16_is_for_the_computation_alone(name):
  model = make_model(name, dtype=jnp.bfloat16)
  sequences = packs.random_sequences([LENGTHS[13]])[0]
  for difference in differences(model, sequences, row_length=13):
    assert difference.size < difference.limit, difference
  batch = packs.lay_out([sequences[1:4]])
  assert_no_cross_contamination(model, batch)
  outputs = jax.jit(lambda model: model(batch))(model)
  assert {x.dtype for x in outputs.values()} == {jnp.dtype(jnp.bfloat16)}
  loss, totals = losses.loss(outputs, batch)
  assert {x.dtype for x in jax.tree.leaves((loss, totals))} == {jnp.dtype(jnp.float32)}
  params = nnx.state(model, nnx.Param)
  assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize(
  ("head", "implementation", "dtype"),
  [
    ("pretraining", "xla", jnp.float32),
    pytest.param("pretraining", "xla", jnp.float64, marks=pytest.mark.slow),
    pytest.param("pretraining", "splash_interpret", jnp.float32, marks=pytest.mark.slow),
    ("pretraining", "xla", jnp.bfloat16),
    ("pretraining", "splash_interpret", jnp.bfloat16),
    *((head, "xla", jnp.float32) for head in MODELS if head not in LANGUAGE_MODELS),
  ],
)
def test_rows_of_padding_stay_finite(head, implementation, dtype):
  with jax.enable_x64(dtype == jnp.float64):
    config = packs.small_config(
      dtype=dtype,
      param_dtype=np.promote_types(dtype, np.float32),
      attention_impl=implementation,
      max_position_embeddings=128,
      num_layers=1,
    )
    graphdef, params = packs.random_params(config, head=head)
    batch = lay_out([packs.random_sequences([[2]])[0], []], row_length=128)
    batch = jax.tree.map(np.zeros_like, batch)

    def total(params):
      outputs = nnx.merge(graphdef, params)(batch)
      loss = losses.loss(outputs, batch)[0]
      return loss + sum(x.astype(loss.dtype).sum() for x in jax.tree.leaves(outputs))

    value, grads = jax.jit(jax.value_and_grad(total))(params)
    assert np.isfinite(value)
    for x in jax.tree.leaves(grads):
      assert np.isfinite(np.asarray(x, np.float32)).all()


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


@pytest.mark.parametrize("head", ["sequence_classification", "token_classification"])
def test_classifiers_drop_what_they_read(head):
  config = packs.small_config(dropout_rate=0.5, num_layers=1)
  model = packs.random_model(config, head=head)
  batch = packs.lay_out(packs.random_sequences())
  hidden = jnp.ones((*batch["segment_ids"].shape, config.hidden_size))
  (plain,) = model.heads(hidden, batch).values()
  (dropped,) = model.heads(hidden, batch, dropout_key=jax.random.key(0)).values()
  assert (plain != dropped).any()


def test_each_use_of_dropout_has_its_own_key(monkeypatch):
  seen: list[jax.Array] = []

  def record(_, x, *, rngs, **kwargs):
    seen.append(rngs)
    return x

  monkeypatch.setattr(nnx.Dropout, "__call__", record)
  config = packs.small_config(dropout_rate=0.5, attention_dropout_rate=0.5)
  model = packs.random_model(config, head="token_classification")
  model(packs.lay_out(packs.random_sequences()), dropout_key=jax.random.key(0))
  assert len(seen) == 1 + 3 * config.num_layers + 1
  assert len({jax.random.key_data(key).tobytes() for key in seen}) == len(seen)


def trace(config):
  """Runs a model on shapes alone."""
  batch = packs.lay_out(packs.random_sequences())

  def run(key):
    return BertForPreTraining(config, rngs=nnx.Rngs(0))(batch, dropout_key=key)

  jax.eval_shape(run, jax.random.key(0))


def test_attention_has_a_dropout_of_its_own(monkeypatch):
  rates = []

  def record(query, key, value, *args, dropout_rate, **kwargs):
    rates.append(dropout_rate)
    return value

  monkeypatch.setattr(blocks, "attention", record)
  trace(packs.small_config(dropout_rate=0.5, attention_dropout_rate=0.125))
  assert rates == [0.125, 0.125]


@pytest.mark.parametrize(("mask", "expected"), [("segment", 3), ("token_type", 15)])
def test_attention_is_told_how_many_segments_there_can_be(monkeypatch, mask, expected):
  found = []

  def record(query, key, value, segment_ids, max_segments, **options):
    assert options == {"causal": False}
    found.append(max_segments)
    return value

  kernel = kernels.Kernel(record, "any device", None, 0.0, ("float32",), 1, 1)
  monkeypatch.setitem(kernels.KERNELS, "cudnn_packed", kernel)
  assert packs.MAX_SEQUENCES == 3
  fields = {"attention_impl": "cudnn_packed", "attention_mask": mask, "type_vocab_size": 5}
  trace(packs.small_config(**fields))
  assert found == [expected] * 2


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


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64, jnp.bfloat16])
def test_gelu_is_the_exact_one(dtype):
  with jax.enable_x64(dtype == jnp.float64):
    x = jnp.linspace(-7, 7, 1001, dtype=dtype)
    ours, slopes = jax.vmap(jax.value_and_grad(blocks.gelu))(x)
    exact, exact_slopes = jax.vmap(
      jax.value_and_grad(functools.partial(jax.nn.gelu, approximate=False))
    )(x.astype(jnp.float64 if dtype == jnp.float64 else jnp.float32))
    assert ours.dtype == dtype
    rounding = float(jnp.finfo(dtype).eps)
    ours, slopes = ours.astype(exact.dtype), slopes.astype(exact.dtype)
    assert jnp.abs(ours - exact).max() < 8 * rounding
    assert jnp.abs(slopes - exact_slopes).max() < 8 * rounding


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64, jnp.bfloat16])
def test_gradients_of_the_vocabulary_are_those_of_the_plain_product(dtype):
  def plain(hidden, embedding, bias):
    return jnp.einsum("BPD,VD->BPV", hidden, embedding) + bias[None, None]

  with jax.enable_x64(dtype == jnp.float64):
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = [(3, 5, 7), (11, 7), (11,)]
    arguments = [
      jax.random.normal(k, shape, dtype) for k, shape in zip(keys, shapes, strict=False)
    ]
    upstream = jax.random.normal(keys[3], (3, 5, 11), dtype)
    found, expected = (
      jax.vjp(function, *arguments) for function in (kernels.vocabulary_products, plain)
    )
    np.testing.assert_array_equal(found[0], expected[0])
    tolerance = 8 * float(jnp.finfo(dtype).eps)
    for ours, theirs in zip(found[1](upstream), expected[1](upstream), strict=True):
      assert ours.dtype == dtype
      assert relative_difference(ours, theirs) < tolerance


def test_forward_mode_through_the_vocabulary_is_refused_with_the_reason():
  model = packs.random_model(packs.small_config(num_layers=1))
  batch = packs.lay_out(packs.random_sequences([[5, 4]]))
  hidden = jnp.ones((1, packs.ROW_LENGTH, 14))
  logits = lambda x: model.heads(x, batch)["mlm_logits"]  # noqa: E731
  with pytest.raises(TypeError, match=r"in reverse mode only\. Expected jax\.grad"):
    jax.jvp(logits, (hidden,), (hidden,))
  each = jax.vmap(jax.grad(lambda x: logits(x[None]).sum()))(hidden)
  assert relative_difference(each, jax.grad(lambda x: logits(x).sum())(hidden)) < 1e-6


def test_layer_norm_keeps_its_digits_far_from_zero():
  """The mean of squares less the square of the mean would be all cancellation."""
  x = 1e4 + np.random.default_rng(0).standard_normal((7, 14))
  x = x.astype(np.float32)
  wide = x.astype(np.float64)
  expected = (wide - wide.mean(-1, keepdims=True)) / wide.std(-1, keepdims=True)
  norm = packs.random_model(packs.small_config(num_layers=1)).embeddings.layer_norm
  bias, scale = (np.asarray(param) for param in (norm.bias, norm.scale))
  np.testing.assert_allclose((np.asarray(norm(x)) - bias) / scale, expected, atol=1e-2)


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_the_mask_is_never_stored():
  """XLA compares the ids where it needs the answer: the same memory as a padding mask."""
  batch = packs.lay_out(packs.random_sequences())
  found = {}
  for mask in ("segment", "none"):
    graphdef, params = packs.random_params(packs.small_config(attention_mask=mask))
    lowered = loss_and_gradients.lower(params, graphdef, batch)
    compiled = lowered.compile({"xla_cpu_use_fusion_emitters": True})  # as users do
    program = compiled.as_text() or ""
    stored = re.findall(r" = pred\[([\d,]+)\]", program[program.index("ENTRY") :])
    assert "5,3" in stored  # the search finds what is there: sequence_mask
    assert not [shape for shape in stored if shape.endswith("13,13")]
    memory = compiled.memory_analysis()
    assert memory is not None
    found[mask] = memory.temp_size_in_bytes
  assert found["segment"] == pytest.approx(found["none"], rel=0.01)


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"num_heads": 3}, "not divisible by num_heads=3"),
    ({"attention_mask": "causal"}, "expected one of segment, token_type, none"),
    ({"remat": "all"}, "expected one of none, layers"),
    ({"num_labels": 0}, "num_labels is 0; expected at least 1"),
    ({"layer_norm_epsilon": math.nan}, "epsilon is nan; expected more than 0, and finite"),
    ({"initializer_range": math.inf}, "range is inf; expected more than 0, and finite"),
    ({"vocab_multiple": 2**17}, "expected at most 65536: no hardware gains by more"),
    ({"dropout_rate": 1.0}, r"dropout_rate is 1.0; expected a fraction in \[0, 1\)"),
  ],
)
def test_bad_configs_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    packs.small_config(**fields)


def test_an_unknown_size_is_refused():
  with pytest.raises(ValueError, match="no size 'huge'; expected one of tiny"):
    BertConfig.from_size("huge", vocab_size=3, max_position_embeddings=5)


def test_base_and_large_have_as_many_parameters_as_published():
  """110 and 340 million, rounded; with the vocabulary and heads of the original."""
  for size, expected in (("base", 110.1e6), ("large", 336.2e6)):
    config = BertConfig.from_size(size, vocab_size=30522, max_position_embeddings=512)
    one, two = (
      count_parameters(dataclasses.replace(config, num_layers=layers)) for layers in (1, 2)
    )
    count = one + (config.num_layers - 1) * (two - one)
    assert count == pytest.approx(expected, rel=1e-3)


def count_parameters(config: BertConfig) -> int:
  model = nnx.eval_shape(lambda: BertForPreTraining(config, rngs=nnx.Rngs(0)))
  return sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param)))
