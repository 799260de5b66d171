import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import products
from model.testing import relative_difference

DTYPES = [jnp.float32, jnp.float64, jnp.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(2, 64, 128, 4, 64), (3, 5, 7, 2, 3), (1, 1, 1, 1, 1)])
def test_products_of_attention_are_rounded_once(sizes, dtype):
  """XLA on a CPU lacks some products of bfloat16 of this size, in some orders."""
  batch, queries, keys, heads, width = sizes
  of_query, of_key = (batch, queries, heads, width), (batch, keys, heads, width)
  of_scores = batch, heads, queries, keys
  with jax.enable_x64(dtype == jnp.float64):
    wide = np.promote_types(dtype, np.float32)
    for function, equation, shapes in (
      (products.attention_scores, "BQNH,BKNH->BNQK", (of_query, of_key, of_scores)),
      (products.weighted_values, "BNQK,BKNH->BQNH", (of_scores, of_key, of_query)),
    ):
      rng = np.random.default_rng(0)
      arrays = [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]

      def with_gradients(of, a, b, upstream):
        found, back = jax.vjp(of, a, b)
        return found, *back(upstream.astype(found.dtype))

      plain = functools.partial(jnp.einsum, equation, precision="highest")
      found = jax.jit(with_gradients, static_argnums=0)(function, *arrays)
      expected = with_gradients(plain, *(x.astype(wide) for x in arrays))
      assert [x.dtype for x in found] == [wide, dtype, dtype]
      for ours, theirs in zip(found, expected, strict=True):
        gap = relative_difference(ours.astype(wide), theirs)
        assert gap < 8 * float(jnp.finfo(ours.dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_the_vocabulary_are_those_of_the_plain_product(dtype):
  def plain(hidden, embedding, bias):
    return jnp.einsum("BPD,VD->BPV", hidden, embedding) + bias[None, None]

  with jax.enable_x64(dtype == jnp.float64):
    rng = np.random.default_rng(0)
    shapes = [(3, 5, 7), (11, 7), (11,), (3, 5, 11)]
    *given, upstream = (jnp.asarray(rng.standard_normal(s), dtype) for s in shapes)
    found, back = jax.vjp(products.vocabulary_products, *given)
    expected, plain_back = jax.vjp(plain, *given)
    np.testing.assert_array_equal(found, expected)
    for ours, theirs in zip(back(upstream), plain_back(upstream), strict=True):
      assert ours.dtype == dtype
      assert relative_difference(ours, theirs) < 8 * float(jnp.finfo(dtype).eps)


@pytest.mark.skipif(
  not products.multiplies_bfloat16(), reason="needs a CPU with products of bfloat16"
)
@pytest.mark.parametrize("shape", [(3, 5, 7, 11), (2, 64, 128, 257), (1, 1, 1, 1)])
def test_products_of_bfloat16_are_rounded_once(shape):
  """Linear layers and the vocabulary, with gradients, from sums in float32."""
  batch, rows, width, out = shape
  rng = np.random.default_rng(0)
  shapes = [(batch, rows, width), (width, out), (batch, rows, out)]
  x, kernel, upstream = (jnp.asarray(rng.standard_normal(s), jnp.bfloat16) for s in shapes)

  def both(x, kernel):
    linear = products.linear_product(x, kernel)
    return linear, products.vocabulary_products(x, kernel.T, None)

  def with_gradients(function, x, kernel, upstream):
    found, back = jax.vjp(function, x, kernel)
    return found, *back((upstream, upstream))

  def plain(x, kernel):
    return (jnp.einsum("BPI,IO->BPO", x, kernel),) * 2

  found = jax.jit(with_gradients, static_argnums=0)(both, x, kernel, upstream)
  wide = (array.astype(jnp.float32) for array in (x, kernel, upstream))
  expected = with_gradients(plain, *wide)
  assert {array.dtype for array in jax.tree.leaves(found)} == {jnp.dtype("bfloat16")}
  jax.tree.map(
    lambda ours, theirs: np.testing.assert_allclose(
      ours, theirs, rtol=2e-2, atol=1e-2 * float(jnp.abs(theirs).max())
    ),
    found,
    expected,
  )
