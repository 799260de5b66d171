"""Attention that keeps the sequences of a pack apart.

Every implementation has the same interface, `attention`, and computes the same function: a
token attends to the tokens with its own segment id, in a causal model only up to itself.
`auto` takes the fastest that this device can run. An implementation that is given by name
and cannot do this raises an error; it is not replaced by another one, except in local
layers: `xla` computes those of `cudnn` and `cudnn_packed`.

A kernel for GPUs or TPUs is compared with `xla` on the device before its first use, since
some versions of such kernels are wrong for some shapes (docs/model.md).
"""

from __future__ import annotations

import concurrent.futures
import functools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from model.attention import kernels, proof
from model.attention.kernels import AttentionError, Needs
from model.config import AttentionSpec, ModelConfig
from model.dropout import dropout
from model.masks import near, packed_attention_mask, padding_attention_mask
from model.products import attention_scores, weighted_values
from packing.testing import TOLERANCES


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
  spec: AttentionSpec | None = None,
  implementation: str = "auto",
  max_segments: int | None = None,
  dropout_key: jax.Array | None = None,
) -> jax.Array:
  """Scaled dot-product attention within each sequence of a pack.

  Forbidden tokens have a probability of exactly zero. The output at padding is finite, but
  has no meaning.

  Args:
    query, key, value: [B, S, N, H].
    segment_ids: int32[B, S]; 1, 2, ... numbers the sequences from the left, 0 is padding.
    spec: which tokens a token sees, the bias of the scores, and the dropout; None for the
      default.
    implementation: a key of `IMPLEMENTATIONS`, or "auto" for the `fastest`.
    max_segments: the largest possible segment id; `cudnn_packed` needs it.
    dropout_key: a PRNG key; None for no dropout.

  Returns:
    [B, S, N, H], in the dtype of `value`.

  Raises:
    AttentionError: the implementation does not support the dropout, the bias, the mask, the
      dtype, the shape or the device.
  """
  spec = spec or AttentionSpec()
  if dropout_key is None:
    spec = spec._replace(dropout_rate=0.0)
  needs = Needs(query.dtype.name, query.shape[-1], query.shape[1], spec)
  if implementation == "auto":
    has_offsets = max_segments is not None
    implementation = fastest([needs], has_offsets=has_offsets).implementation
  else:
    check_layer(implementation, needs)
  arrays = query, key, value, segment_ids
  return _attend(implementation, spec, max_segments, dropout_key, *arrays)


def _attend(
  implementation: str,
  spec: AttentionSpec,
  max_segments: int | None,
  dropout_key: jax.Array | None,
  *arrays: jax.Array,
) -> jax.Array:
  """`attention`, without its checks."""
  query, key, value, segment_ids = arrays
  causal, window, row_length = spec.causal, spec.window, query.shape[1]
  dropout: dict = {"dropout_rate": spec.dropout_rate, "dropout_key": dropout_key}
  if window is not None and not kernels.is_local(implementation):
    implementation = "xla"
  bias = None if spec.slopes is None else alibi_bias(spec.slopes, row_length)
  blockwise = bias is None and window_pairs(row_length, window) < row_length**2
  if implementation == "xla" and not blockwise:
    is_open = spec.mask == "none"
    allowed_by = padding_attention_mask if is_open else packed_attention_mask
    allowed = allowed_by(segment_ids)
    if causal or window is not None:
      places = jnp.arange(row_length)
      allowed &= near(places, places, window, causal=causal)[None, None]
    return dot_product_attention(query, key, value, allowed, bias=bias, **dropout)
  if spec.mask == "none":
    segment_ids, max_segments = (segment_ids > 0).astype(jnp.int32), 1
  arrays = query, key, value, segment_ids
  if implementation == "xla":
    assert window is not None
    return _local_attention(*arrays, window, causal=causal, **dropout)
  options: dict = {} if bias is None else {"bias": bias.astype(query.dtype)}
  if window is not None:
    options["window"] = window
  return kernels.attend(implementation, *arrays, max_segments, causal=causal, **options)


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
  scores = attention_scores(query, key)
  if bias is not None:
    scores += bias.astype(wide)
  scores = jnp.where(mask, scores, jnp.finfo(wide).min)
  highest = jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))
  weights = jnp.exp(scores - highest)
  # Dividing the output, [B, Q, N, H], is cheaper than dividing the weights, [B, N, Q, K].
  total = weights.sum(axis=-1).swapaxes(1, 2)[..., None]
  weights = dropout(weights.astype(value.dtype), dropout_rate, dropout_key)
  attended = weighted_values(weights, value)
  return (attended / total).astype(value.dtype)


class Choice(NamedTuple):
  """An implementation of attention, and why it was chosen."""

  implementation: str
  why: str


def choose(config: ModelConfig, row_lengths: Iterable[int]) -> Choice:
  """The implementation that a model computes with: its own, or the fastest for `auto`.

  Args:
    config: the config of the model.
    row_lengths: the lengths of its rows, in tokens.

  Raises:
    AttentionError: the model's own implementation cannot compute it here.
  """
  if config.attention_impl != "auto":
    for length in row_lengths:
      check_model(config, length)
    return Choice(config.attention_impl, "as the config says")
  needs = [layer for length in row_lengths for layer in needs_of(config, length)]
  return fastest(needs)


def fastest(needs: Iterable[Needs], *, has_offsets: bool = True) -> Choice:
  """The fastest implementation that this device can run, and that agrees with `xla` there.

  Args:
    needs: what each layer needs.
    has_offsets: whether `cudnn_packed` can know where sequences are, which takes the
      largest possible id.
  """
  device, needs = jax.local_devices()[0].device_kind, list(needs)
  refused = ""
  for name in kernels.FASTEST_FIRST:
    if not kernels.runs_here(name) or (name == "cudnn_packed" and not has_offsets):
      continue
    try:
      for layer in needs:
        check_layer(name, layer)
    except AttentionError as error:
      refused = refused or str(error).replace(", or attention_impl=xla.", ".")
      continue
    why = f"the fastest attention that is proven on {device}"
    return Choice(name, f"{why}. {refused}".removesuffix(". "))
  if refused:
    return Choice("xla", f"{refused} Here xla is slower and takes more memory.")
  return Choice("xla", f"there is no faster kernel for {device}")


def check_layer(implementation: str, needs: Needs):
  """Refuses an implementation that cannot do what a layer needs, or is wrong here.

  Raises:
    AttentionError: says what was expected, what was found and what to do.
  """
  kernels.check_kernel(implementation, needs)
  kernel = kernels.KERNELS.get(implementation)
  if kernel is None or kernel.platform is None:
    return  # plain JAX, proven by the tests
  if needs.spec.window is not None and not kernel.takes_window:
    return  # xla computes this layer
  spec = needs.spec._replace(mask="segment", dropout_rate=0.0)
  if why := _disagreement(implementation, needs._replace(spec=spec)):
    raise AttentionError(
      f"attention_impl={implementation} {why}, here in rows of {needs.row_length} tokens. "
      "Set another row length, or attention_impl=xla."
    )


@functools.cache
def _disagreement(implementation: str, needs: Needs) -> str:
  """How a kernel differs from `xla` on this device; "" if it does not."""
  # In a thread of its own, since the caller may be tracing, on a mesh of devices.
  with concurrent.futures.ThreadPoolExecutor(1) as threads:
    try:
      size = threads.submit(difference_from_xla, implementation, needs).result()
    except (RuntimeError, ValueError, TypeError) as error:  # of JAX, cuDNN or XLA
      reason = str(error).strip().partition("\n")[0][:300].rstrip(".")
      return f"could not be compared with xla ({reason})"
  limit = TOLERANCES[needs.dtype]
  return "" if size <= limit else f"differs from xla by {size:.1e}, more than {limit:g}"


def difference_from_xla(implementation: str, needs: Needs) -> float:
  """`proof.difference` between an implementation and `xla` in float32.

  Args:
    implementation: a key of `IMPLEMENTATIONS`.
    needs: what a layer needs; `xla` gets the same numbers in float32.
  """
  slopes = needs.spec.slopes and alibi_slopes(proof.NUM_HEADS)
  spec = needs.spec._replace(slopes=slopes)
  ours, theirs = (
    functools.partial(_attend, name, spec, proof.MAX_SEGMENTS, None)
    for name in (implementation, "xla")
  )
  sizes = {"row_length": needs.row_length, "head_size": needs.head_size}
  return proof.difference(ours, theirs, dtype=needs.dtype, **sizes)


def needs_of(config: ModelConfig, row_length: int) -> list[Needs]:
  """What the layers of a model need, in rows of `row_length` tokens; equal ones once."""
  head_size = config.hidden_size // config.num_heads
  specs = dict.fromkeys(map(config.attention_of, range(config.num_layers)))
  return [Needs(config.dtype.name, head_size, row_length, spec) for spec in specs]


def check_model(config: ModelConfig, row_length: int):
  """Rejects a model whose attention cannot run on this machine's device.

  Args:
    config: the config of the model.
    row_length: S, in tokens.

  Raises:
    AttentionError: says what was expected, what was found and what to do.
  """
  for needs in needs_of(config, row_length):
    check_layer(config.attention_impl, needs)
