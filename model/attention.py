"""Attention that keeps the sequences of a pack apart."""

from __future__ import annotations

import flax.nnx as nnx
import jax
import jax.numpy as jnp


def packed_attention_mask(segment_ids: jax.Array) -> jax.Array:
  """Lets each token attend only within its own sequence.

  Args:
    segment_ids: int32[B, S]; 1, 2, ... numbers the sequences of a pack, 0 is padding.

  Returns:
    bool[B, 1, S, S], True = may attend; rows and columns of padding are all False.

  Raises:
    ValueError: rank is not 2.

  Example:
    >>> packed_attention_mask(jnp.array([[1, 1, 2, 0]]))[0, 0].astype(int).tolist()
    [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]

  References:
    Krell et al., https://arxiv.org/abs/2107.02027, section 3.2.2.
  """
  if segment_ids.ndim != 2:
    raise ValueError(f"Expected segment_ids of shape [B, S], found {segment_ids.shape}.")
  same_sequence = jnp.equal(segment_ids[:, :, None], segment_ids[:, None, :])
  return (same_sequence & (segment_ids[:, None, :] > 0))[:, None]


def padding_attention_mask(segment_ids: jax.Array) -> jax.Array:
  """Lets every token attend to all real tokens of its row: packing without isolation.

  Args:
    segment_ids: int32[B, S]; 0 is padding.

  Returns:
    bool[B, 1, 1, S], True = may be attended to.

  Example:
    >>> padding_attention_mask(jnp.array([[1, 1, 2, 0]])).astype(int).tolist()
    [[[[1, 1, 1, 0]]]]
  """
  return (segment_ids > 0)[:, None, None, :]


def dot_product_attention(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  mask: jax.Array,
  *,
  dropout: nnx.Dropout,
  rngs: nnx.Rngs | None,
) -> jax.Array:
  """Scaled dot-product attention; softmax in at least float32.

  What the mask forbids has a probability of exactly zero. A query that may attend to
  nothing (padding) gets the mean of all values: finite, and read by nobody.

  Args:
    query, key, value: [B, S, N, H].
    mask: bool, broadcastable to [B, N, S, S], True = may attend.
    dropout: of the probabilities.
    rngs: for the dropout; None for no dropout.

  Returns:
    [B, S, N, H], in the dtype of `value`.
  """
  scores = jnp.einsum("BQNH,BKNH->BNQK", query, key) / jnp.sqrt(query.shape[-1]).astype(
    query.dtype
  )
  scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
  scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
  probabilities = jax.nn.softmax(scores).astype(value.dtype)
  probabilities = dropout(probabilities, deterministic=rngs is None, rngs=rngs)
  return jnp.einsum("BNQK,BKNH->BQNH", probabilities, value)
