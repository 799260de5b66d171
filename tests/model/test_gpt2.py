"""Packed equals unpacked, and nothing is seen from elsewhere or from later on."""

import dataclasses
import math

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import AttentionError, Gpt2, Gpt2Config, kernels, losses
from model.attention import alibi_slopes, attention
from model.layout import lay_out
from model.testing import (
  TOLERANCES,
  assert_causal,
  assert_no_cross_contamination,
  differences,
  relative_difference,
)
from tests import packs

SPLASH = {"positions": "learned", "attention_impl": "splash_interpret"}
# As in test_bert: rows that hold the extremes; 128 is splash's least.
LENGTHS = {13: (13, 5, 4, 3, 2, 2, 2, 7), 128: (128, 60, 50, 18, 2, 2, 2, 1)}


def make_model(seed=0, **fields):
  return packs.random_model(packs.small_gpt2(**fields), seed, "causal")


@pytest.mark.parametrize(
  ("fields", "dtype"),
  [
    pytest.param({"vocab_multiple": 8}, jnp.float32, marks=pytest.mark.slow),
    ({}, jnp.float64),
    pytest.param(SPLASH | {"num_layers": 1}, jnp.float32, marks=pytest.mark.slow),
  ],
)
def test_packed_equals_unpacked_and_nothing_is_seen_that_must_not(fields, dtype, request):
  if dtype == jnp.float32:
    request.getfixturevalue("optimised")
  row_length = 128 if "attention_impl" in fields else packs.ROW_LENGTH
  sequences = packs.random_sequences([LENGTHS[row_length]])[0]
  with jax.enable_x64(dtype == jnp.float64):
    model = make_model(
      dtype=dtype,
      param_dtype=dtype,
      max_position_embeddings=row_length,
      **fields,
    )
    found = differences(model, sequences, row_length=row_length)
    rows = [sequences[:1], sequences[1:4], sequences[4:7], []]
    batch = lay_out(rows, row_length=row_length)
    assert_no_cross_contamination(model, batch)
    if row_length == packs.ROW_LENGTH:
      assert_causal(model, batch)
  outputs = {difference.output for difference in found}
  assert {"layer 1", "causal_logits", "causal_loss", "gradients"} < outputs
  for difference in found:
    assert difference.limit == TOLERANCES[jnp.dtype(dtype).name]
    assert difference.size < difference.limit, difference


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_the_same_in_float64_with_all_optimisations(request):
  test_packed_equals_unpacked_and_nothing_is_seen_that_must_not({}, jnp.float64, request)


def test_packed_equals_an_ordinary_gpt2():
  """One that knows of no packs: one sequence a row, a mask of padding alone."""
  sequences = packs.random_sequences()
  with jax.enable_x64(True):
    kept = {"dtype": jnp.float64, "param_dtype": jnp.float64, "positions": "learned"}
    config = packs.small_gpt2(**kept)
    packed_def, params = packs.random_params(config, head="causal")
    ordinary = packs.small_gpt2(attention_mask="none", **kept)
    ordinary_def, _ = packs.random_params(ordinary, head="causal")

    def loss(params, graphdef, batch):
      return losses.loss(nnx.merge(graphdef, params)(batch), batch)[0]

    run = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    ours = run(params, packed_def, packs.lay_out(sequences))
    theirs = run(params, ordinary_def, packs.one_a_row(sequences))
  for a, b in zip(ours, theirs, strict=True):
    assert relative_difference(a, b) < 1e-12


def test_without_the_mask_the_first_layer_leaks_forward_alone():
  model = make_model(num_layers=1, attention_mask="none")
  batch = packs.lay_out(packs.random_sequences([[5, 4, 3]]))
  with pytest.raises(
    AssertionError, match=r"sequence 2 of row 0 .* sequence 1 .* first in 'layer 1'.*2 more"
  ):
    assert_no_cross_contamination(model, batch)
  assert_causal(model, batch)


def test_other_tokens_change_no_loss_of_another_sequence():
  """By the ids, which are the labels too: nothing is predicted across a boundary."""
  model = make_model(num_layers=1)
  batch = packs.lay_out(packs.random_sequences([[5, 4]]))
  assert_no_cross_contamination(model, batch, methods=("change",))


@pytest.mark.parametrize("positions", ["alibi", "learned"])
def test_where_a_sequence_stands_changes_nothing(positions):
  """ALiBi needs no reset of positions: it reads none."""
  model = make_model(positions=positions)
  sequence, other, another = packs.random_sequences([[5, 3, 4]])[0]
  rows = [[sequence], [other, sequence], [another, other, sequence]]
  batch = packs.lay_out(rows)
  if positions == "alibi":
    batch["position_ids"][:] = 99
  logits = jax.jit(lambda batch: model(batch)["causal_logits"])(batch)
  places = zip(logits, batch["cls_positions"][[0, 1, 2], [0, 1, 2]], strict=True)
  alone, *shifted = (np.asarray(row[start : start + 5]) for row, start in places)
  for found in shifted:
    assert relative_difference(found, alone) < 1e-6


# ---- ALiBi -----------------------------------------------------------------------------


def slopes_of_the_authors(heads):
  """As the code of the ALiBi paper has it."""
  if math.log2(heads).is_integer():
    start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
    return [start * start**i for i in range(heads)]
  power = 2 ** math.floor(math.log2(heads))
  more = slopes_of_the_authors(2 * power)[0::2][: heads - power]
  return slopes_of_the_authors(power) + more


def test_slopes_are_those_of_the_authors():
  for heads in range(1, 34):
    np.testing.assert_allclose(
      alibi_slopes(heads), slopes_of_the_authors(heads), rtol=1e-14
    )


def attention_by_hand(query, key, value, segment_ids, mask):
  """softmax(q k / sqrt(H) - slope x distance) v, with plain loops."""
  rows, length, heads, size = query.shape
  found = np.zeros(query.shape)
  for row, i, head in np.ndindex(rows, length, heads):
    ids = segment_ids[row]
    scores = {}
    for j in range(i + 1):
      if ids[j] > 0 and (mask == "none" or ids[i] == ids[j]):
        product = sum(query[row, i, head] * key[row, j, head])
        slope = slopes_of_the_authors(heads)[head]
        scores[j] = product / math.sqrt(size) - slope * (i - j)
    total = sum(map(math.exp, scores.values()))
    for j, score in scores.items():
      found[row, i, head] += math.exp(score) / total * value[row, j, head]
  return found


def logits_by_hand(config, params, batch):
  """The whole model, with nothing of ours: what Hugging Face has no ALiBi for."""

  def normalised(x, norm):
    centred = x - x.mean(-1, keepdims=True)
    spread = np.sqrt((centred**2).mean(-1, keepdims=True) + config.layer_norm_epsilon)
    return centred / spread * norm["scale"] + norm["bias"]

  def dense(x, layer):
    return x @ layer["kernel"] + layer["bias"]

  def gelu(x):
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

  params = jax.tree.map(np.asarray, params)
  table = params["embeddings"]["token"]["embedding"]
  hidden = table[batch["input_ids"]]
  for _, layer in sorted(params["decoder"]["layers"].items()):
    x = normalised(hidden, layer["attention_layer_norm"])
    query, key, value = (
      dense(x, layer[name]).reshape(*x.shape[:2], config.num_heads, -1)
      for name in ("query", "key", "value")
    )
    attended = attention_by_hand(query, key, value, batch["segment_ids"], "segment")
    hidden = hidden + dense(attended.reshape(x.shape), layer["attention_output"])
    x = normalised(hidden, layer["output_layer_norm"])
    hidden = hidden + dense(gelu(dense(x, layer["intermediate"])), layer["output"])
  return normalised(hidden, params["final_layer_norm"]) @ table.T


def test_a_model_with_alibi_is_the_one_of_its_paper():
  config = packs.small_gpt2(dtype=jnp.float64, param_dtype=jnp.float64)
  batch = packs.lay_out(packs.random_sequences())
  with jax.enable_x64(True):
    graphdef, params = packs.random_params(config, 0, "causal")
    found = nnx.merge(graphdef, params)(batch)["causal_logits"]
    expected = logits_by_hand(config, params, batch)
  real = batch["segment_ids"] > 0
  np.testing.assert_allclose(found[real], expected[real], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("mask", ["segment", "none"])
def test_attention_equals_loops(mask):
  segment_ids = np.array([[1, 1, 1, 2, 2, 3, 0], [1] * 7])
  rng = np.random.default_rng(0)
  with jax.enable_x64(True):
    query, key, value = rng.standard_normal((3, 2, 7, 3, 5))
    found = attention(
      query, key, value, segment_ids, mask=mask, causal=True, slopes=alibi_slopes(3)
    )
  real = segment_ids > 0
  expected = attention_by_hand(query, key, value, segment_ids, mask)
  np.testing.assert_allclose(np.asarray(found)[real], expected[real], rtol=1e-12)


@pytest.mark.parametrize("implementation", ["cudnn_packed", "splash", "splash_interpret"])
def test_a_kernel_that_takes_no_bias_refuses_alibi(implementation):
  assert not kernels.KERNELS[implementation].takes_bias
  model = make_model(attention_impl=implementation)
  with pytest.raises(AttentionError, match=r"found ALiBi's.* Set positions=learned, or"):
    model(packs.lay_out(packs.random_sequences()))


# ---- the model -------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("fields", "dtype"),
  [
    ({}, jnp.float32),
    ({}, jnp.bfloat16),
    (SPLASH, jnp.float32),
  ],
)
def test_rows_of_padding_stay_finite(fields, dtype):
  config = packs.small_gpt2(num_layers=1, dtype=dtype, **fields)
  graphdef, params = packs.random_params(config, head="causal")
  batch = lay_out([packs.random_sequences([[2]])[0], []], row_length=128)
  batch = jax.tree.map(np.zeros_like, batch)

  @jax.jit
  @jax.value_and_grad
  def run(params):
    outputs = nnx.merge(graphdef, params)(batch)
    total = outputs["causal_logits"].astype(jnp.float32).sum()
    return total + losses.loss(outputs, batch)[0]

  value, gradients = run(params)
  assert np.isfinite(value)
  for x in jax.tree.leaves(gradients):
    assert np.isfinite(np.asarray(x, np.float32)).all()


def test_a_wider_vocabulary_is_never_predicted():
  model = make_model(num_layers=1, vocab_multiple=8)
  logits = model(packs.lay_out(packs.random_sequences()))["causal_logits"]
  assert logits.shape[-1] == 32
  assert (logits[..., packs.VOCAB_SIZE :] == jnp.finfo(jnp.float32).min).all()


def parameters_of(config):
  model = nnx.eval_shape(lambda: Gpt2(config, rngs=nnx.Rngs(0)))
  return nnx.to_pure_dict(nnx.state(model, nnx.Param))


def count(config) -> int:
  return sum(x.size for x in jax.tree.leaves(parameters_of(config)))


@pytest.mark.parametrize(
  ("size", "published"),
  [("small", 124_439_808), ("medium", 354_823_168), ("xl", 1_557_611_200)],
)
def test_sizes_have_as_many_parameters_as_published(size, published):
  whole = Gpt2Config.from_size(size, vocab_size=50257, positions="learned")
  one, two = (count(dataclasses.replace(whole, num_layers=n)) for n in (1, 2))
  assert one + (whole.num_layers - 1) * (two - one) == published


def test_alibi_has_no_parameters():
  assert set(parameters_of(packs.small_gpt2())["embeddings"]) == {"token"}


def test_what_adds_up_in_the_residual_starts_narrower():
  config = packs.small_gpt2(hidden_size=60, intermediate_size=70)
  model = jax.jit(lambda: nnx.state(Gpt2(config, rngs=nnx.Rngs(0)), nnx.Param))()
  for layer in nnx.to_pure_dict(model)["decoder"]["layers"].values():
    width = {k: float(layer[k]["kernel"].std()) for k in layer if "norm" not in k}
    assert width["intermediate"] == pytest.approx(width["query"], rel=0.1)
    for name in ("attention_output", "output"):  # 1 / sqrt(2 x layers)
      assert width[name] == pytest.approx(width["query"] / 2, rel=0.1)


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"positions": "rotary"}, "positions is 'rotary'; expected one of alibi, learned"),
    ({"attention_mask": "token_type"}, "expected one of segment, none"),
    ({"max_position_embeddings": 0}, "max_position_embeddings is 0; expected at least 1"),
  ],
)
def test_bad_configs_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    packs.small_gpt2(**fields)
