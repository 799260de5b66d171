"""Packs of examples as the arguments of a model, with masks that keep sequences apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

import packing
from packing.errors import InputError, check_integer, short_repr
from packing.row import IGNORED


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedCollator:
  """Lays packs into rows, for `model(**batch)` of transformers.

  An example is a mapping with `input_ids`. Lists of as many values, such as
  `token_type_ids` or `labels`, are laid out beside them. Single numbers, such as the class
  of a sequence, become an entry for each sequence.

  Attributes:
    row_length: S, in tokens.
    causal: a token sees no later ones. Labels are the tokens if examples have no `labels`,
      without the first of each sequence, which no token of its own predicts.
    pad_id: the token in padding.
    first_position: of each sequence. RoBERTa counts from `padding_idx + 1`.
    attention: `mask`, additive masks for `sdpa` and `eager`; `flash`, one long row with
      `cu_seq_lens_q` and so on, for FlashAttention.
    window: `config.sliding_window` of a model with local layers, such as ModernBERT; the
      mask is then one for each kind of layer.
    dtype: of the mask; that of the model.
    max_sequences: M, most sequences of a row. Without it, fields with an entry for each
      sequence are as wide as the batch needs.
    length_multiple, separator_tokens: of the plan.

  Example:
    >>> collator = PackedCollator(row_length=6, max_sequences=2)
    >>> pack = [{"input_ids": [5, 6], "label": 1}, {"input_ids": [4, 4, 4], "label": 0}]
    >>> batch = collator([pack])
    >>> batch["position_ids"].tolist(), batch["labels"].tolist()
    ([[0, 1, 0, 1, 2, 0]], [[1, 0]])
    >>> batch["sequence_starts"].tolist()  # where the [CLS] of each sequence is
    [[0, 2]]
    >>> (batch["attention_mask"][0, 0] == 0).int().tolist()[:3]
    [[1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 0]]
  """

  row_length: int
  causal: bool = False
  pad_id: int = 0
  first_position: int = 0
  attention: Literal["mask", "flash"] = "mask"
  window: int | None = None
  dtype: torch.dtype = torch.float32
  max_sequences: int | None = None
  length_multiple: int = 1
  separator_tokens: int = 0

  def __post_init__(self):
    for name in ("row_length", "length_multiple"):
      check_integer(name, getattr(self, name), at_least=1)
    if self.attention not in ("mask", "flash"):
      raise InputError(
        f"attention is {short_repr(self.attention)}; expected 'mask' or 'flash'."
      )
    if self.attention == "flash" and self.window is not None:
      raise InputError("window is for masks; FlashAttention gets it from the model.")

  @classmethod
  def of(cls, plan: packing.Plan, **options: Any) -> PackedCollator:
    """For the rows of a plan."""
    return cls(
      row_length=plan.row_length,
      max_sequences=plan.packing_depth,
      **plan.spacing | options,
    )

  def __call__(self, packs: Sequence[Any]) -> dict[str, Any]:
    """The arguments of a model, for B packs, or B rows of `packing.datasets`.

    Returns:
      `input_ids` and `position_ids`, int64[B, S]; `attention_mask`, [B, 1, S, S] of
      `dtype`, with a window one each of `full_attention` and `sliding_attention`; other
      lists of examples, [B, S], 0 in padding and `labels` -100. Of single numbers [B, M],
      in empty places -100 or NaN, the label as `labels`, and `sequence_starts` int64[B, M]
      and `sequence_mask` bool[B, M]. For FlashAttention B and S become 1 and B x S, and
      `cu_seq_lens_q`, `cu_seq_lens_k` int32 and `max_length_q`, `max_length_k` take the
      mask's place; padding counts as a sequence.

    Raises:
      InputError: a pack that does not fit, or examples with different fields.
    """
    return self.arguments(self.rows(packs))

  def rows(self, packs: Sequence[Any]) -> dict[str, np.ndarray]:
    """A packed batch of NumPy arrays, as `packing.testing` takes it."""
    if packs and isinstance(packs[0], Mapping):  # rows already
      return {name: np.stack([row[name] for row in packs]) for name in packs[0]}
    names = ("row_length", "max_sequences", "length_multiple", "separator_tokens")
    return packing.make_rows(packs, **{name: getattr(self, name) for name in names})

  def arguments(self, rows: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a model, for a packed batch: `rows`, or one of `packing.testing`."""
    batch = {name: torch.as_tensor(np.asarray(x)) for name, x in rows.items()}
    for name, x in batch.items():  # losses and gathers of PyTorch refuse int32
      if not x.is_floating_point() and x.dtype != torch.bool:
        batch[name] = x.long()
    segments, positions = batch.pop("segment_ids"), batch["position_ids"]
    is_real = segments > 0
    if self.causal:
      batch.setdefault("labels", batch["input_ids"])
    if "labels" in batch and batch["labels"].shape == segments.shape:
      told = is_real & (positions > 0) if self.causal else is_real
      batch["labels"] = batch["labels"].where(told, IGNORED)
    batch |= {
      "input_ids": batch["input_ids"].where(is_real, self.pad_id),
      "position_ids": positions + self.first_position,
    }
    if self.attention == "flash":
      flat = {
        name: x.reshape(1, -1) if x.shape == segments.shape else x
        for name, x in batch.items()
      }
      return flat | self._flash(segments)
    return batch | {"attention_mask": self._masks(segments)}

  def _masks(self, segments: torch.Tensor) -> Any:
    is_allowed = segments[:, :, None] == segments[:, None, :]
    places = torch.arange(segments.shape[1])
    distances = places[:, None] - places
    if self.causal:
      is_allowed = is_allowed & (distances >= 0)
    if self.window is None:
      return self._additive(is_allowed)
    # As transformers counts: a causal window holds the token itself, others are one-sided.
    is_near = distances < self.window if self.causal else distances.abs() <= self.window
    return {
      "full_attention": self._additive(is_allowed),
      "sliding_attention": self._additive(is_allowed & is_near),
    }

  def _additive(self, is_allowed: torch.Tensor) -> torch.Tensor:
    forbidden = torch.finfo(self.dtype).min
    return torch.where(is_allowed, 0.0, forbidden).to(self.dtype)[:, None]

  def _flash(self, segments: torch.Tensor) -> dict[str, Any]:
    is_new = torch.ones_like(segments, dtype=torch.bool)
    is_new[:, 1:] = segments[:, 1:] != segments[:, :-1]
    ends = torch.nonzero(is_new.reshape(-1))[:, 0][1:]
    ends = torch.cat([ends.new_zeros(1), ends, ends.new_full((1,), segments.numel())])
    if self.max_sequences:  # one shape: sequences of no tokens at the end
      gaps = 2 if self.separator_tokens or self.length_multiple > 1 else 1
      most = segments.shape[0] * (gaps * self.max_sequences + 1) + 1
      ends = torch.cat([ends, ends[-1:].expand(max(most - ends.numel(), 0))])
    ends = ends.to(torch.int32)
    longest = self.row_length
    return {
      "cu_seq_lens_q": ends,
      "cu_seq_lens_k": ends,
      "max_length_q": longest,
      "max_length_k": longest,
    }
