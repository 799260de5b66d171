import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.dropout import dropout, philox
from training.mesh import make_mesh, split_rows

KEY = jax.random.key(3)


@pytest.mark.parametrize("shape", [(64, 5, 31), (3, 2, 8, 1024), (9973,)])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_the_rate_is_kept_and_the_mean_too(shape, rate):
  found = np.asarray(dropout(jnp.ones(shape), rate, KEY))
  kept = found > 0
  assert kept.mean() == pytest.approx(1 - rate, abs=4 * (0.25 / kept.size) ** 0.5)
  np.testing.assert_allclose(found[kept], 1 / (1 - rate), rtol=2e-4)


@pytest.mark.parametrize("rate", [0.1, 0.15])
def test_the_mean_is_kept_in_bfloat16(rate):
  """1 / 0.9 is 0.16 % lower in bfloat16."""
  x = jax.random.uniform(jax.random.key(0), (512, 1024), minval=1, maxval=2)
  x = x.astype(jnp.bfloat16)
  found = np.asarray(dropout(x, rate, KEY), np.float64)
  kept = np.asarray(x, np.float64)[found > 0]
  assert found.sum() / kept.sum() == pytest.approx(1 / (1 - rate), rel=2e-4)


def test_numbers_are_dropped_independently():
  """Of neighbours in each direction, and of masks with other keys."""
  mask = np.asarray(dropout(jnp.ones((256, 512)), 0.5, KEY)) > 0
  other = np.asarray(dropout(jnp.ones((256, 512)), 0.5, jax.random.key(4))) > 0
  pairs = [
    (mask, other),
    *((mask, np.roll(mask, n, axis)) for n in (1, 2, 64) for axis in (0, 1)),
  ]
  for a, b in pairs:
    assert (a == b).mean() == pytest.approx(0.5, abs=0.01)


def test_words_are_those_of_jax():
  """JAX's own generator gives the exclusive or of the four words."""
  key = jax.random.key(7, impl="philox4x32")
  places = jnp.arange(15, dtype=jnp.uint32).reshape(5, 3)
  a, b, c, d = philox(jax.random.key_data(key), places)
  assert ((a ^ b ^ c ^ d) == jax.random.bits(key, (5, 3))).all()


@pytest.mark.parametrize("devices", [2, 4])
def test_the_mask_is_the_same_on_any_number_of_devices(devices):
  drop = lambda x: dropout(x, 0.1, KEY)  # noqa: E731
  rows = split_rows(make_mesh(devices))
  x = jnp.ones((8, 7, 33))
  alone = jax.jit(drop)(x)
  together = jax.jit(drop, in_shardings=rows, out_shardings=rows)(x)
  assert len(together.sharding.device_set) == devices
  assert (alone == together).all()


def test_gradients_are_dropped_like_numbers_and_no_words_are_kept_for_them():
  x = jnp.ones((4, 40), jnp.bfloat16)
  kept, pull_back = jax.vjp(lambda x: dropout(x, 0.1, KEY), x)
  (gradient,) = pull_back(x)
  assert (gradient == kept).all()
  saved = {leaf.dtype.name for leaf in jax.tree.leaves(pull_back) if leaf.size > 1}
  assert saved - {"bfloat16"} == {"bool"}


@pytest.mark.parametrize(("rate", "key"), [(0.0, KEY), (0.5, None)])
def test_without_a_rate_or_a_key_nothing_is_dropped(rate, key):
  x = jnp.arange(5.0)
  assert dropout(x, rate, key) is x
