"""Masks of packed rows, as a tensor or as blocks, in which no sequence sees another."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask

from packing.errors import InputError

MOST_BYTES = 2**31  # of the masks of a batch
_BLOCK = 128  # tokens; the size of FlexAttention's blocks
_REMEDY = (
  "Use fewer or shorter rows, or load the model with attn_implementation="
  "'flash_attention_2' or 'flex_attention', for which PackedCollator.for_model makes no "
  "such mask."
)


@dataclasses.dataclass(frozen=True)
class Allowed:
  """Which key a query may see; a `mask_mod` of FlexAttention.

  Attributes:
    segments: int64[B, S]; padding is 0, and sees padding alone.
    causal: whether a query sees only itself and what is before it.
    window: how far it sees, as transformers counts: a causal window includes the token
      itself; otherwise it is the distance to either side. None sets no limit.
  """

  segments: torch.Tensor
  causal: bool
  window: int | None

  def __call__(self, batch: Any, head: Any, query: Any, key: Any) -> Any:
    """bool; for indices of one entry or, by broadcasting, of many."""
    allowed = self.segments[batch, query] == self.segments[batch, key]
    if self.causal:
      allowed = allowed & (key <= query)
    if self.window is not None:
      distance = query - key
      is_near = distance < self.window if self.causal else distance.abs() <= self.window
      allowed = allowed & is_near
    return allowed

  def by_blocks(self) -> Iterator[tuple[slice, torch.Tensor]]:
    """Blocks of queries, and bool[B, block, S] for each, so that little is held at once."""
    batch, length = self.segments.shape
    rows, keys = torch.arange(batch)[:, None, None], torch.arange(length)
    for start in range(0, length, _BLOCK):
      here = slice(start, min(start + _BLOCK, length))
      yield here, self(rows, None, keys[here, None], keys)


def check_size(rows: int, row_length: int, masks: int, dtype: torch.dtype):
  """Refuses masks too large to hold, before memory is taken.

  Raises:
    InputError: the masks of a batch would take more than 2 GiB.
  """
  size = rows * masks * row_length**2 * dtype.itemsize
  if size > MOST_BYTES:
    what = "boolean" if dtype == torch.bool else str(dtype).removeprefix("torch.")
    raise InputError(
      f"{masks * rows} {what} masks of {row_length} x {row_length} tokens take "
      f"{size / 2**30:.1f} GiB; expected at most {MOST_BYTES / 2**30:.0f} GiB. {_REMEDY}"
    )


def as_tensor(allowed: Allowed, dtype: torch.dtype) -> torch.Tensor:
  """[B, 1, S, S]; True where a query sees a key, or 0 there and elsewhere the minimum."""
  batch, length = allowed.segments.shape
  mask = torch.zeros(batch, 1, length, length, dtype=dtype)
  for here, block in allowed.by_blocks():
    if dtype == torch.bool:
      mask[:, 0, here] = block
    else:
      mask[:, 0, here].masked_fill_(~block, torch.finfo(dtype).min)
  return mask


class PackedBlockMask(BlockMask):
  """A `BlockMask` whose `mask_mod` moves along, since it reads the rows' segments."""

  def to(self, device: torch.device | str) -> PackedBlockMask:
    """The mask on another device."""
    moved = copy.copy(self)
    moved.__dict__.update(super().to(device).__dict__)
    allowed: Any = self.mask_mod
    moved.mask_mod = dataclasses.replace(allowed, segments=allowed.segments.to(device))
    return moved


def as_blocks(allowed: Allowed) -> PackedBlockMask:
  """The mask for FlexAttention, made without a tensor of S x S."""
  batch, length = allowed.segments.shape
  number = -(-length // _BLOCK)
  beyond = (0, number * _BLOCK - length)  # no query or key is there
  some = torch.zeros(batch, number, number, dtype=torch.bool)
  whole = torch.zeros_like(some)
  for here, block in allowed.by_blocks():
    keys = torch.nn.functional.pad(block, beyond).unflatten(2, (number, _BLOCK))
    some[:, here.start // _BLOCK] = keys.any(3).any(1)
    is_whole = here.stop - here.start == _BLOCK
    whole[:, here.start // _BLOCK] = keys.all(3).all(1) & is_whole
  counts, indices = _numbered(some & ~whole)
  full_counts, full_indices = _numbered(whole)
  return PackedBlockMask.from_kv_blocks(
    counts,
    indices,
    full_counts,
    full_indices,
    BLOCK_SIZE=_BLOCK,
    mask_mod=allowed,
    seq_lengths=(length, length),
  )


def _numbered(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
  """How many blocks of keys each block of queries has, and their numbers, these first."""
  blocks = blocks[:, None]
  order = torch.argsort(blocks.int(), dim=-1, descending=True, stable=True)
  return blocks.sum(-1).to(torch.int32), order.to(torch.int32)
