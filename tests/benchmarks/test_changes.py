"""Changes that wait for a GPU compute what the step computes as it is."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from benchmarks import changes
from benchmarks.changes import CHANGES, OF_CUDNN_PACKED
from benchmarks.fused_layer_norm import BLOCKS, ROWS, residual_layer_norm
from model import attention
from model.testing import relative_difference
from tests import packs
from tests.model.test_attention import HOPPER, as_if_on
from tests.model.test_bert import losses_of
from tests.model.test_lowering import CUDNN, step_for


@pytest.mark.parametrize("name", [name for name in CHANGES if name not in OF_CUDNN_PACKED])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_losses_and_gradients_are_those_of_the_step_as_it_is(name, dtype):
  config = packs.small_config(dtype=dtype)
  graphdef, params = packs.random_params(config)
  batch = packs.lay_out(packs.random_sequences(packs.PACKS))

  untraced: Any = losses_of

  def trace():
    def loss(params):  # a new function each time, so that JAX traces it again
      return untraced.__wrapped__(params, graphdef, batch, "sequence")[0]

    return jax.jit(jax.value_and_grad(loss)).trace(params).lower()

  as_it_is = trace()
  with CHANGES[name]():
    changed = trace()
  assert changed.as_text() != as_it_is.as_text()
  (loss, gradients), (other, others) = (x.compile()(params) for x in (as_it_is, changed))
  limit = {"float32": 5e-4, "bfloat16": 3e-2}[dtype]
  assert abs(loss - other) < limit * float(loss)
  # Compare all gradients at once: those of the keys' biases are zero up to rounding errors.
  ours, theirs = (
    np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])
    for tree in (others, gradients)
  )
  assert relative_difference(ours, theirs) < limit


@pytest.mark.parametrize("width", [48, 64])  # 48 is no power of 2
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_fused_kernel_is_a_residual_sum_and_a_layer_norm(width, dtype):
  tokens, rng = 2 * ROWS * BLOCKS, np.random.default_rng(0)
  shapes = [(tokens, width), (width,), (tokens, width), (width,), (width,)]
  arrays = [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]
  product, residual, upstream = (
    x.astype(dtype) for x in (arrays[0], arrays[2], jnp.flip(arrays[0]))
  )
  given = product, arrays[1], residual, *arrays[3:]

  def plain(product, bias, residual, scale, offset):
    wide = product.astype(jnp.float32) + bias[None] + residual.astype(jnp.float32)
    total = wide.astype(dtype).astype(jnp.float32)
    normal = jax.nn.standardize(total, axis=-1, epsilon=1e-6)
    return (normal * scale[None] + offset[None]).astype(dtype)

  found, back = jax.vjp(lambda *x: residual_layer_norm(*x, 1e-6), *given)
  expected, plain_back = jax.vjp(plain, *given)
  limit = 1e-5 if dtype == jnp.float32 else 1e-2
  for ours, theirs in zip(
    (found, *back(upstream)), (expected, *plain_back(upstream)), strict=True
  ):
    assert ours.dtype == theirs.dtype
    gap = relative_difference(ours.astype(jnp.float32), theirs.astype(jnp.float32))
    assert gap < limit


@pytest.mark.skipif(
  jax.__version_info__ >= (0, 12), reason="JAX 0.12 lowers Triton only where there is a GPU"
)
def test_the_fused_kernel_lowers_for_a_gpu(monkeypatch):
  as_if_on(monkeypatch, HOPPER)
  config = packs.small_config(hidden_size=96, num_heads=2, attention_impl="xla")
  with CHANGES["bias, residual and LayerNorm in one kernel"]():
    text = step_for("cuda", monkeypatch, config)
  kernels = re.findall(r"custom_call @__gpu\$xla\.gpu\.triton", text)
  assert len(kernels) == 2 * 2 * config.num_layers  # forward and backward, two in a layer


def test_gelu_is_exact_to_bfloat16_in_its_tail_too():
  x = jnp.linspace(-9, 9, 20_001)
  exact = np.asarray(x, np.float64) * scipy.stats.norm.cdf(np.asarray(x, np.float64))
  found = np.asarray(changes.gelu(x), np.float64)
  np.testing.assert_allclose(found, exact, rtol=2.5e-4, atol=1e-30)
  slopes = scipy.stats.norm.cdf(x) + np.asarray(x) * scipy.stats.norm.pdf(x)
  found = np.asarray(jax.vmap(jax.grad(changes.gelu))(x), np.float64)
  np.testing.assert_allclose(found, slopes, atol=3e-4)


def test_padding_is_the_last_segment_of_a_row():
  ids = jnp.array([[1, 1, 2, 0, 0], [1, 2, 3, 3, 3], [0, 0, 0, 0, 0]])
  found = changes.padding_as_a_segment(ids)
  assert found.tolist() == [[1, 1, 2, 3, 3], [1, 2, 3, 3, 3], [1, 1, 1, 1, 1]]
  query, key, value = (jax.random.normal(jax.random.key(i), (3, 5, 2, 8)) for i in range(3))
  ours, theirs = (
    attention.attention(query, key, value, x, implementation="xla") for x in (found, ids)
  )
  np.testing.assert_allclose(ours[ids > 0], theirs[ids > 0], rtol=1e-6)


def test_padding_as_a_segment_lowers_without_selects_beside_the_kernel(monkeypatch):
  from jax._src.cudnn import fused_attention_stablehlo as cudnn

  monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)
  monkeypatch.setattr(cudnn, "check_compute_capability", lambda _: True)
  as_if_on(monkeypatch, HOPPER)
  config = packs.small_config(hidden_size=128, num_heads=2, dtype="bfloat16")
  as_it_is = step_for("cuda", monkeypatch, config)
  (name,) = OF_CUDNN_PACKED
  with CHANGES[name]():
    changed = step_for("cuda", monkeypatch, config)
  calls, changed_calls = (len(re.findall(CUDNN, x)) for x in (as_it_is, changed))
  assert calls == changed_calls >= 2
  # Around the kernel; others have other shapes.
  selects = re.compile(r"call @_where\w*\(.*-> tensor<\d+x640x2x64xbf16>")
  assert len(selects.findall(as_it_is)) >= 4
  assert not selects.findall(changed)
