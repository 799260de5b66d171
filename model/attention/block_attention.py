"""Attention that visits only the blocks of keys that share a sequence, in plain JAX.

A row is cut into blocks of `BLOCK` tokens. A block of queries is multiplied only by the
blocks of keys between the first and the last token of its sequences, so a row of many short
sequences costs far less than S^2. Shapes stay fixed: each block of queries uses one of a
few compiled widths, the smallest that holds its keys. The backward pass recomputes the
attention weights, so no [S, S] array is stored. docs/speed.md says where this is faster.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from model.masks import near
from model.products import wide_einsum

BLOCK = 64  # tokens


class Reach(NamedTuple):
  """What limits the keys of a token, besides its segment; the arguments of `visits`."""

  causal: bool
  window: int | None
  one_segment: bool


class Visits(NamedTuple):
  """The keys that each block of queries needs.

  Attributes:
    starts: int32[B, S / BLOCK], the first block of keys.
    widths: int32[B, S / BLOCK], an index into `possible_widths`.
  """

  starts: jax.Array
  widths: jax.Array


def possible_widths(blocks: int) -> tuple[int, ...]:
  """The widths, in key blocks, that are compiled: 0, and steps of a third or a half.

  Example:
    >>> possible_widths(10)
    (0, 1, 2, 3, 4, 6, 8, 10)
  """
  powers = [2**k for k in range(blocks.bit_length())]
  steps = {0, blocks, *powers, *(3 * power // 2 for power in powers)}
  return tuple(sorted(width for width in steps if width <= blocks))


def visits(
  segment_ids: jax.Array, *, causal: bool, window: int | None, one_segment: bool = False
) -> Visits:
  """int32[B, S] segment ids -> the keys of each block of queries; padding needs none.

  The tokens of a segment must be adjacent, except that with `one_segment` there may be
  padding between them.
  """
  batch, length = segment_ids.shape
  blocks = length // BLOCK
  places = jnp.arange(length)
  begins = jnp.diff(segment_ids, axis=1, prepend=-1) != 0
  ends = jnp.diff(segment_ids, axis=1, append=-1) != 0
  first = jax.lax.cummax(jnp.where(begins, places, 0), axis=1)
  last = jax.lax.cummin(jnp.where(ends, places, length), axis=1, reverse=True)
  if one_segment:
    first = jnp.where(segment_ids > 0, places[None], length).min(1, keepdims=True)
    last = jnp.where(segment_ids > 0, places[None], -1).max(1, keepdims=True)
    first, last = (jnp.broadcast_to(x, segment_ids.shape) for x in (first, last))
  if causal:
    last = jnp.broadcast_to(places, last.shape)
  if window is not None:
    first = jnp.maximum(first, places[None] - window)
    last = jnp.minimum(last, places[None] + window)
  real = segment_ids > 0
  by_block = lambda x: x.reshape(batch, blocks, BLOCK)  # noqa: E731
  starts = by_block(jnp.where(real, first, length)).min(-1) // BLOCK
  stops = by_block(jnp.where(real, last, -1)).max(-1) // BLOCK + 1
  widths = np.asarray(possible_widths(blocks))
  return Visits(starts, jnp.searchsorted(widths, jnp.maximum(stops - starts, 0)))


def block_attention(
  query, key, value, segment_ids, max_segments, *, causal=False, window=None
) -> jax.Array:
  """`model.attention.attention` by blocks; the output at padding is zero."""
  heads_first = lambda x: x.swapaxes(1, 2)  # noqa: E731
  reach = Reach(causal, window, max_segments == 1)
  attended = _attend(
    reach, heads_first(query), heads_first(key), heads_first(value), segment_ids
  )
  return heads_first(attended)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(reach: Reach, query, key, value, segment_ids) -> jax.Array:
  """[B, N, S, H] each -> [B, N, S, H]."""
  return _forward(reach, query, key, value, segment_ids)[0]


def _forward(reach: Reach, query, key, value, segment_ids):
  inputs = _Inputs(query, key, value, segment_ids, reach)
  visited = visits(segment_ids, **reach._asdict())

  def attend(width: int, row, block, start):
    if not width:
      shape = query.shape[1], BLOCK
      return jnp.zeros((*shape, query.shape[3]), value.dtype), jnp.zeros(shape, inputs.wide)
    scores, allowed, keys = inputs.scores(width, row, block, start)
    highest = scores.max(-1, keepdims=True)
    weights = jnp.where(allowed, jnp.exp(scores - highest), 0)
    total = weights.sum(-1)
    total = jnp.where(total > 0, total, 1)  # 0 at padding
    attended = wide_einsum("NQK,NKH->NQH", weights.astype(value.dtype), keys(value))
    attended = (attended / total[..., None]).astype(value.dtype)
    return attended, highest[..., 0] + jnp.log(total)

  def step(_, place):
    return None, inputs.switch(attend, visited, place)

  _, (attended, normalisers) = jax.lax.scan(step, None, inputs.places)
  attended, normalisers = inputs.rows(attended), inputs.rows(normalisers)
  return attended, (query, key, value, segment_ids, attended, normalisers)


def _backward(reach: Reach, saved, gradient):
  query, key, value, segment_ids, attended, normalisers = saved
  inputs = _Inputs(query, key, value, segment_ids, reach)
  visited = visits(segment_ids, **reach._asdict())
  # In the gradient of softmax: the sum over keys of each weight times its gradient.
  shared = (gradient.astype(inputs.wide) * attended.astype(inputs.wide)).sum(-1)

  def differentiate(width: int, row, block, start, of_keys, of_values):
    if not width:
      zeros = jnp.zeros((query.shape[1], BLOCK, query.shape[3]), query.dtype)
      return zeros, of_keys, of_values
    scores, allowed, keys = inputs.scores(width, row, block, start)
    queries = functools.partial(_cut, row=row, start=block * BLOCK, size=BLOCK)
    weights = jnp.where(allowed, jnp.exp(scores - queries(normalisers)[..., None]), 0)
    outer = queries(gradient)
    of_weights = wide_einsum("NQH,NKH->NQK", outer, keys(value))
    of_scores = weights * (of_weights - queries(shared)[..., None])
    of_scores = (of_scores * inputs.scale).astype(query.dtype)
    of_queries = wide_einsum("NQK,NKH->NQH", of_scores, keys(key))
    place = row, 0, inputs.first(width, start), 0

    def add(sums, part):
      before = jax.lax.dynamic_slice(sums, place, (1, *part.shape))
      return jax.lax.dynamic_update_slice(sums, before + part[None], place)

    weights = weights.astype(value.dtype)
    return (
      of_queries.astype(query.dtype),
      add(of_keys, wide_einsum("NQK,NQH->NKH", of_scores, queries(query))),
      add(of_values, wide_einsum("NQK,NQH->NKH", weights, outer)),
    )

  def step(sums, place):
    of_queries, *sums = inputs.switch(differentiate, visited, place, *sums)
    return sums, of_queries

  zeros = [jnp.zeros(x.shape, inputs.wide) for x in (key, value)]
  (of_keys, of_values), of_queries = jax.lax.scan(step, zeros, inputs.places)
  return (
    inputs.rows(of_queries),
    of_keys.astype(key.dtype),
    of_values.astype(value.dtype),
    None,
  )


_attend.defvjp(_forward, _backward)


class _Inputs(NamedTuple):
  """The inputs of both passes, and how the passes iterate over them."""

  query: jax.Array
  key: jax.Array
  value: jax.Array
  segment_ids: jax.Array
  reach: Reach

  @property
  def wide(self):
    return np.promote_types(self.query.dtype, np.float32)

  @property
  def scale(self) -> float:
    return 1 / math.sqrt(self.query.shape[-1])

  @property
  def blocks(self) -> int:
    return self.query.shape[2] // BLOCK

  @property
  def places(self) -> tuple[jax.Array, jax.Array]:
    """For each block of queries, its row and its number in the row."""
    numbers = jnp.arange(self.query.shape[0] * self.blocks)
    return numbers // self.blocks, numbers % self.blocks

  def rows(self, blocks: jax.Array) -> jax.Array:
    """[B x S / BLOCK, N, BLOCK, ...] -> [B, N, S, ...]."""
    batch, heads, length = self.query.shape[:3]
    parts = blocks.reshape(batch, self.blocks, *blocks.shape[1:]).swapaxes(1, 2)
    return parts.reshape(batch, heads, length, *blocks.shape[3:])

  def switch(self, function, visited: Visits, place, *carried):
    """Calls the function with the width that a block of queries needs."""
    row, block = place
    branches = [
      functools.partial(function, width) for width in possible_widths(self.blocks)
    ]
    start = visited.starts[row, block]
    return jax.lax.switch(visited.widths[row, block], branches, row, block, start, *carried)

  def first(self, width: int, start: jax.Array) -> jax.Array:
    """The first key of a block's width; earlier than needed if the row ends too soon."""
    return jnp.minimum(start, self.blocks - width) * BLOCK

  def scores(self, width: int, row, block, start):
    """Scores [N, BLOCK, K]; which are allowed [1, BLOCK, K]; and a function to cut keys."""
    queries = functools.partial(_cut, row=row, start=block * BLOCK, size=BLOCK)
    first, size = self.first(width, start), width * BLOCK
    keys = functools.partial(_cut, row=row, start=first, size=size)
    scaled = queries(self.query) * jnp.asarray(self.scale, self.query.dtype)
    scores = wide_einsum("NQH,NKH->NQK", scaled, keys(self.key))
    segments = self.segment_ids[:, None]
    of_queries, of_keys = queries(segments)[0][:, None], keys(segments)[0][None]
    allowed = (of_queries == of_keys) & (of_keys > 0)
    causal, window, _ = self.reach
    if causal or window is not None:
      places = jnp.arange(BLOCK) + block * BLOCK, jnp.arange(size) + first
      allowed &= near(*places, window, causal=causal)
    return jnp.where(allowed[None], scores, jnp.finfo(self.wide).min), allowed[None], keys


def _cut(x: jax.Array, *, row, start, size: int) -> jax.Array:
  """[B, N, S, ...] -> [N, size, ...]."""
  starts = (row, 0, start, *[0] * (x.ndim - 3))
  return jax.lax.dynamic_slice(x, starts, (1, x.shape[1], size, *x.shape[3:]))[0]
