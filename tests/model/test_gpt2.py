"""What GPT-2 alone has: ALiBi, targets within a sequence, a narrow start."""

import math

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import Gpt2, blocks
from model.attention import alibi_slopes, attention
from model.config import AttentionSpec
from tests import packs


def make_model(**fields):
  return packs.random_model(packs.small_gpt2(**fields), head="causal")


def slopes_of_the_authors(heads):
  """As the code of the ALiBi paper has it."""
  if math.log2(heads).is_integer():
    start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
    return [start * start**i for i in range(heads)]
  power = 2 ** math.floor(math.log2(heads))
  more = slopes_of_the_authors(2 * power)[0::2][: heads - power]
  return slopes_of_the_authors(power) + more


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 7, 8, 12, 16, 25, 33])
def test_slopes_are_those_of_the_authors(heads):
  expected = slopes_of_the_authors(heads)
  np.testing.assert_allclose(alibi_slopes(heads), expected, rtol=1e-14)


def attention_by_hand(query, key, value, segment_ids, *, mask="segment"):
  """softmax(q k / sqrt(H) - slope x distance) v, with plain loops."""
  rows, length, heads, size = query.shape
  slopes = slopes_of_the_authors(heads)
  found = np.zeros(query.shape)
  for row, i, head in np.ndindex(rows, length, heads):
    ids = segment_ids[row]
    scores = {}
    for j in range(i + 1):
      if ids[j] > 0 and (mask == "none" or ids[i] == ids[j]):
        product = sum(query[row, i, head] * key[row, j, head])
        scores[j] = product / math.sqrt(size) - slopes[head] * (i - j)
    total = sum(map(math.exp, scores.values()))
    for j, score in scores.items():
      found[row, i, head] += math.exp(score) / total * value[row, j, head]
  return found


@pytest.mark.parametrize("mask", ["segment", "none"])
def test_attention_equals_loops(mask):
  segment_ids = np.array([[1, 1, 1, 2, 2, 3, 0], [1] * 7])
  spec = AttentionSpec(mask, causal=True, slopes=alibi_slopes(3))
  with jax.enable_x64(True):
    query, key, value = np.random.default_rng(0).standard_normal((3, 2, 7, 3, 5))
    found = np.asarray(attention(query, key, value, segment_ids, spec=spec))
  real = segment_ids > 0
  expected = attention_by_hand(query, key, value, segment_ids, mask=mask)
  np.testing.assert_allclose(found[real], expected[real], rtol=1e-12)


def test_a_model_with_alibi_attends_as_its_paper_says(monkeypatch):
  """The rest of the model is that of Hugging Face; see `test_hf`."""
  batch = packs.lay_out(packs.random_sequences())
  real = batch["segment_ids"] > 0
  with jax.enable_x64(True):
    config = packs.small_gpt2(dtype=jnp.float64, param_dtype=jnp.float64)
    graphdef, params = packs.random_params(config, head="causal")
    found = nnx.merge(graphdef, params)(batch)["causal_logits"]
    by_hand = lambda *inputs, **_: attention_by_hand(*inputs)  # noqa: E731
    monkeypatch.setattr(blocks, "attention", by_hand)
    expected = nnx.merge(graphdef, params)(batch)["causal_logits"]
  assert set(params["embeddings"]) == {"token"}  # no table of positions
  np.testing.assert_allclose(found[real], expected[real], rtol=1e-10, atol=1e-10)


def test_what_adds_up_in_the_residual_starts_narrower():
  config = packs.small_gpt2(hidden_size=60, intermediate_size=70)
  model = jax.jit(lambda: nnx.state(Gpt2(config, rngs=nnx.Rngs(0)), nnx.Param))()
  for layer in nnx.to_pure_dict(model)["decoder"]["layers"].values():
    width = {k: float(layer[k]["kernel"].std()) for k in layer if "norm" not in k}
    assert width["intermediate"] == pytest.approx(width["query"], rel=0.1)
    for name in ("attention_output", "output"):  # 1 / sqrt(2 x layers)
      assert width[name] == pytest.approx(width["query"] / 2, rel=0.1)
