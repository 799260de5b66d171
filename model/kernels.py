"""Fused attention kernels of cuDNN and of JAX's Pallas, told of the packs.

| name             | how it keeps sequences apart                                     |
|------------------|------------------------------------------------------------------|
| cudnn            | a mask of [B, 1, S, S], turned into a bias                       |
| cudnn_packed     | offsets of the sequences; foreign blocks are never computed      |
| splash           | compares segment ids block by block; no [S, S] array in memory   |
| splash_interpret | the same kernel, interpreted: slow, on any device, for tests     |

`model.attention.attention` calls them. All can be causal; `cudnn` alone can add a bias to
the scores, as ALiBi asks for. None has attention dropout under a key of ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp


class AttentionError(ValueError):
  """An attention implementation cannot do what is asked of it."""


def cudnn_attention(
  query, key, value, segment_ids, max_segments, *, causal=False, bias=None
) -> jax.Array:
  """Arguments and result as of `model.attention.attention`; padding gets zeros.

  `bias` is of the type of the query, [1, N, S, S].
  """
  del max_segments
  real = segment_ids > 0
  mask = segment_ids[:, :, None] == segment_ids[:, None, :]  # padding sees padding
  if causal:
    mask &= jnp.tri(query.shape[1], dtype=bool)[None]
  attended = jax.nn.dot_product_attention(
    query, key, value, bias=bias, mask=mask[:, None], implementation="cudnn"
  )
  return _where(real, attended)


def cudnn_packed_attention(
  query, key, value, segment_ids, max_segments, *, causal=False
) -> jax.Array:
  """Arguments and result as of `model.attention.attention`; padding gets zeros."""
  # Private: jax.nn has no offsets. The names are tested against the pinned JAX.
  from jax._src.cudnn import fused_attention_stablehlo as cudnn

  if max_segments is None:
    raise AttentionError(
      "Expected max_segments, the sequences a pack may have, for cudnn_packed."
    )
  lengths, starts = segment_lengths_and_starts(segment_ids, max_segments)
  real = segment_ids > 0
  # The kernel neither reads nor writes padding: what stands there is left-over memory.
  attended = cudnn.dot_product_attention(
    _where(real, query),
    _where(real, key),
    _where(real, value),
    q_seqlen=lengths,
    kv_seqlen=lengths,
    q_offsets=starts,
    kv_offsets=starts,
    scale=1 / math.sqrt(query.shape[-1]),
    mask_type=cudnn.MaskType.PADDING_CAUSAL if causal else cudnn.MaskType.PADDING,
  )
  return _where(real, attended)


def segment_lengths_and_starts(
  segment_ids: jax.Array, max_segments: int
) -> tuple[jax.Array, jax.Array]:
  """The layout that cuDNN asks for.

  Args:
    segment_ids: int32[B, S]; each id's tokens stand together.
    max_segments: the largest segment id there can be, M.

  Returns:
    int32[B, M], tokens of each segment, and int32[B, M + 1], its first token; -1 where
    there is none. M is at least 2: cuDNN takes one segment a row for not packed.

  Example:
    >>> lengths, starts = segment_lengths_and_starts(jnp.array([[1, 1, 2, 0]]), 3)
    >>> lengths.tolist(), starts.tolist()
    ([[2, 1, -1]], [[0, 2, -1, -1]])
  """
  numbers = jnp.arange(1, max(max_segments, 2) + 1)
  belongs = segment_ids[:, None, :] == numbers[None, :, None]  # [B, M, S]
  lengths = belongs.sum(-1, dtype=jnp.int32)
  starts = jnp.where(lengths > 0, belongs.argmax(-1).astype(jnp.int32), -1)
  starts = jnp.pad(starts, ((0, 0), (0, 1)), constant_values=-1)
  return jnp.where(lengths > 0, lengths, -1), starts


def splash_attention(
  query, key, value, segment_ids, max_segments, *, causal=False, interpret=False
) -> jax.Array:
  """Arguments and result as of `model.attention.attention`; padding attends to padding."""
  del max_segments
  from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as splash,
  )
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask

  row_length, num_heads, head_size = query.shape[1:]
  shape = (row_length, row_length)
  mask: splash_attention_mask.Mask = splash_attention_mask.FullMask(shape)
  if causal:
    mask = splash_attention_mask.CausalMask(shape)
  kernel = splash.make_splash_mha(
    splash_attention_mask.MultiHeadMask([mask] * num_heads),
    head_shards=1,
    q_seq_shards=1,
    interpret=interpret,
  )
  heads_first = lambda x: x.transpose(0, 2, 1, 3)  # noqa: E731
  attended = jax.vmap(kernel)(
    heads_first(query) * jnp.asarray(1 / math.sqrt(head_size), query.dtype),
    heads_first(key),
    heads_first(value),
    segment_ids=splash.SegmentIds(segment_ids, segment_ids),
  )
  return heads_first(attended).astype(value.dtype)


def _where(real: jax.Array, x: jax.Array) -> jax.Array:
  """Zeros at padding, in value and gradient; [B, S] and [B, S, N, H]."""
  return jnp.where(real[:, :, None, None], x, 0)


class Kernel(NamedTuple):
  """A fused implementation and what it needs."""

  attend: Callable
  runs_on: str
  platform: str | None  # None for any
  compute_capability: float  # of the GPU, at least
  dtypes: tuple[str, ...]
  head_multiple: int
  row_multiple: int  # tokens
  takes_bias: bool = False


def _splash_interpret(*args, **options):
  return splash_attention(*args, **options, interpret=True)


_HALF = ("bfloat16", "float16")
KERNELS = {
  "cudnn": Kernel(
    cudnn_attention, "NVIDIA GPUs since Ampere", "gpu", 8.0, _HALF, 8, 2, takes_bias=True
  ),
  "cudnn_packed": Kernel(
    cudnn_packed_attention, "NVIDIA GPUs since Hopper", "gpu", 9.0, _HALF, 8, 1
  ),
  "splash": Kernel(splash_attention, "TPUs", "tpu", 0.0, ("float32", "bfloat16"), 1, 128),
  "splash_interpret": Kernel(
    _splash_interpret, "any device, slowly", None, 0.0, ("float32", "bfloat16"), 1, 128
  ),
}


def dtypes_of(implementation: str) -> tuple[str, ...]:
  """Those that query, key and value may have; `implementation` may also be "xla"."""
  if implementation == "xla":
    return ("float64", "float32", *_HALF)
  return KERNELS[implementation].dtypes


def check(
  implementation: str,
  *,
  dtype: jnp.dtype,
  head_size: int,
  row_length: int,
  dropout_rate: float,
  alibi: bool,
):
  """Arguments and errors as of `model.attention.check`."""
  kernel = KERNELS[implementation]
  device = jax.local_devices()[0]
  capability = float(getattr(device, "compute_capability", None) or 0)
  reason = None
  if dropout_rate > 0:
    reason = (
      f"an attention dropout of 0, found {dropout_rate}: the kernel cannot take a key. "
      "Set attention_dropout_rate=0"
    )
  elif alibi and not kernel.takes_bias:
    reason = (
      "scores without a bias, found ALiBi's: the kernel cannot add it. Set "
      "positions=learned"
    )
  elif kernel.platform not in (None, device.platform):
    reason = f"{kernel.runs_on}, found {device.platform}. Use such a device"
  elif capability < kernel.compute_capability:
    reason = (
      f"{kernel.runs_on}, found {device.device_kind} of compute capability "
      f"{capability}. Use such a device"
    )
  elif dtype.name not in kernel.dtypes:
    reason = f"{' or '.join(kernel.dtypes)}, found {dtype.name}. Set dtype=bfloat16"
  elif head_size % kernel.head_multiple:
    reason = (
      f"heads of a multiple of {kernel.head_multiple}, found {head_size}. Set another "
      "hidden_size or num_heads"
    )
  elif row_length % kernel.row_multiple:
    reason = (
      f"rows of a multiple of {kernel.row_multiple} tokens, found {row_length}. Set "
      "another row length"
    )
  if reason:
    raise AttentionError(
      f"attention_impl={implementation} needs {reason}, or attention_impl=xla."
    )
