"""Products of linear layers and of the vocabulary, whose gradients XLA does not do well."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

FORWARD, BACKWARD = jnp.float8_e4m3fn, jnp.float8_e5m2


def linear_product(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """The product of a linear layer: float[..., I] and float[I, O] -> float[..., O].

  JAX's gradient of the kernel is (g^T x)^T. On CPUs, XLA rewrites it to x^T g, and copies g
  to compute that. The barrier prevents the rewrite; the result has the same bits.
  """
  last = x.ndim - 1
  if jax.default_backend() != "cpu":
    return jax.lax.dot_general(x, kernel, (((last,), (0,)), ((), ())))
  transposed = jax.lax.optimization_barrier(kernel.T)
  return jax.lax.dot_general(x, transposed, (((last,), (1,)), ((), ())))


@jax.custom_vjp
def fp8_product(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """`linear_product` with operands of 8 bits: E4M3, and E5M2 for the gradient of outputs.

  The kernel has one scale, and each token its own, so that no sequence changes how another
  one is rounded. The gradient of the kernel, a sum over all tokens, is computed in the
  dtype of the operands.

  References:
    Micikevicius et al., https://arxiv.org/abs/2209.05433.
  """
  return _fp8_dot(x, kernel, FORWARD, contracted=0)


def _fp8_forward(x, kernel):
  return fp8_product(x, kernel), (x, kernel)


def _fp8_backward(saved, gradient):
  x, kernel = saved
  of_x = _fp8_dot(gradient, kernel, BACKWARD, contracted=1)
  tokens = tuple(range(x.ndim - 1))
  of_kernel = jax.lax.dot_general(x, gradient, ((tokens, tokens), ((), ())))
  return of_x, of_kernel


fp8_product.defvjp(_fp8_forward, _fp8_backward)


def _fp8_dot(x: jax.Array, kernel: jax.Array, dtype: Any, *, contracted: int) -> jax.Array:
  """The product over the last axis of `x`, in `dtype`, and one axis of the kernel."""
  narrow, scales = _quantize(x, dtype, axis=-1)
  narrow_kernel, scale = _quantize(kernel, FORWARD, axis=None)
  dimensions = (((x.ndim - 1,), (contracted,)), ((), ()))
  product = jax.lax.dot_general(
    narrow, narrow_kernel, dimensions, preferred_element_type=x.dtype
  )
  wide = product.astype(jnp.float32) * (scales * scale.reshape((1,) * x.ndim))
  return wide.astype(x.dtype)


def _quantize(x: jax.Array, dtype: Any, *, axis: int | None) -> tuple[jax.Array, jax.Array]:
  """x / scale in 8 bits, and the scales: of the whole array, or of each row of an axis."""
  wide = x.astype(jnp.float32)
  largest = jnp.abs(wide).max(axis=axis, keepdims=True)
  scales = largest / float(jnp.finfo(dtype).max)
  scales = jnp.where(scales > jnp.finfo(jnp.float32).tiny, scales, 1)
  return (wide / scales).astype(dtype), scales


@jax.custom_vjp
def vocabulary_products(
  hidden: jax.Array, embedding: jax.Array, bias: jax.Array | None
) -> jax.Array:
  """float[B, P, D], float[V, D] and float[V] of one dtype -> float[B, P, V].

  On CPUs, XLA would transpose a [B, P, V] array, which is most of this head's memory, to
  compute the gradients. The gradients here are products that need no transpose.
  """
  products = jnp.einsum("BPD,VD->BPV", hidden, embedding)
  return products if bias is None else products + bias[None, None]


def _products_forward(hidden, embedding, bias):
  return vocabulary_products(hidden, embedding, bias), (hidden, embedding, bias)


def _products_backward(saved, gradient):
  hidden, embedding, bias = saved
  of_hidden = jnp.einsum("BPV,VD->BPD", gradient, embedding)
  of_embedding = jnp.einsum("BPD,BPV->DV", hidden, gradient).T
  if bias is None:
    return of_hidden, of_embedding, None
  ones = jnp.ones(gradient.shape[:2], gradient.dtype)
  return of_hidden, of_embedding, jnp.einsum("BP,BPV->V", ones, gradient)


vocabulary_products.defvjp(_products_forward, _products_backward)
