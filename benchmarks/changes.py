"""Changes to a training step that wait to be measured on a GPU.

`benchmarks.accelerator --cases changes` times a step with each of them alone beside the
step as it is. One that is faster moves into `model`; one that is not is deleted. Tests
compare losses and gradients with those of the step as it is; of `padding as a segment`,
which needs a GPU, they show only that real tokens stay the same and that it lowers.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.fused_layer_norm import BLOCKS, ROWS, residual_layer_norm
from model import bert, blocks, products
from model.attention import kernels
from model.layer_norm import LayerNorm

VOCABULARY_MULTIPLE = 128
# erfc(z) exp(z^2) as a polynomial of 1 / (1 + RATE z), without a constant. The relative
# error is below 2.2e-4 for z from 0 to 9, a ninth of the rounding to bfloat16.
RATE = 0.70339
TERMS = 0.39993569, 0.35408664, 0.49669141, -0.25092485


# ---- the vocabulary ------------------------------------------------------------------

_vocabulary_products = products.vocabulary_products


def padded_vocabulary_products(hidden, embedding, bias):
  """`products.vocabulary_products` of a table with a multiple of 128 rows."""
  rows = embedding.shape[0]
  missing = -rows % VOCABULARY_MULTIPLE
  wider = jnp.pad(embedding, ((0, missing), (0, 0)))
  if bias is not None:
    bias = jnp.pad(bias, (0, missing))
  return _vocabulary_products(hidden, wider, bias)[..., :rows]


# ---- GELU ----------------------------------------------------------------------------


@jax.custom_vjp
def gelu(x: jax.Array) -> jax.Array:
  """`model.blocks.gelu`, exact to bfloat16, with one exponential in each pass."""
  wide = x.astype(np.promote_types(x.dtype, np.float32))
  return (wide * _normal(wide)[0]).astype(x.dtype)


def _normal(x: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The standard normal distribution function and density.

  References:
    Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26, with other constants.
  """
  z = jnp.abs(x) * math.sqrt(0.5)
  t = 1 / (1 + RATE * z)
  density = jnp.exp(-z * z)
  terms = jnp.zeros_like(t)
  for term in reversed(TERMS):
    terms = terms * t + term
  tail = 0.5 * density * t * terms
  return jnp.where(x < 0, tail, 1 - tail), density * (1 / math.sqrt(2 * math.pi))


def _gelu_forward(x):
  return gelu(x), x


def _gelu_backward(x, gradient):
  wide = x.astype(np.promote_types(x.dtype, np.float32))
  below, density = _normal(wide)
  return ((gradient.astype(wide.dtype) * (below + wide * density)).astype(x.dtype),)


gelu.defvjp(_gelu_forward, _gelu_backward)


# ---- attention -----------------------------------------------------------------------


def padding_as_a_segment(segment_ids: jax.Array) -> jax.Array:
  """int32[B, S] whose padding is a row's last segment; it must be at the row's end.

  A kernel that knows the ends of segments then writes finite numbers at padding, so that
  nothing has to be set to zero before or after it. No token sees those numbers.
  """
  last = segment_ids.max(axis=1, keepdims=True)
  return jnp.where(segment_ids > 0, segment_ids, last + 1)


def cudnn_packed_attention(
  query, key, value, segment_ids, max_segments, *, causal: bool = False
) -> jax.Array:
  """`kernels.cudnn_packed_attention` with the padding as a segment of its own."""
  with mock.patch.multiple(
    kernels,
    _zero_padding=lambda real, x: x,
    _zero_gradient_of_padding=lambda real, x: x,
  ):
    return kernels.cudnn_packed_attention(
      query,
      key,
      value,
      padding_as_a_segment(segment_ids),
      max_segments + 1,
      causal=causal,
    )


# ---- bias, residual and LayerNorm ----------------------------------------------------


def fused_layer(layer: bert.EncoderLayer, hidden, rows, dropout_key=None) -> jax.Array:
  """`bert.EncoderLayer` without dropout, by `residual_layer_norm`."""
  if dropout_key is not None:
    raise ValueError("The fused kernel knows no dropout. Set dropout_rate=0.")
  attended = layer.attended(hidden, rows, None)
  norm = layer.attention_layer_norm
  hidden = _normalised(layer.attention_output, attended, hidden, norm)
  inner = bert.gelu(layer.intermediate(hidden))
  return _normalised(layer.output, inner, hidden, layer.output_layer_norm)


def _normalised(linear: blocks.Linear, inputs, residual, norm: LayerNorm) -> jax.Array:
  """LayerNorm(residual + linear(inputs)): [B, S, I] and [B, S, D] -> [B, S, D]."""
  kernel = linear.kernel[...].astype(residual.dtype)
  product = products.linear_product(inputs, kernel)
  tokens = residual.size // residual.shape[-1]
  missing = -tokens % (ROWS * BLOCKS)
  flat = lambda x: jnp.pad(x.reshape(tokens, -1), ((0, missing), (0, 0)))  # noqa: E731
  assert linear.bias is not None
  assert norm.scale is not None
  assert norm.bias is not None
  bias, scale, offset = linear.bias[...], norm.scale[...], norm.bias[...]
  output = residual_layer_norm(
    flat(product), bias, flat(residual), scale, offset, norm.epsilon
  )
  return output[:tokens].reshape(residual.shape)


# ---- all of them ---------------------------------------------------------------------


def _in_place_of(target: Any, name: str, new: Callable):
  @contextlib.contextmanager
  def applied() -> Iterator[None]:
    with mock.patch.object(target, name, new):
      yield

  return applied


@contextlib.contextmanager
def _padding_as_a_segment() -> Iterator[None]:
  kernel = kernels.KERNELS["cudnn_packed"]._replace(attend=cudnn_packed_attention)
  with mock.patch.dict(kernels.KERNELS, cudnn_packed=kernel):
    yield


# By name: a context in which a step is to be traced. The last needs `cudnn_packed`.
CHANGES: dict[str, Callable[[], contextlib.AbstractContextManager]] = {
  "vocabulary in multiples of 128": _in_place_of(
    products, "vocabulary_products", padded_vocabulary_products
  ),
  "GELU exact to bfloat16": _in_place_of(bert, "gelu", gelu),
  "bias, residual and LayerNorm in one kernel": _in_place_of(
    bert.EncoderLayer, "__call__", fused_layer
  ),
  "padding as a segment": _padding_as_a_segment,
}
OF_CUDNN_PACKED = {"padding as a segment"}
