"""LAMB against an independent float64 NumPy LAMB, and the packed betas."""

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import BertForPreTraining
from tests import packs
from training.optimizer import is_weight_matrix, lamb, packed_betas, warmup_linear_decay


def numpy_lamb(params, gradients_of_steps, rates, *, b1, b2, eps, weight_decay, clip_norm):
  """You et al., algorithm 2, written out; `params` maps a name to (array, adapted)."""
  x = {name: array.copy() for name, (array, _) in params.items()}
  m = {name: np.zeros_like(array) for name, array in x.items()}
  v = {name: np.zeros_like(array) for name, array in x.items()}
  for t, (gradients, rate) in enumerate(zip(gradients_of_steps, rates, strict=True), 1):
    norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
    for name, (_, adapted) in params.items():
      g = gradients[name] * min(1.0, clip_norm / norm)
      m[name] = b1 * m[name] + (1 - b1) * g
      v[name] = b2 * v[name] + (1 - b2) * g**2
      update = (m[name] / (1 - b1**t)) / (np.sqrt(v[name] / (1 - b2**t)) + eps)
      if adapted:
        update = update + weight_decay * x[name]
        update = update * np.linalg.norm(x[name]) / np.linalg.norm(update)
      x[name] = x[name] - rate * update
  return x


@pytest.mark.parametrize("clip_norm", [1.0, 1e6])
@pytest.mark.parametrize("packing_factor", [1.0, 2.08])
def test_lamb_equals_numpy_over_10_steps(clip_norm, packing_factor):
  rng = np.random.default_rng(0)
  adapted = {
    "kernel": (5, 3),
    "embedding": (7, 2),
    "mlm_bias": (3,),
    "layer_norm_scale": (2,),
  }
  params = {name: rng.standard_normal(shape) for name, shape in adapted.items()}
  gradients = [
    {name: rng.standard_normal(shape) for name, shape in adapted.items()} for _ in range(10)
  ]
  b1, b2 = packed_betas(0.9, 0.999, packing_factor)
  options = {"b1": b1, "b2": b2, "eps": 1e-6, "weight_decay": 0.01, "clip_norm": clip_norm}
  schedule = warmup_linear_decay(peak=0.1, warmup_steps=3, total_steps=10)
  with jax.enable_x64(True):
    optimizer = lamb(schedule, **options)
    x = jax.tree.map(jnp.asarray, params)
    state = optimizer.init(x)
    for g in gradients:
      updates, state = optimizer.update(g, state, x)
      x = jax.tree.map(jnp.add, x, updates)
    rates = [float(schedule(jnp.int32(t))) for t in range(10)]  # float32, as in the update
  expected = numpy_lamb(
    {name: (array, name in ("kernel", "embedding")) for name, array in params.items()},
    gradients,
    rates,
    **options,
  )
  for name, array in expected.items():
    np.testing.assert_allclose(x[name], array, rtol=1e-12, atol=1e-14)


def test_decay_and_trust_ratio_are_for_every_kernel_and_embedding_of_bert_alone():
  """What a parameter is comes from the kind of module that holds it, not from its name."""
  config = packs.small_config(num_layers=3)
  bert = nnx.eval_shape(lambda: BertForPreTraining(config, rngs=nnx.Rngs(0)))
  adapted = {
    nnx.Linear: {"kernel": True, "bias": False},
    nnx.Embed: {"embedding": True},
    nnx.LayerNorm: {"scale": False, "bias": False},
    BertForPreTraining: {"mlm_bias": False},
  }
  expected = {
    (*path, name): value
    for path, module in nnx.iter_modules(bert)
    for name, value in adapted.get(type(module), {}).items()
  }
  params = nnx.to_pure_dict(nnx.state(bert, nnx.Param))
  mask = is_weight_matrix(params)
  found = {
    tuple(key.key for key in path): value
    for path, value in jax.tree_util.tree_leaves_with_path(mask)
  }
  assert found == expected
  # Embeddings of token, position and type; in each layer query, key, value, output and
  # two of the feed-forward; MLM transform, pooler and NSP.
  assert sum(found.values()) == 3 + 6 * 3 + 3
  assert len(found) - sum(found.values()) == 2 + (6 + 2 * 2) * 3 + 1 + 2 + 1 + 2


@pytest.mark.parametrize("p", [1, 2, 3, 7])
def test_packed_betas_move_the_momenta_as_far_as_p_equal_steps(p):
  """Theorem D.1, for momentum and velocity."""
  rng = np.random.default_rng(p)
  m, v, g = rng.standard_normal((3, 11))
  b1, b2 = packed_betas(0.9, 0.999, p)
  once = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
  for _ in range(p):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
  np.testing.assert_allclose(once, (m, v), rtol=1e-12, atol=1e-15)


def test_the_schedule_rises_to_the_peak_and_falls_to_zero():
  rate = warmup_linear_decay(peak=3.0, warmup_steps=5, total_steps=20)
  rates = np.array([float(rate(t)) for t in range(21)])
  np.testing.assert_allclose(rates[:5], 3.0 * np.arange(1, 6) / 5, rtol=1e-6)
  np.testing.assert_allclose(np.diff(rates[4:]), -3.0 / 16, rtol=1e-5)
  assert rates[20] == 0
  assert float(warmup_linear_decay(peak=3.0, warmup_steps=0, total_steps=20)(0)) == 3.0
