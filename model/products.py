"""Products of linear layers, of attention and of the vocabulary.

They have custom gradients; XLA's are slow.
"""

from __future__ import annotations

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np


def linear_product(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """The product of a linear layer: float[..., I] and float[I, O] -> float[..., O].

  JAX's gradient of the kernel is (g^T x)^T. On CPUs, XLA rewrites it to x^T g, and copies g
  to compute that. The barrier prevents the rewrite; the result has the same bits.
  """
  last = x.ndim - 1
  if _is_widened(x, kernel):
    product = _widened_product(x.reshape(-1, x.shape[-1]), kernel)
    return product.reshape(*x.shape[:-1], kernel.shape[-1])
  if jax.default_backend() != "cpu":
    return jax.lax.dot_general(x, kernel, (((last,), (0,)), ((), ())))
  transposed = jax.lax.optimization_barrier(kernel.T)
  return jax.lax.dot_general(x, transposed, (((last,), (1,)), ((), ())))


@functools.cache
def multiplies_bfloat16() -> bool:
  """Whether this is a CPU with instructions for products of bfloat16 (AVX512, AMX).

  On such CPUs XLA uses them only for products whose result is float32. It has such products
  of all matrices, but not of all arrays with more axes.
  """
  if jax.default_backend() != "cpu":
    return False
  try:
    told = pathlib.Path("/proc/cpuinfo").read_text()
  except OSError:
    return False  # not Linux
  return bool({"avx512_bf16", "amx_bf16"} & set(told.split()))


def _is_widened(*arrays: jax.Array) -> bool:
  return multiplies_bfloat16() and all(x.dtype == jnp.bfloat16 for x in arrays)


def _widened(a: jax.Array, b: jax.Array, axis_of_a: int, axis_of_b: int) -> jax.Array:
  """The product of two matrices in bfloat16 along an axis of each, summed in float32."""
  axes = (((axis_of_a,), (axis_of_b,)), ((), ()))
  product = jax.lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)
  return product.astype(a.dtype)


@jax.custom_vjp
def _widened_product(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """bfloat16[M, I] and bfloat16[I, O] -> bfloat16[M, O]."""
  return _widened(x, kernel, 1, 0)


def _widened_forward(x, kernel):
  return _widened_product(x, kernel), (x, kernel)


def _widened_backward(saved, gradient):
  x, kernel = saved
  return _widened(gradient, kernel, 1, 1), _widened(x, gradient, 0, 0)


_widened_product.defvjp(_widened_forward, _widened_backward)


# The three products of attention. XLA cannot compute the last on CPUs in bfloat16 if its
# operands change places.
_OVER_WIDTH = "BQNH,BKNH->BNQK"
_OVER_KEYS = "BNQK,BKNH->BQNH"
_OVER_QUERIES = "BNQK,BQNH->BKNH"


def wide_einsum(equation: str, *arrays: jax.Array) -> jax.Array:
  """An einsum of arrays of one dtype, in at least float32."""
  wide = np.promote_types(arrays[0].dtype, np.float32)
  return jnp.einsum(equation, *arrays, preferred_element_type=wide)


@jax.custom_vjp
def attention_scores(query: jax.Array, key: jax.Array) -> jax.Array:
  """[B, Q, N, H] and [B, K, N, H] of one dtype -> [B, N, Q, K], in at least float32.

  The gradient is rounded to the dtype of `query` before it is multiplied. JAX's own
  multiplies float32 with bfloat16, for which CPUs have no instructions.
  """
  return wide_einsum(_OVER_WIDTH, query, key)


def _scores_forward(query, key):
  return attention_scores(query, key), (query, key)


def _scores_backward(saved, gradient):
  query, key = saved
  gradient = gradient.astype(query.dtype)
  of_query = wide_einsum(_OVER_KEYS, gradient, key)
  of_key = wide_einsum(_OVER_QUERIES, gradient, query)
  return of_query.astype(query.dtype), of_key.astype(key.dtype)


attention_scores.defvjp(_scores_forward, _scores_backward)


@jax.custom_vjp
def weighted_values(weights: jax.Array, value: jax.Array) -> jax.Array:
  """[B, N, Q, K] and [B, K, N, H] of one dtype -> [B, Q, N, H], in at least float32.

  Its gradient is rounded as that of `attention_scores`.
  """
  return wide_einsum(_OVER_KEYS, weights, value)


def _weighted_forward(weights, value):
  return weighted_values(weights, value), (weights, value)


def _weighted_backward(saved, gradient):
  weights, value = saved
  gradient = gradient.astype(value.dtype)
  of_weights = wide_einsum(_OVER_WIDTH, gradient, value)
  of_value = wide_einsum(_OVER_QUERIES, weights, gradient)
  return of_weights.astype(weights.dtype), of_value.astype(value.dtype)


weighted_values.defvjp(_weighted_forward, _weighted_backward)


@jax.custom_vjp
def vocabulary_products(
  hidden: jax.Array, embedding: jax.Array, bias: jax.Array | None
) -> jax.Array:
  """float[B, P, D], float[V, D] and float[V] of one dtype -> float[B, P, V].

  On CPUs, XLA would transpose a [B, P, V] array, which is most of this head's memory, to
  compute the gradients. The gradients here are products that need no transpose.
  """
  if _is_widened(hidden, embedding):
    flat = _widened(hidden.reshape(-1, hidden.shape[-1]), embedding, 1, 1)
    products = flat.reshape(*hidden.shape[:-1], -1)
  else:
    products = jnp.einsum("BPD,VD->BPV", hidden, embedding)
  return products if bias is None else products + bias[None, None]


def _products_forward(hidden, embedding, bias):
  return vocabulary_products(hidden, embedding, bias), (hidden, embedding, bias)


def _products_backward(saved, gradient):
  hidden, embedding, bias = saved
  if _is_widened(hidden, embedding):
    flat = gradient.reshape(-1, gradient.shape[-1])
    of_hidden = _widened(flat, embedding, 1, 0).reshape(hidden.shape)
    of_embedding = _widened(hidden.reshape(-1, hidden.shape[-1]), flat, 0, 0).T
  else:
    of_hidden = jnp.einsum("BPV,VD->BPD", gradient, embedding)
    of_embedding = jnp.einsum("BPD,BPV->DV", hidden, gradient).T
  if bias is None:
    return of_hidden, of_embedding, None
  ones = jnp.ones(gradient.shape[:2], gradient.dtype)
  return of_hidden, of_embedding, jnp.einsum("BP,BPV->V", ones, gradient)


vocabulary_products.defvjp(_products_forward, _products_backward)
