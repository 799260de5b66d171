"""Attention that keeps the sequences of a pack apart.

Every implementation has one interface, `attention`, and one meaning: a token attends to
the tokens with its own segment id; in a causal model, to those that do not come after it.
One that cannot do what it is asked for raises; none stands in for another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
  """By how much attention falls with each token of distance, for each head.

  2^(-8/N), 2^(-16/N), ... for N heads, a power of 2. For other numbers those of the power
  below, and then every other one of the power above, as in the authors' code.

  Example:
    >>> alibi_slopes(4)
    (0.25, 0.0625, 0.015625, 0.00390625)
    >>> alibi_slopes(3)
    (0.0625, 0.00390625, 0.25)

  References:
    Press et al., https://arxiv.org/abs/2108.12409, section 3.
  """
  power = 1 << (num_heads.bit_length() - 1)
  slopes = [2 ** (-8 * head / power) for head in range(1, power + 1)]
  between = [2 ** (-4 * head / power) for head in range(1, 2 * power, 2)]
  return (*slopes, *between[: num_heads - power])


def alibi_bias(slopes: Sequence[float], row_length: int) -> jax.Array:
  """-slope x distance of query and key in tokens, float[1, N, S, S].

  Distances within a sequence are the same wherever it stands in its row, so these
  positions need no reset.

  Args:
    slopes: of each head, from `alibi_slopes`.
    row_length: S, in tokens.
  """
  positions = jnp.arange(row_length)
  distances = jnp.abs(positions[:, None] - positions[None, :])
  return -jnp.asarray(slopes)[None, :, None, None] * distances[None, None]


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
  causal: bool = False,
  slopes: Sequence[float] | None = None,
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
    causal: whether it sees none that comes after it.
    slopes: of each head, from `alibi_slopes`, for ALiBi's bias; None for no bias.
    max_segments: the largest segment id there can be; `cudnn_packed` needs it.
    dropout_rate: of the probabilities.
    dropout_key: for the dropout; None for no dropout.

  Returns:
    [B, S, N, H], in the dtype of `value`.

  Raises:
    AttentionError: the implementation cannot honour the dropout, the bias, the type, the
      shape or the device.
  """
  dropout_rate = 0.0 if dropout_key is None else dropout_rate
  row_length = query.shape[1]
  check(
    implementation,
    dtype=query.dtype,
    head_size=query.shape[-1],
    row_length=row_length,
    dropout_rate=dropout_rate,
    alibi=slopes is not None,
  )
  bias = None if slopes is None else alibi_bias(slopes, row_length)
  if implementation == "xla":
    masks = {"segment": packed_attention_mask, "none": padding_attention_mask}
    allowed = masks[mask](segment_ids)
    if causal:
      allowed &= jnp.tri(row_length, dtype=bool)[None, None]
    return dot_product_attention(
      query,
      key,
      value,
      allowed,
      bias=bias,
      dropout_rate=dropout_rate,
      dropout_key=dropout_key,
    )
  if mask == "none":
    segment_ids, max_segments = (segment_ids > 0).astype(jnp.int32), 1
  options = {} if bias is None else {"bias": bias.astype(query.dtype)}
  fused = kernels.KERNELS[implementation].attend
  return fused(query, key, value, segment_ids, max_segments, causal=causal, **options)


def dot_product_attention(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  mask: jax.Array,
  *,
  bias: jax.Array | None = None,
  dropout_rate: float = 0.0,
  dropout_key: jax.Array | None = None,
) -> jax.Array:
  """Attention under any mask, as XLA compiles it; softmax in at least float32.

  A query that may attend to nothing (padding) gets the mean of all values.

  Args:
    query, key, value: [B, S, N, H].
    mask: bool, broadcastable to [B, N, S, S], True = may attend.
    bias: float, broadcastable to [B, N, S, S], added to the scaled scores.
    dropout_rate: of the probabilities.
    dropout_key: for the dropout; None for no dropout.

  Returns:
    [B, S, N, H], in the dtype of `value`.
  """
  wide = jnp.promote_types(query.dtype, jnp.float32)
  query = query / math.sqrt(query.shape[-1])
  scores = jnp.einsum("BQNH,BKNH->BNQK", query, key, preferred_element_type=wide)
  if bias is not None:
    scores += bias.astype(wide)
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
  implementation: str,
  *,
  dtype,
  head_size: int,
  row_length: int,
  dropout_rate: float,
  alibi: bool = False,
):
  """Refuses what an implementation cannot do on this machine's device.

  Args:
    implementation: a key of `IMPLEMENTATIONS`.
    dtype: of query, key and value.
    head_size: H.
    row_length: S, in tokens.
    dropout_rate: of the probabilities.
    alibi: whether ALiBi's bias is added to the scores.

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
      alibi=alibi,
    )


IMPLEMENTATIONS = {"xla": "any device; the reference"} | {
  name: kernel.runs_on for name, kernel in kernels.KERNELS.items()
}
