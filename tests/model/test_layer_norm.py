import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from model.layer_norm import LayerNorm

FEATURES = 14


def make(kind, dtype, use_bias=True):
  """A layer of Flax's or ours, with random scale and bias in at least float32."""
  options = {} if kind is LayerNorm else {"use_fast_variance": False}
  layer = kind(FEATURES, dtype=dtype, use_bias=use_bias, rngs=nnx.Rngs(0), **options)
  rng = np.random.default_rng(0)
  wide = np.promote_types(dtype, np.float32)
  draw = lambda x: jnp.asarray(rng.standard_normal(x.shape), wide)  # noqa: E731
  nnx.update(layer, jax.tree.map(draw, nnx.state(layer)))
  return layer


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize(
  ("dtype", "limit"), [("float64", 1e-13), ("float32", 2e-6), ("bfloat16", 2e-2)]
)
def test_outputs_and_gradients_are_those_of_flax_in_float64(dtype, limit, use_bias):
  rng = np.random.default_rng(1)
  x, weights = 3 + rng.standard_normal((2, 5, 7, FEATURES))

  def results(kind, dtype):
    graph, params = nnx.split(make(kind, dtype, use_bias))
    given = jnp.asarray(x, dtype)
    found, back = jax.vjp(lambda p, v: nnx.merge(graph, p)(v), params, given)
    assert found.dtype == jnp.dtype(dtype)
    pulled = back(jnp.asarray(weights, dtype))
    return [np.asarray(a, np.float64) for a in jax.tree.leaves((found, pulled))]

  with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
    expected = results(nnx.LayerNorm, "float64")
    found = results(LayerNorm, dtype)
  assert len(found) == 3 + use_bias
  for a, b in zip(found, expected, strict=True):
    assert np.linalg.norm(a - b) <= limit * np.linalg.norm(b)


def test_it_keeps_its_digits_far_from_zero():
  """The mean of squares less the square of the mean would be all cancellation."""
  x = (1e4 + np.random.default_rng(0).standard_normal((7, FEATURES))).astype(np.float32)
  wide = x.astype(np.float64)
  expected = (wide - wide.mean(-1, keepdims=True)) / wide.std(-1, keepdims=True)
  layer = make(LayerNorm, "float32")
  bias, scale = (np.asarray(param) for param in (layer.bias, layer.scale))
  found = (np.asarray(layer(x)) - bias) / scale
  np.testing.assert_allclose(found, expected, atol=2e-2)
