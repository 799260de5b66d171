import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from training import norms


def make_tree(seed=0):
  """Arrays of one to three axes, some of a size, one of zeros."""
  rng = np.random.default_rng(seed)
  shapes = {"a": (5, 3), "b": (5, 4), "c": (5,), "d": (2, 5, 3), "e": (3,), "scalar": ()}
  tree = {name: jnp.asarray(rng.standard_normal(shape)) for name, shape in shapes.items()}
  return tree | {"zeros": jnp.zeros((5, 2)), "half": jnp.ones((300, 2), jnp.bfloat16)}


def test_norms_are_those_of_numpy():
  tree = make_tree()
  for name, found in norms.norms(tree).items():
    expected = np.linalg.norm(np.asarray(tree[name], np.float64).ravel())
    np.testing.assert_allclose(found, expected, rtol=1e-6)
  np.testing.assert_allclose(norms.norm(tree), optax.tree.norm(tree), rtol=1e-2)


@pytest.mark.parametrize("most", [0.5, 1e3])
def test_clipping_is_that_of_optax(most):
  tree = {k: v.astype(jnp.float32) for k, v in make_tree().items()}
  found, _ = norms.clip(most).update(tree, optax.EmptyState())
  expected, _ = optax.clip_by_global_norm(most).update(tree, optax.EmptyState())
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


def test_trust_ratios_are_those_of_optax():
  """Also where a norm is 0."""
  updates, params = (
    {k: v.astype(jnp.float32) for k, v in make_tree(seed).items()} for seed in (0, 1)
  )
  params["e"] = jnp.zeros(3)
  states = optax.EmptyState(), params
  found, _ = norms.scale_by_trust_ratio().update(updates, *states)
  expected, _ = optax.scale_by_trust_ratio().update(updates, *states)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)
  assert np.isfinite(np.concatenate([x.ravel() for x in jax.tree.leaves(found)])).all()
