"""Products of linear layers and of the vocabulary.

They have custom gradients; XLA's are slow.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


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
