"""Turns packs into the arguments of a model, with masks that keep sequences apart."""

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
  """Lays out packs in rows, as arguments of `model(**batch)` for models of transformers.

  An example is a mapping with `input_ids`. Its other lists of as many values, such as
  `token_type_ids` or `labels`, are laid out in the same way. Its single numbers, such as
  the class of a sequence, become an entry for each sequence.

  Attributes:
    row_length: S, in tokens.
    causal: whether a token sees only itself and earlier tokens. The first token of each
      sequence then has no label, since no token of its own sequence predicts it. If
      examples have no `labels`, the tokens are the labels.
    pad_id: the token in padding.
    first_position: the first position of each sequence. RoBERTa counts from
      `padding_idx + 1`.
    attention: `mask` for additive masks, as `sdpa` and `eager` take them; `flash` for one
      long row with `cu_seq_lens_q` and so on, as FlashAttention takes it.
    window: `config.sliding_window` of a model with local layers, such as ModernBERT; there
      is then a mask for each kind of layer.
    dtype: the type of the mask, which must be that of the model.
    max_sequences: M, the most sequences in a row. Without it, fields with an entry for each
      sequence are as wide as the batch needs.
    length_multiple, separator_tokens: as in the plan.

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
    """Makes a collator for the rows of a plan."""
    return cls(
      row_length=plan.row_length,
      max_sequences=plan.packing_depth,
      **plan.spacing | options,
    )

  def __call__(self, packs: Sequence[Any]) -> dict[str, Any]:
    """The arguments of a model for B packs, or for B rows of `packing.datasets`.

    Returns:
      `input_ids` and `position_ids`, int64[B, S]; `attention_mask`, [B, 1, S, S] of
      `dtype`, or with a window a dictionary of two masks, `full_attention` and
      `sliding_attention`; and the other lists of the examples, [B, S], which are 0 in
      padding, or -100 in `labels`. If examples have single numbers, these become [B, M],
      with -100 or NaN in empty places, a `label` is renamed `labels`, and there are also
      `sequence_starts` int64[B, M] and `sequence_mask` bool[B, M]. For FlashAttention, B
      and S become 1 and B x S. `cu_seq_lens_q` and `cu_seq_lens_k`, int32, and
      `max_length_q` and `max_length_k` replace the mask; padding counts as a sequence.

    Raises:
      InputError: a pack does not fit, or examples have different fields.
    """
    return self.arguments(self.rows(packs))

  def rows(self, packs: Sequence[Any]) -> dict[str, np.ndarray]:
    """A packed batch of NumPy arrays, in the form that `packing.testing` needs."""
    if packs and isinstance(packs[0], Mapping):  # rows already
      return {name: np.stack([row[name] for row in packs]) for name in packs[0]}
    names = ("row_length", "max_sequences", "length_multiple", "separator_tokens")
    return packing.make_rows(packs, **{name: getattr(self, name) for name in names})

  def arguments(self, rows: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a model for a packed batch of `rows` or of `packing.testing`."""
    batch = {name: torch.as_tensor(np.asarray(x)) for name, x in rows.items()}
    for name, x in batch.items():  # PyTorch's losses and gathers reject int32
      if not x.is_floating_point() and x.dtype != torch.bool:
        batch[name] = x.long()
    segments, positions = batch.pop("segment_ids"), batch["position_ids"]
    batch.pop("attention_mask", None)  # a tokenizer's; it does not separate sequences
    is_real = segments > 0
    if self.causal:
      batch.setdefault("labels", batch["input_ids"])
    if "labels" in batch and batch["labels"].shape == segments.shape:
      is_target = is_real & (positions > 0) if self.causal else is_real
      batch["labels"] = batch["labels"].where(is_target, IGNORED)
    batch |= {
      "input_ids": batch["input_ids"].where(is_real, self.pad_id),
      "position_ids": positions + self.first_position,
    }
    if self.attention == "flash":
      if "sequence_starts" in batch:  # places in the one long row
        first = segments.shape[1] * torch.arange(len(segments))[:, None]
        batch["sequence_starts"] = batch["sequence_starts"] + first
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
    # As transformers counts them: a causal window includes the token itself; otherwise the
    # window is the distance to either side.
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
    if self.max_sequences:  # empty sequences at the end, so that all batches have one shape
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
