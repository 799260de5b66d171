import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import losses
from model.products import fp8_product, linear_product
from model.testing import assert_no_cross_contamination
from tests import packs

SHAPES = (3, 5, 64), (64, 32)


def arrays(dtype=jnp.float32):
  rng = np.random.default_rng(0)
  return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in SHAPES]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_products_of_8_bits_are_near_the_exact_ones(dtype):
  """E4M3 has 4 significant bits, E5M2 has 3; errors average out over a sum."""
  x, kernel = arrays(dtype)
  weights = jnp.asarray(np.random.default_rng(1).standard_normal((3, 5, 32)), dtype)
  found, back = jax.vjp(fp8_product, x, kernel)
  expected, exact_back = jax.vjp(linear_product, x, kernel)
  assert found.dtype == dtype
  pairs = zip((found, *back(weights)), (expected, *exact_back(weights)), strict=True)
  for name, limit, (a, b) in zip("yxk", (0.04, 0.08, 0.01), pairs, strict=True):
    a, b = (np.asarray(v, np.float64) for v in (a, b))
    assert np.linalg.norm(a - b) < limit * np.linalg.norm(b), name
    assert name == "k" or np.linalg.norm(a - b) > 1e-3 * np.linalg.norm(b)


def test_a_token_is_rounded_alike_whatever_else_is_in_the_batch():
  x, kernel = arrays()
  loud = x.at[1:].multiply(1e4)
  assert (fp8_product(loud, kernel)[0] == fp8_product(x, kernel)[0]).all()
  back = lambda x, g: jax.vjp(fp8_product, x, kernel)[1](g)[0]  # noqa: E731
  gradient = jnp.ones((3, 5, 32))
  assert (back(loud, gradient.at[1:].set(1e4))[0] == back(x, gradient)[0]).all()


def test_zeros_and_large_numbers_stay_finite():
  x, kernel = arrays()
  for values in (0 * x, 1e30 * x, 1e-30 * x, 1e-34 * x, 1e-36 * x):
    found, back = jax.vjp(fp8_product, values, kernel)
    assert jnp.isfinite(found).all()
    assert all(jnp.isfinite(part).all() for part in back(0 * found))


def test_a_model_with_8_bits_keeps_sequences_apart_and_learns():
  """And its loss is near that of the exact model."""
  packs_ = packs.random_sequences()
  batch = packs.lay_out(packs_)
  fields = {"hidden_size": 16, "intermediate_size": 32}
  found, exact = (
    packs.random_model(packs.small_config(products=name, **fields))
    for name in ("fp8", "dtype")
  )
  assert_no_cross_contamination(found, batch)
  value = lambda model: losses.loss(model(batch), batch)[0]  # noqa: E731
  assert value(found) != value(exact)
  assert value(found) == pytest.approx(float(value(exact)), rel=0.05)
