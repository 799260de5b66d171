"""Kernels for attention: from cuDNN, from JAX's Pallas, and `block_attention`.

| name             | how it keeps sequences apart                                     |
|------------------|------------------------------------------------------------------|
| cudnn            | a mask [B, 1, S, S], turned into a bias                          |
| cudnn_packed     | offsets of the sequences; foreign blocks are never computed      |
| splash           | compares segment ids block by block; no [S, S] array in memory   |
| splash_interpret | the same kernel, interpreted: slow, on any device, for tests     |
| blocks           | plain JAX; blocks of keys without a shared sequence are skipped  |

`model.attention.attention` calls these kernels. All can be causal. Only `cudnn` can add a
bias to the scores, which ALiBi needs. `splash` and `blocks` can be local, limited to a
window of near tokens; with the other kernels, `xla` computes local layers. None takes a
dropout key.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from model.attention.block_attention import BLOCK, block_attention
from model.config import ATTENTION_MASKS, AttentionSpec, compute_capability
from model.masks import near


class AttentionError(ValueError):
  """An attention implementation cannot compute what the caller needs."""


def cudnn_attention(
  query, key, value, segment_ids, max_segments, *, causal=False, bias=None
) -> jax.Array:
  """`model.attention.attention`; zero output at padding; `bias` is [1, N, S, S]."""
  del max_segments
  mask = segment_ids[:, :, None] == segment_ids[:, None, :]  # padding sees padding
  if causal:
    places = jnp.arange(query.shape[1])
    mask &= near(places, places, None, causal=True)[None]
  attended = jax.nn.dot_product_attention(
    query, key, value, bias=bias, mask=mask[:, None], implementation="cudnn"
  )
  return _where(segment_ids > 0, attended)


def cudnn_packed_attention(
  query, key, value, segment_ids, max_segments, *, causal=False
) -> jax.Array:
  """`model.attention.attention`; zero output at padding."""
  # A private module, because jax.nn takes no offsets. A test checks the names used here.
  from jax._src.cudnn import fused_attention_stablehlo as cudnn

  if max_segments is None:
    raise AttentionError("cudnn_packed needs max_segments, the most sequences in a pack.")
  lengths, starts = segment_lengths_and_starts(segment_ids, max_segments)
  real = segment_ids > 0
  # The kernel neither reads nor writes padding: its output and its gradients there are
  # uninitialised.
  query, key, value = (_zero_gradient_of_padding(real, x) for x in (query, key, value))
  attended = cudnn.dot_product_attention(
    query,
    key,
    value,
    q_seqlen=lengths,
    kv_seqlen=lengths,
    q_offsets=starts,
    kv_offsets=starts,
    scale=1 / math.sqrt(query.shape[-1]),
    mask_type=cudnn.MaskType.PADDING_CAUSAL if causal else cudnn.MaskType.PADDING,
  )
  return _zero_padding(real, attended)


def segment_lengths_and_starts(
  segment_ids: jax.Array, max_segments: int
) -> tuple[jax.Array, jax.Array]:
  """Where the segments of each row are, in the form that cuDNN expects.

  Args:
    segment_ids: int32[B, S]; the tokens with the same id are adjacent.
    max_segments: M, the largest possible segment id.

  Returns:
    int32[B, M], the number of tokens of each segment, and int32[B, M + 1], the place of its
    first token; -1 for absent segments. M is raised to at least 2, because cuDNN treats
    rows of one segment as unpacked.

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


def splash_block(row_length: int, window: int | None) -> int:
  """The tokens of a block of splash: the most of 512, 256 and 128 that divide a row.

  Larger blocks than its default of 128 are faster, on a v6e by a third
  (https://github.com/apple/axlearn/pull/958); we have not measured it. With a window they
  are small, since all pairs of each block that it touches are computed.

  Example:
    >>> [splash_block(length, None) for length in (512, 768, 640)], splash_block(512, 64)
    ([512, 256, 128], 128)
  """
  sizes = (512, 256) if window is None else ()
  return next((size for size in sizes if row_length % size == 0), 128)


def splash_attention(
  query,
  key,
  value,
  segment_ids,
  max_segments,
  *,
  causal=False,
  window=None,
  interpret=False,
) -> jax.Array:
  """`model.attention.attention`; padding attends to padding."""
  del max_segments
  from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as splash,
  )
  from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask

  row_length, num_heads, head_size = query.shape[1:]
  shape = (row_length, row_length)
  blocks: dict[str, Any] = dict.fromkeys(_SPLASH_BLOCKS, splash_block(row_length, window))
  mask: splash_attention_mask.Mask = splash_attention_mask.FullMask(shape)
  if window is not None:
    ahead = 0 if causal else window
    mask = splash_attention_mask.LocalMask(shape, window_size=(window, ahead), offset=0)
  elif causal:
    mask = splash_attention_mask.CausalMask(shape)
  kernel = splash.make_splash_mha(
    splash_attention_mask.MultiHeadMask([mask] * num_heads),
    block_sizes=splash.BlockSizes(**blocks),
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
  """bool[B, S] and [B, S, N, H] -> x with zeros at padding, in value and gradient."""
  return jnp.where(real[:, :, None, None], x, 0)


@jax.custom_vjp
def _zero_padding(real: jax.Array, x: jax.Array) -> jax.Array:
  """`_where` in the value; the gradient passes as it is."""
  return _where(real, x)


@jax.custom_vjp
def _zero_gradient_of_padding(real: jax.Array, x: jax.Array) -> jax.Array:
  """`_where` in the gradient; the value passes as it is."""
  del real
  return x


_zero_padding.defvjp(lambda real, x: (_where(real, x), None), lambda _, g: (None, g))
_zero_gradient_of_padding.defvjp(
  lambda real, x: (x, real), lambda real, g: (None, _where(real, g))
)


class Kernel(NamedTuple):
  """A kernel and its requirements."""

  attend: Callable
  runs_on: str
  dtypes: tuple[str, ...]
  platform: str | None = None  # None for any
  compute_capability: float = 0.0  # the lowest that the GPU may have
  head_multiple: int = 1
  row_multiple: int = 1  # tokens
  takes_bias: bool = False
  takes_window: bool = False
  splits_rows: bool = True  # whether XLA can split its rows over devices
  skips: bool = False  # whether pairs of tokens of different sequences cost nothing
  masks: tuple[str, ...] = ATTENTION_MASKS


_SPLASH_BLOCKS = (
  *("block_q", "block_kv", "block_kv_compute", "block_q_dq", "block_kv_dq"),
  *("block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute"),
)
_HALF = ("bfloat16", "float16")
_SPLASH = Kernel(
  *(splash_attention, "TPUs", ("float32", "bfloat16"), "tpu"),
  row_multiple=128,
  takes_window=True,
  splits_rows=False,
)
KERNELS = {
  "cudnn": Kernel(
    *(cudnn_attention, "NVIDIA GPUs since Ampere", _HALF, "gpu", 8.0, 8, 2),
    takes_bias=True,
  ),
  "cudnn_packed": Kernel(
    *(cudnn_packed_attention, "NVIDIA GPUs since Hopper", _HALF, "gpu", 9.0, 8),
    skips=True,
    masks=("segment",),  # the tokens of one id must be adjacent, also with "none"
  ),
  "splash": _SPLASH,
  "splash_interpret": _SPLASH._replace(
    attend=functools.partial(splash_attention, interpret=True),
    runs_on="any device, slowly",
    platform=None,
  ),
  "blocks": Kernel(
    *(block_attention, "any device", ("float64", "float32", *_HALF)),
    row_multiple=BLOCK,
    takes_window=True,
    splits_rows=False,
    skips=True,
    masks=("segment", "none"),  # the tokens of one id must be adjacent
  ),
}
# `auto` takes the first that can compute the model; see `model.attention.fastest`.
FASTEST_FIRST = ("cudnn_packed", "cudnn", "splash")
IMPLEMENTATIONS = {"xla": "any device; the reference"} | {
  name: kernel.runs_on for name, kernel in KERNELS.items()
}


def attend(
  implementation: str, query, key, value, segment_ids, max_segments, **options
) -> jax.Array:
  """`model.attention.attention` with the kernel of this name.

  On a mesh (`jax.sharding.use_abstract_mesh`), a kernel that XLA cannot split is called
  by each device for its own rows.
  """
  kernel, mesh = KERNELS[implementation], jax.sharding.get_abstract_mesh()

  def call(query, key, value, segment_ids):
    return kernel.attend(query, key, value, segment_ids, max_segments, **options)

  axes = mesh.auto_axes  # empty within `jax.shard_map`, where rows are one device's
  if not kernel.splits_rows and math.prod(mesh.shape[axis] for axis in axes) > 1:
    rows = PartitionSpec(axes)
    call = jax.shard_map(call, in_specs=rows, out_specs=rows, check_vma=False)
  return call(query, key, value, segment_ids)


def dtypes_of(implementation: str) -> tuple[str, ...]:
  """The dtypes that query, key and value may have."""
  if implementation == "xla":
    return ("float64", "float32", *_HALF)
  return KERNELS[implementation].dtypes


def is_local(implementation: str) -> bool:
  """Whether this implementation computes local layers itself; otherwise `xla` does."""
  return implementation == "xla" or KERNELS[implementation].takes_window


class Needs(NamedTuple):
  """What a layer needs of its implementation of attention.

  Attributes:
    dtype: the name of the dtype of query, key and value.
    head_size: H.
    row_length: S, in tokens.
    spec: the attention.
  """

  dtype: str
  head_size: int
  row_length: int
  spec: AttentionSpec = AttentionSpec()


def runs_here(implementation: str) -> bool:
  """Whether the kernel is for devices like this machine's."""
  kernel, device = KERNELS[implementation], jax.local_devices()[0]
  return (
    kernel.platform in (None, device.platform)
    and compute_capability(device) >= kernel.compute_capability
  )


def check_kernel(implementation: str, needs: Needs):
  """Refuses what an implementation cannot do on this machine's device.

  Args:
    implementation: a key of `IMPLEMENTATIONS`, or "auto".
    needs: what a layer needs.

  Raises:
    AttentionError: says what was expected, what was found and what to do.
  """
  if implementation in ("auto", "xla"):
    return
  if implementation not in IMPLEMENTATIONS:
    raise AttentionError(
      f"attention_impl is {implementation!r}; expected {', '.join(IMPLEMENTATIONS)}."
    )
  kernel, device = KERNELS[implementation], jax.local_devices()[0]
  here = device.platform.upper()
  if device.platform == kernel.platform == "gpu":
    here += f" ({device.device_kind} of compute capability {compute_capability(device)})"
  requirements = (
    (
      not needs.spec.dropout_rate,
      f"needs an attention dropout of 0, found {needs.spec.dropout_rate}. Set "
      "attention_dropout_rate=0",
    ),
    (
      kernel.takes_bias or needs.spec.slopes is None,
      "needs scores without a bias, found ALiBi's. Set positions=learned",
    ),
    (
      needs.spec.mask in kernel.masks,
      f"needs attention_mask={' or '.join(kernel.masks)}, found {needs.spec.mask}. Set "
      f"attention_mask={kernel.masks[0]}",
    ),
    (
      runs_here(implementation),
      f"runs only on {kernel.runs_on}; this is a {here}. Set attention_impl=auto",
    ),
    (
      needs.dtype in kernel.dtypes,
      f"needs {' or '.join(kernel.dtypes)}, found {needs.dtype}. Set dtype=bfloat16",
    ),
    (
      needs.head_size % kernel.head_multiple == 0,
      f"needs a head size that is a multiple of {kernel.head_multiple}, found "
      f"{needs.head_size}. Set another hidden_size or num_heads",
    ),
    (
      needs.row_length % kernel.row_multiple == 0,
      f"needs a row length that is a multiple of {kernel.row_multiple} tokens, found "
      f"{needs.row_length}. Set another row length",
    ),
  )
  for is_met, requirement in requirements:
    if not is_met:
      raise AttentionError(
        f"attention_impl={implementation} {requirement}, or attention_impl=xla."
      )


SKIPPING = frozenset(name for name, kernel in KERNELS.items() if kernel.skips)
