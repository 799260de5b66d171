"""What every model promises: packed equals unpacked, and no sequence touches another."""

import dataclasses

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import MODELS, BertConfig, Gpt2Config, ModernBertConfig, losses, models
from model.models import draw_params, make_model, model_of
from model.testing import (
  TOLERANCES,
  assert_causal,
  assert_no_cross_contamination,
  differences,
  relative_difference,
)
from packing.testing import lay_out
from tests import packs

SLOW = pytest.mark.slow
# Every head, and the other forms of some. One layer is enough for most.
HEADS: dict[str, dict] = {
  "pretraining": {"num_layers": 2},
  "pretraining without NSP": {"next_sentence": False},
  "sequence_classification": {"num_labels": 2},
  "regression": {"num_labels": 1},
  "multi_label": {"num_labels": 3, "multi_label": True},
  "token_classification": {},
  "question_answering": {},
  "encoder": {},
  "modern_bert pretraining": {"num_layers": 2},
  "modern_bert sequence_classification": {"num_layers": 2, "pooling": "mean"},
  "modern_bert token_classification": {"num_layers": 2},
  "modern_bert encoder": {"num_layers": 2},
  "causal": {"num_layers": 2},
}
# Rows that hold the extremes: full, M of the shortest, all sorts. 128 is splash's least.
LENGTHS = {13: (13, 5, 4, 3, 2, 2, 2, 7), 128: (128, 60, 50, 18, 2, 2, 2, 1)}
SPLASH = {"attention_impl": "splash_interpret", "max_position_embeddings": 128}
# Every model once.
NAMES = [
  f"{family} {head}" if family == "modern_bert" else head
  for family, models in MODELS.items()
  for head in models
]
LANGUAGE_MODELS = ("pretraining", "modern_bert pretraining", "causal")
CASES: list = [(name, {}, jnp.float64, "quick") for name in HEADS]
CASES += [
  pytest.param(name, fields, dtype, compiled, marks=SLOW)
  for fields, dtype, compiled, names in (
    ({}, jnp.float32, "optimised", HEADS),
    (SPLASH, jnp.float32, "quick", HEADS),
  )
  for name in names
]


def head_of(name: str) -> str:
  head = name.removeprefix("modern_bert ").split()[0]
  others = ("regression", "multi_label")
  return "sequence_classification" if head in others else head


def config_of(name: str, **fields):
  """Of a head with small sizes; splash cannot add ALiBi's bias."""
  fields = {"num_layers": 1} | HEADS.get(name, {}) | fields
  if name.startswith("modern_bert"):
    return packs.small_modern_bert(**fields)
  if head_of(name) != "causal":
    return packs.small_config(**fields)
  learned = fields.get("attention_impl") == "splash_interpret"
  return packs.small_gpt2(positions="learned" if learned else "alibi", **fields)


def kept_in(dtype) -> dict:
  return {"dtype": dtype, "param_dtype": np.promote_types(dtype, np.float32)}


@pytest.mark.parametrize(("name", "fields", "dtype", "compiled"), CASES)
def test_packed_equals_unpacked_and_nothing_is_seen_that_must_not(
  name, fields, dtype, compiled, request
):
  if compiled == "optimised":
    request.getfixturevalue("optimised")
  head, row_length = head_of(name), 128 if fields else packs.ROW_LENGTH
  sequences = packs.random_sequences([LENGTHS[row_length]])[0]
  if name == "multi_label":  # from no class to all three
    for number, sequence in enumerate(sequences):
      sequence["sequence_label"] = np.arange(3) < number % 4
  with jax.enable_x64(dtype == jnp.float64):
    model = packs.random_model(config_of(name, **fields, **kept_in(dtype)), head=head)
    found = differences(model, sequences, row_length=row_length)
    rows = [sequences[:1], sequences[1:4], sequences[4:7], []]
    batch = lay_out(rows, row_length=row_length)
    assert_no_cross_contamination(model, batch)
    if head == "causal" and not fields:
      assert_causal(model, batch)
  outputs = {difference.output for difference in found}
  assert {"embeddings", "layer 1", "gradients"} < outputs
  expected = 2 if name == "pretraining" else 0 if head == "encoder" else 1
  assert len([o for o in outputs if o.endswith("_loss")]) == expected
  for difference in found:
    assert difference.limit == TOLERANCES[jnp.dtype(dtype).name]
    assert difference.size < difference.limit, difference


@jax.jit(static_argnums=1)
@jax.value_and_grad
def loss_and_gradients(params, graphdef, batch):
  return losses.loss(nnx.merge(graphdef, params)(batch), batch)[0]


@pytest.mark.parametrize(
  ("head", "leak"),
  [
    ("pretraining", r"sequence 1 of row 0 .* first in 'layer 1'.*5 more"),
    ("causal", r"sequence 2 of row 0 .* sequence 1 .* first in 'layer 1'.*2 more"),
  ],
)
def test_without_the_mask_the_first_layer_leaks(head, leak):
  config = config_of(head, attention_mask="none", num_layers=1)
  model = packs.random_model(config, head=head)
  batch = packs.lay_out(packs.random_sequences([[5, 4, 3]]))
  with pytest.raises(AssertionError, match=leak):
    assert_no_cross_contamination(model, batch)
  if head == "causal":
    assert_causal(model, batch)


@pytest.mark.parametrize(
  ("name", "fields", "dtype"),
  [
    *((head, {}, jnp.float32) for head in NAMES),
    *((head, {}, jnp.bfloat16) for head in LANGUAGE_MODELS),
    ("pretraining", SPLASH, jnp.bfloat16),
    ("modern_bert pretraining", SPLASH, jnp.float32),
    ("causal", SPLASH, jnp.float32),
  ],
)
def test_rows_of_padding_stay_finite(name, fields, dtype):
  head = head_of(name)
  fields = {"max_position_embeddings": 128, "num_layers": 2} | fields
  config = config_of(name, **fields, **kept_in(dtype))
  graphdef, params = packs.random_params(config, head=head)
  batch = lay_out([packs.random_sequences([[2]])[0], []], row_length=128)
  batch = jax.tree.map(np.zeros_like, batch)

  def total(params):
    outputs = nnx.merge(graphdef, params)(batch)
    value = sum(x.astype(jnp.float32).sum() for x in jax.tree.leaves(outputs))
    return value + losses.loss(outputs, batch)[0] if head != "encoder" else value

  value, gradients = jax.jit(jax.value_and_grad(total))(params)
  assert np.isfinite(value)
  for x in jax.tree.leaves(gradients):
    assert np.isfinite(np.asarray(x, np.float32)).all()


BERT = {"vocab_size": 30522, "max_position_embeddings": 512}
GPT2 = {"vocab_size": 50257, "positions": "learned"}


@pytest.mark.parametrize(
  ("config", "published"),
  [
    (BertConfig.from_size("base", **BERT), pytest.approx(110.1e6, rel=1e-3)),
    (ModernBertConfig.from_size("base", vocab_size=50368), 149_655_232),
    (ModernBertConfig.from_size("large", vocab_size=50368), 395_881_664),
    (Gpt2Config.from_size("small", **GPT2), 124_439_808),
    (Gpt2Config.from_size("xl", **GPT2), 1_557_611_200),
  ],
)
def test_sizes_have_as_many_parameters_as_published(config, published):
  head = "causal" if isinstance(config, Gpt2Config) else "pretraining"

  def count(layers):
    few = dataclasses.replace(config, num_layers=layers)
    model = nnx.eval_shape(lambda: model_of(few, head)(few, rngs=nnx.Rngs(0)))
    return sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param)))

  assert count(1) + (config.num_layers - 1) * (count(2) - count(1)) == published


@pytest.mark.parametrize(
  ("head", "fields", "message"),
  [
    ("pretraining", {"num_heads": 3}, "not a multiple of num_heads=3"),
    ("pretraining", {"attention_mask": "causal"}, "expected segment, token_type, none"),
    ("pretraining", {"dropout_rate": 1.0}, r"is 1.0; expected a fraction in \[0, 1\)"),
    ("pretraining", {"variant": "deberta"}, "variant is 'deberta'; expected bert, roberta"),
    ("pretraining", {"variant": "roberta"}, "next_sentence is True; expected False with"),
    (
      "pretraining",
      {"variant": "electra", "next_sentence": False},
      "pooler is True; expected False with variant=electra",
    ),
    ("pretraining", {"embedding_size": 0}, "embedding_size is 0; expected a width or None"),
    ("pretraining", {"position_offset": -1}, "expected a whole number from 0"),
    (
      "pretraining",
      {"attention_mask": "token_type", "type_vocab_size": 1},
      "expected segment or none with variant=bert, type_vocab_size=1",
    ),
    ("modern_bert", {"local_window": 7}, "local_window is 7; expected an even number"),
    ("modern_bert", {"num_heads": 4}, "num_heads is 3; expected an even number"),
  ],
)
def test_bad_configs_are_refused(head, fields, message):
  make = {"causal": packs.small_gpt2, "modern_bert": packs.small_modern_bert}
  with pytest.raises(ValueError, match=message):
    make.get(head, packs.small_config)(**fields)


def test_parameters_are_drawn_on_the_cpu(monkeypatch):
  config, drawn_on = config_of("encoder"), []

  def make(*arguments, **options):
    drawn_on.append(jax.config.jax_default_device)  # type: ignore[attr-defined]
    return make_model(*arguments, **options)

  monkeypatch.setattr(models, "make_model", make)
  drawn = draw_params(config, "encoder", seed=3)
  assert [device.platform for device in drawn_on] == ["cpu"]
  made = nnx.to_pure_dict(nnx.state(make_model(config, "encoder", seed=3), nnx.Param))
  assert relative_difference(drawn, made) < 1e-6


@pytest.mark.parametrize("name", ["pretraining without NSP", "causal"])
def test_gradients_of_many_tokens_in_bfloat16_are_nearly_those_of_float32(name):
  config = config_of(name)
  if name == "causal":
    config = dataclasses.replace(config, positions="learned")
  batch = packs.lay_out(packs.random_sequences([[6, 4, 3]] * 500))
  graphdef, _ = packs.random_params(config, head=head_of(name))
  params = draw_params(config, head_of(name), seed=1)
  half = dataclasses.replace(config, dtype=jnp.bfloat16)
  half_def, _ = packs.random_params(half, head=head_of(name))
  _, expected = loss_and_gradients(params, graphdef, batch)
  _, gradients = loss_and_gradients(params, half_def, batch)
  errors = jax.tree.map(relative_difference, gradients, expected)
  for path, error in jax.tree.leaves_with_path(errors):
    # The bias of keys has no effect: its gradient is zero up to rounding.
    assert error < 0.02 or [x.key for x in path[-2:]] == ["key", "bias"], path
