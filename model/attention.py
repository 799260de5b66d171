"""Attention that keeps the sequences of a pack apart.

Every implementation has the same interface, `attention`, and computes the same function: a
token attends to the tokens with its own segment id, in a causal model only up to itself.
An implementation that cannot do this raises an error; it is not replaced by another one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np

from model import kernels
from model.config import ModelConfig
from model.masks import near, packed_attention_mask, padding_attention_mask


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
  """How much the scores of each head decrease per token of distance.

  If N, the number of heads, is a power of 2, the slopes are 2^(-8/N), 2^(-16/N), ...
  Otherwise they are those for the power of 2 below N, followed by every other slope for the
  power above, as in the authors' code.

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

  Distances within a sequence do not depend on its place in the row, so positions need no
  reset.

  Args:
    slopes: one for each head, from `alibi_slopes`.
    row_length: S, in tokens.
  """
  positions = jnp.arange(row_length)
  distances = jnp.abs(positions[:, None] - positions[None, :])
  by_head = jnp.asarray(slopes)[None, :, None, None]
  return -by_head * distances[None, None].astype(by_head.dtype)


def attention(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  segment_ids: jax.Array,
  *,
  implementation: str = "xla",
  mask: str = "segment",
  causal: bool = False,
  window: int | None = None,
  slopes: Sequence[float] | None = None,
  max_segments: int | None = None,
  dropout_rate: float = 0.0,
  dropout_key: jax.Array | None = None,
) -> jax.Array:
  """Scaled dot-product attention within each sequence of a pack.

  Forbidden tokens have a probability of exactly zero. The output at padding is finite, but
  has no meaning.

  Args:
    query, key, value: [B, S, N, H].
    segment_ids: int32[B, S]; 1, 2, ... numbers the sequences from the left, 0 is padding.
    implementation: a key of `IMPLEMENTATIONS`.
    mask: "segment", or "none", with which a token sees every real token of its row.
    causal: whether a token sees only itself and the tokens before it.
    window: how far a token sees, in tokens to either side; None for no limit.
    slopes: the slopes of ALiBi's bias, from `alibi_slopes`; None for no bias.
    max_segments: the largest possible segment id; `cudnn_packed` needs it.
    dropout_rate: the dropout rate of the attention probabilities.
    dropout_key: a PRNG key; None for no dropout.

  Returns:
    [B, S, N, H], in the dtype of `value`.

  Raises:
    AttentionError: the implementation does not support the dropout, the bias, the window,
      the dtype, the shape or the device.
  """
  dropout_rate = 0.0 if dropout_key is None else dropout_rate
  row_length = query.shape[1]
  kernels.check(
    implementation,
    dtype=query.dtype,
    head_size=query.shape[-1],
    row_length=row_length,
    dropout_rate=dropout_rate,
    alibi=slopes is not None,
    local=window is not None,
  )
  bias = None if slopes is None else alibi_bias(slopes, row_length)
  dropout: dict = {"dropout_rate": dropout_rate, "dropout_key": dropout_key}
  by_window = bias is None and window_pairs(row_length, window) < row_length**2
  if implementation == "xla" and not by_window:
    masks = {"segment": packed_attention_mask, "none": padding_attention_mask}
    allowed = masks[mask](segment_ids)
    if causal or window is not None:
      places = jnp.arange(row_length)
      allowed &= near(places, places, window, causal=causal)[None, None]
    return dot_product_attention(query, key, value, allowed, bias=bias, **dropout)
  if mask == "none":
    segment_ids, max_segments = (segment_ids > 0).astype(jnp.int32), 1
  if implementation == "xla":
    assert window is not None
    return _local_attention(
      query, key, value, segment_ids, window, causal=causal, **dropout
    )
  options = {} if bias is None else {"bias": bias.astype(query.dtype)}
  return kernels.attend(
    implementation,
    query,
    key,
    value,
    segment_ids,
    max_segments,
    causal=causal,
    window=window,
    **options,
  )


def window_pairs(row_length: int, window: int | None) -> int:
  """The number of scores that `xla` computes in a row, in a layer with this window."""
  if window is None:
    return row_length**2
  queries = -(-row_length // window) * window
  return min(queries * 3 * window, row_length**2)


def _local_attention(
  query, key, value, segment_ids, window: int, *, causal: bool, **dropout
) -> jax.Array:
  """Does what `attention` does with "xla", at a cost of S x 3 window instead of S^2.

  The row is cut into blocks of `window` tokens. A block of queries sees its own block of
  keys and both neighbours.
  """
  length = query.shape[1]
  blocks = -(-length // window)

  def cut(x, *, neighbours: int):
    """[B, S, ...] -> [B x blocks, window x (1 + 2 neighbours), ...], padded with zeros."""
    beyond = neighbours * window
    widths = ((0, 0), (beyond, blocks * window - length + beyond))
    x = jnp.pad(x, (*widths, *[(0, 0)] * (x.ndim - 2)))
    x = x.reshape(x.shape[0], -1, window, *x.shape[2:])
    parts = [x[:, i : i + blocks] for i in range(1 + 2 * neighbours)]
    x = jnp.concatenate(parts, axis=2)
    return x.reshape(-1, *x.shape[2:])

  of_queries, of_keys = (cut(segment_ids, neighbours=n) for n in (0, 1))
  same_sequence = jnp.equal(of_queries[:, :, None], of_keys[:, None, :])
  places = jnp.arange(3 * window)
  close = near(places[window : 2 * window], places, window, causal=causal)
  attended = dot_product_attention(
    cut(query, neighbours=0),
    cut(key, neighbours=1),
    cut(value, neighbours=1),
    (same_sequence & (of_keys[:, None, :] > 0) & close[None])[:, None],
    **dropout,
  )
  return attended.reshape(query.shape[0], -1, *query.shape[2:])[:, :length]


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
  """Attention with any mask, in plain JAX; the softmax is in at least float32.

  A query that may attend to nothing (padding) gets the mean of all values.

  Args:
    query: [B, Q, N, H].
    key, value: [B, K, N, H].
    mask: bool, broadcastable to [B, N, Q, K], True = may attend.
    bias: float, broadcastable to [B, N, Q, K], added to the scaled scores.
    dropout_rate: the dropout rate of the attention probabilities.
    dropout_key: a PRNG key; None for no dropout.

  Returns:
    [B, Q, N, H], in the dtype of `value`.
  """
  wide = np.promote_types(query.dtype, np.float32)
  query = query / math.sqrt(query.shape[-1])
  scores = jnp.einsum("BQNH,BKNH->BNQK", query, key, preferred_element_type=wide)
  if bias is not None:
    scores += bias.astype(wide)
  scores = jnp.where(mask, scores, jnp.finfo(wide).min)
  highest = jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))
  weights = jnp.exp(scores - highest)
  # Dividing the output, [B, Q, N, H], is cheaper than dividing the weights, [B, N, Q, K].
  total = weights.sum(axis=-1).swapaxes(1, 2)[..., None]
  drop = nnx.Dropout(dropout_rate, deterministic=dropout_key is None)
  weights = drop(weights.astype(value.dtype), rngs=dropout_key)
  attended = jnp.einsum("BNQK,BKNH->BQNH", weights, value)
  return (attended.astype(wide) / total).astype(value.dtype)


def check(config: ModelConfig, row_length: int):
  """Rejects a model whose attention cannot run on this machine's device.

  Args:
    config: the config of the model.
    row_length: S, in tokens.

  Raises:
    AttentionError: says what was expected, what was found and what to do.
  """
  kernels.check(
    config.attention_impl,
    dtype=config.dtype,
    head_size=config.hidden_size // config.num_heads,
    row_length=row_length,
    dropout_rate=config.attention_dropout_rate,
    alibi=config.slopes is not None,
    local=config.has_windows,
  )
