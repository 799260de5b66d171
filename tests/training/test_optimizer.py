"""LAMB against an independent float64 NumPy LAMB, and the packed betas."""

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from model import BertForPreTraining, blocks
from tests import packs
from training import optimizer
from training.optimizer import (
  adamw,
  is_weight_matrix,
  lamb,
  packed_betas,
  sgd,
  warmup_and_decay,
)


def numpy_lamb(params, gradients_of_steps, rates, **options):
  """You et al., algorithm 2, written out; `params` maps a name to (array, is weight)."""
  options = {"bias_correction": True, "trust_ratio": True, **options}
  b1, b2, clip_norm = (options[name] for name in ("b1", "b2", "clip_norm"))
  x = {name: array.copy() for name, (array, _) in params.items()}
  m = {name: np.zeros_like(array) for name, array in x.items()}
  v = {name: np.zeros_like(array) for name, array in x.items()}
  for t, (gradients, rate) in enumerate(zip(gradients_of_steps, rates, strict=True), 1):
    norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
    scale = min(1.0, clip_norm / norm) if clip_norm else 1.0
    for name, (_, is_weight) in params.items():
      g = gradients[name] * scale
      m[name] = b1 * m[name] + (1 - b1) * g
      v[name] = b2 * v[name] + (1 - b2) * g**2
      first, second = m[name], v[name]
      if options["bias_correction"]:
        first, second = first / (1 - b1**t), second / (1 - b2**t)
      update = first / (np.sqrt(second) + options["eps"])
      if is_weight:
        update = update + options["weight_decay"] * x[name]
      if is_weight and options["trust_ratio"]:
        weight_norm = np.linalg.norm(x[name])
        if weight_norm > 0 and np.linalg.norm(update) > 0:
          update = update * weight_norm / np.linalg.norm(update)
      x[name] = x[name] - rate * update
  return x


def updated(optimizer, params, gradients_of_steps):
  """The parameters after an update with each of the gradients."""
  x = jax.tree.map(jnp.asarray, params)
  state = optimizer.init(x)
  for gradients in gradients_of_steps:
    updates, state = optimizer.update(jax.tree.map(jnp.asarray, gradients), state, x)
    x = jax.tree.map(jnp.add, x, updates)
  return x


SHAPES = {"kernel": (5, 3), "embedding": (7, 2), "mlm_bias": (3,)}
SHAPES["layer_norm_scale"] = (2,)
WEIGHTS = ("kernel", "embedding")
DEFAULTS = {"b1": 0.9, "b2": 0.999, "eps": 1e-6, "weight_decay": 0.01, "clip_norm": 1.0}


def run(make, options):
  """10 steps in float64: the parameters of our optimizer, and of the NumPy LAMB."""
  rng = np.random.default_rng(0)
  params = {name: rng.standard_normal(shape) for name, shape in SHAPES.items()}
  params["mlm_bias"][:] = 0  # as at the start of training: a norm of 0
  gradients = [
    {name: rng.standard_normal(shape) for name, shape in SHAPES.items()} for _ in range(10)
  ]
  schedule = warmup_and_decay(peak=0.1, warmup_steps=3, total_steps=10)
  with jax.enable_x64(True):
    x = updated(make(schedule), params, gradients)
    rates = [float(schedule(jnp.int32(t))) for t in range(10)]  # float32, as in the update
  arrays = {name: (array, name in WEIGHTS) for name, array in params.items()}
  return x, numpy_lamb(arrays, gradients, rates, **options)


def assert_same(found, expected):
  for name, array in expected.items():
    np.testing.assert_allclose(found[name], array, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
  "changed",
  [
    {},
    {"b1": 0.8, "b2": 0.99},
    {"eps": 0.3},
    {"weight_decay": 0.7},
    {"clip_norm": 0.0},
    {"bias_correction": False},
  ],
  ids=str,
)
def test_lamb_equals_numpy_over_10_steps(changed):
  options = DEFAULTS | changed
  options["b1"], options["b2"] = packed_betas(options["b1"], options["b2"], 2.08)
  found, expected = run(lambda schedule: lamb(schedule, **options), options)
  assert_same(found, expected)
  if changed:  # and the option does something
    _, without = run(lambda schedule: lamb(schedule, **options), DEFAULTS)
    assert any(abs(without[name] - expected[name]).max() > 1e-6 for name in expected)


def test_lambs_defaults_are_those_of_bert():
  found, expected = run(lamb, DEFAULTS)
  assert_same(found, expected)


@pytest.mark.parametrize(
  ("dtype", "most"),
  [("float64", 1e-13), pytest.param("float32", 1e-6, marks=pytest.mark.slow)],
)
def test_lamb_is_that_of_optax_over_20_steps(dtype, most):
  """On the parameters of a BERT, where both are the same algorithm.

  `optax.lamb` always corrects the bias of the momenta and never clips gradients, so ours
  does the same here. By default its weight decay is 0. It scales every tensor by the trust
  ratio, also biases and LayerNorm, for which ours is plain Adam: so they get `optax.adam`.
  """
  options = {"b1": 0.81, "b2": 0.998, "eps": 1e-6}  # not the defaults
  ours = lamb(0.01, weight_decay=0.02, clip_norm=0.0, bias_correction=True, **options)
  theirs = optax.multi_transform(
    {
      True: optax.lamb(0.01, weight_decay=0.02, **options),
      False: optax.adam(0.01, **options),
    },
    is_weight_matrix,
  )
  everywhere = optax.lamb(0.01, weight_decay=0.02, mask=is_weight_matrix, **options)
  rng = np.random.default_rng(0)
  params = packs.random_params(packs.small_config())[1]
  params = jax.tree.map(lambda x: np.asarray(x, dtype), params)
  gradients = [
    jax.tree.map(lambda x: rng.standard_normal(x.shape).astype(dtype), params)
    for _ in range(20)
  ]
  with jax.enable_x64(dtype == "float64"), jax.numpy_dtype_promotion("standard"):
    found, expected, other = (
      updated(optimizer, params, gradients) for optimizer in (ours, theirs, everywhere)
    )
  assert {str(x.dtype) for x in jax.tree.leaves(found)} == {dtype}

  def apart(a, b) -> list[float]:
    return jax.tree.leaves(jax.tree.map(lambda x, y: np.abs(np.subtract(x, y)).max(), a, b))

  assert min(apart(expected, params)) > 0.01  # every tensor has moved
  assert max(apart(found, expected)) < most
  assert max(apart(found, other)) > 0.01  # what the docstring says of biases


@pytest.mark.parametrize("bias_correction", [True, False])
def test_adamw_is_lamb_without_a_trust_ratio(bias_correction):
  options = DEFAULTS | {"bias_correction": bias_correction}
  found, expected = run(
    lambda schedule: adamw(schedule, **options), options | {"trust_ratio": False}
  )
  assert_same(found, expected)


def test_each_layer_has_a_trust_ratio_of_its_own():
  """No tensor of the model holds several layers: its norm would be theirs together."""
  shapes = []
  for num_layers in (1, 3):
    config = packs.small_config(num_layers=num_layers)
    bert = nnx.eval_shape(lambda c=config: BertForPreTraining(c, rngs=nnx.Rngs(0)))
    params = nnx.to_pure_dict(nnx.state(bert, nnx.Param))
    shapes.append({x.shape for x in jax.tree.leaves(params)})
  assert shapes[0] == shapes[1]  # more layers are more tensors, not larger ones


ADAMW = {"eps": 1e-6, "weight_decay": 0.1, "clip_norm": 0.0}


@pytest.mark.parametrize("p", [2, 7])
@pytest.mark.parametrize(
  ("make", "momenta"),
  [
    (lamb, ["mu", "nu"]),
    (lambda rate, **betas: lamb(rate, bias_correction=False, **betas), ["mu", "nu"]),
    (lambda rate, **betas: adamw(rate, **ADAMW, **betas), ["mu", "nu"]),
    (lambda rate, b1, b2: sgd(rate, b1=b1, weight_decay=0.1, clip_norm=1.0), ["ema"]),
  ],
  ids=["lamb", "without bias correction", "adamw", "sgd"],
)
def test_one_step_with_packed_betas_equals_p_steps_with_the_same_gradient(make, momenta, p):
  """Theorem D.1 for the optimizers' own momentum and velocity, from wherever they are."""
  rng = np.random.default_rng(p)
  b1, b2 = packed_betas(0.9, 0.999, p)
  with jax.enable_x64(True):
    x, before, g = ({"kernel": jnp.asarray(a)} for a in rng.standard_normal((3, 5, 3)))
    few, many = make(0.1, b1=0.9, b2=0.999), make(0.1, b1=b1, b2=b2)
    _, state = few.update(before, few.init(x), x)  # the momenta are not 0
    _, once = many.update(g, state, x)
    for _ in range(p):
      _, state = few.update(g, state, x)
  for name in momenta:
    found, expected = (optax.tree.get(s, name)["kernel"] for s in (once, state))
    assert expected.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


def test_sgd_moves_by_the_average_of_the_gradients():
  rng = np.random.default_rng(1)
  x = {"kernel": rng.standard_normal((5, 3)), "bias": rng.standard_normal(3)}
  gradients = [jax.tree.map(lambda a: rng.standard_normal(a.shape), x) for _ in range(4)]
  with jax.enable_x64(True):
    optimizer = sgd(0.3, b1=0.8, weight_decay=0.1, clip_norm=0.0)
    found = updated(optimizer, x, gradients)
  for name, decay in (("kernel", 0.1), ("bias", 0.0)):
    m, expected = np.zeros_like(x[name]), x[name]
    for g in gradients:
      m = 0.8 * m + 0.2 * g[name]
      expected = expected - 0.3 * (m + decay * expected)
    np.testing.assert_allclose(found[name], expected, rtol=1e-7)  # 0.3 is a float32


def test_decay_and_trust_ratio_are_for_every_kernel_and_embedding_of_bert_alone():
  """What a parameter is comes from the kind of module that holds it, not from its name."""
  config = packs.small_config(num_layers=3)
  bert = nnx.eval_shape(lambda: BertForPreTraining(config, rngs=nnx.Rngs(0)))
  adapted = {
    blocks.Linear: {"kernel": True, "bias": False},
    blocks.Embed: {"embedding": True},
    blocks.LayerNorm: {"scale": False, "bias": False},
    BertForPreTraining: {"mlm_bias": False},
  }
  expected = {
    (*path, name): value
    for path, module in nnx.iter_modules(bert)
    for name, value in adapted.get(type(module), {}).items()
  }
  mask = is_weight_matrix(nnx.to_pure_dict(nnx.state(bert, nnx.Param)))
  assert nnx.traversals.flatten_mapping(mask) == expected
  # Embeddings of token, position and type; in each layer query, key, value, output and
  # two of the feed-forward; MLM transform, pooler and NSP.
  assert sum(expected.values()) == 3 + 6 * 3 + 3
  assert len(expected) - sum(expected.values()) == 2 + (6 + 2 * 2) * 3 + 1 + 2 + 1 + 2


@pytest.mark.parametrize("decay", ["linear", "sqrt"])
@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_trapezoidal_schedule_stays_at_the_peak_until_its_last_part(decay, share):
  options = {"decay": decay, "decay_share": share}
  rate = warmup_and_decay(peak=3.0, warmup_steps=5, total_steps=20, **options)
  rates = np.array([float(rate(t)) for t in range(21)])
  np.testing.assert_allclose(rates[:5], 3.0 * np.arange(1, 6) / 5, rtol=1e-6)
  falling = round(16 * share)
  left = np.arange(falling) / max(falling, 1)
  lost = np.sqrt(left) if decay == "sqrt" else left
  expected = [*[3.0] * (16 - falling), *3.0 * (1 - lost)]
  np.testing.assert_allclose(rates[4:20], expected, rtol=1e-5)
  assert (rates[20] == 0) == (share > 0)
  at_once = warmup_and_decay(peak=3.0, warmup_steps=0, total_steps=20, **options)
  assert float(at_once(0)) == 3.0


def test_updates_are_clipped_tensor_by_tensor():
  """The first update of Adam has an RMS of about 1, with and without a large gradient."""
  params = {"kernel": np.zeros((3, 5)), "bias": np.zeros(5)}
  rng = np.random.default_rng(0)
  small, large = (
    {k: s * rng.standard_normal(x.shape) for k, x in params.items()} for s in (1, 50)
  )
  options = {"b1": 0.9, "b2": 0.99, "eps": 1e-6, "weight_decay": 0.0, "clip_norm": 0.0}
  moves = {}
  for clip in (0.0, 0.3):
    optimizer = adamw(1.0, clip_update=clip, **options)
    state = optimizer.init(params)
    for gradients in (small, large):
      update, state = optimizer.update(gradients, state, params)
    moves[clip] = update
  rms = lambda x: np.sqrt(np.mean(np.square(x)))  # noqa: E731
  for name in params:
    free, clipped = moves[0.0][name], moves[0.3][name]
    assert rms(free) > 0.5
    np.testing.assert_allclose(clipped, 0.3 * free / rms(free), rtol=1e-5)


def make_tree(seed=0):
  """Arrays of one to three axes, some of a size, one of zeros."""
  rng = np.random.default_rng(seed)
  shapes = {"a": (5, 3), "b": (5, 4), "c": (5,), "d": (2, 5, 3), "e": (3,), "scalar": ()}
  tree = {name: jnp.asarray(rng.standard_normal(shape)) for name, shape in shapes.items()}
  return tree | {"zeros": jnp.zeros((5, 2)), "half": jnp.ones((300, 2), jnp.bfloat16)}


def test_norms_are_those_of_numpy():
  tree = make_tree()
  for name, found in optimizer.norms(tree).items():
    expected = np.linalg.norm(np.asarray(tree[name], np.float64).ravel())
    np.testing.assert_allclose(found, expected, rtol=1e-6)
  each = jnp.stack(jax.tree.leaves(optimizer.norms(tree)))
  np.testing.assert_allclose(optimizer.norm(tree), np.linalg.norm(each), rtol=1e-6)


@pytest.mark.parametrize("most", [0.5, 1e3])
def test_clipping_is_that_of_optax(most):
  tree = {k: v.astype(jnp.float32) for k, v in make_tree().items()}
  found, _ = optimizer._clip_by_norm(most).update(tree, optax.EmptyState())
  expected, _ = optax.clip_by_global_norm(most).update(tree, optax.EmptyState())
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


def test_trust_ratios_are_those_of_optax():
  """Also where a norm is 0."""
  updates, params = (
    {k: v.astype(jnp.float32) for k, v in make_tree(seed).items()} for seed in (0, 1)
  )
  params["e"] = jnp.zeros(3)
  states = optax.EmptyState(), params
  found, _ = optimizer._scale_by_trust_ratio().update(updates, *states)
  expected, _ = optax.scale_by_trust_ratio().update(updates, *states)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)
  assert np.isfinite(np.concatenate([x.ravel() for x in jax.tree.leaves(found)])).all()
