"""Attention that keeps the sequences of a pack apart.

Every implementation has one interface, `attention`, and one meaning: a token attends to
the tokens with its own segment id. One that cannot do what it is asked for raises; none
stands in for another.
"""

from __future__ import annotations

import math

import flax.nnx as nnx
import jax
import jax.numpy as jnp

from model import kernels
from model.kernels import AttentionError


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


def split_by_token_type(
  segment_ids: jax.Array, token_type_ids: jax.Array, *, token_types: int
) -> jax.Array:
  """Numbers the sentences of a row rather than its sequences.

  With these as segment ids the two sentences of a pair do not see each other, which
  appendix A of the paper leaves to future work. [CLS] belongs to sentence A.

  Args:
    segment_ids: int32[B, S].
    token_type_ids: int32[B, S].
    token_types: the number of token types.

  Returns:
    int32[B, S]; 0 is padding.

  Example:
    >>> ids, types = jnp.array([[1, 1, 1, 2, 0]]), jnp.array([[0, 0, 1, 0, 0]])
    >>> split_by_token_type(ids, types, token_types=2).tolist()
    [[1, 1, 2, 3, 0]]
  """
  sentences = (segment_ids - 1) * token_types + token_type_ids + 1
  return jnp.where(segment_ids > 0, sentences, 0)


def attention(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  segment_ids: jax.Array,
  *,
  implementation: str = "xla",
  mask: str = "segment",
  max_segments: int | None = None,
  dropout_rate: float = 0.0,
  dropout_key: jax.Array | None = None,
) -> jax.Array:
  """Scaled dot-product attention within each sequence of a pack.

  What is forbidden has a probability of exactly zero. What padding gets is finite, and
  read by nobody.

  Args:
    query, key, value: [B, S, N, H].
    segment_ids: int32[B, S]; 1, 2, ... numbers the sequences from the left, 0 is padding.
    implementation: a key of `IMPLEMENTATIONS`.
    mask: "segment"; or "none", by which a token sees every real token of its row.
    max_segments: the largest segment id there can be; `cudnn_packed` needs it.
    dropout_rate: of the probabilities.
    dropout_key: for the dropout; None for no dropout.

  Returns:
    [B, S, N, H], in the dtype of `value`.

  Raises:
    AttentionError: the implementation cannot honour the dropout, the type, the shape or
      the device.
  """
  dropout_rate = 0.0 if dropout_key is None else dropout_rate
  check(
    implementation,
    dtype=query.dtype,
    head_size=query.shape[-1],
    row_length=query.shape[1],
    dropout_rate=dropout_rate,
  )
  if implementation == "xla":
    masks = {"segment": packed_attention_mask, "none": padding_attention_mask}
    return dot_product_attention(
      query,
      key,
      value,
      masks[mask](segment_ids),
      dropout_rate=dropout_rate,
      dropout_key=dropout_key,
    )
  if mask == "none":
    segment_ids, max_segments = (segment_ids > 0).astype(jnp.int32), 1
  fused = kernels.KERNELS[implementation].attend
  return fused(query, key, value, segment_ids, max_segments)


def dot_product_attention(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  mask: jax.Array,
  *,
  dropout_rate: float = 0.0,
  dropout_key: jax.Array | None = None,
) -> jax.Array:
  """Attention under any mask, as XLA compiles it; softmax in at least float32.

  A query that may attend to nothing (padding) gets the mean of all values.

  Args:
    query, key, value: [B, S, N, H].
    mask: bool, broadcastable to [B, N, S, S], True = may attend.
    dropout_rate: of the probabilities.
    dropout_key: for the dropout; None for no dropout.

  Returns:
    [B, S, N, H], in the dtype of `value`.
  """
  wide = jnp.promote_types(query.dtype, jnp.float32)
  query = query / math.sqrt(query.shape[-1])
  scores = jnp.einsum("BQNH,BKNH->BNQK", query, key, preferred_element_type=wide)
  scores = jnp.where(mask, scores, jnp.finfo(wide).min)
  highest = jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))
  weights = jnp.exp(scores - highest)
  # The sum divides what comes out, [B, Q, N, H], and not the weights, [B, N, Q, K].
  total = weights.sum(axis=-1).swapaxes(1, 2)[..., None]
  drop = nnx.Dropout(dropout_rate, deterministic=dropout_key is None)
  weights = drop(weights.astype(value.dtype), rngs=dropout_key)
  attended = jnp.einsum("BNQK,BKNH->BQNH", weights, value)
  return (attended.astype(wide) / total).astype(value.dtype)


def check(
  implementation: str, *, dtype, head_size: int, row_length: int, dropout_rate: float
):
  """Refuses what an implementation cannot do on this machine's device.

  Args:
    implementation: a key of `IMPLEMENTATIONS`.
    dtype: of query, key and value.
    head_size: H.
    row_length: S, in tokens.
    dropout_rate: of the probabilities.

  Raises:
    AttentionError: says what was expected, what was found and what to do.
  """
  if implementation not in IMPLEMENTATIONS:
    raise AttentionError(
      f"There is no attention_impl {implementation!r}; expected one of "
      f"{', '.join(IMPLEMENTATIONS)}."
    )
  if implementation != "xla":
    kernels.check(
      implementation,
      dtype=jnp.dtype(dtype),
      head_size=head_size,
      row_length=row_length,
      dropout_rate=dropout_rate,
    )


IMPLEMENTATIONS = {"xla": "any device; the reference"} | {
  name: kernel.runs_on for name, kernel in kernels.KERNELS.items()
}
