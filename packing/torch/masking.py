"""Masked tokens of packed rows, for masked language models in PyTorch."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from packing.errors import InputError
from packing.torch.collator import PackedCollator


class KeyedPack(list):
  """The examples of a pack; what makes it unlike others, for random numbers.

  The labels of a dummy do not count. A process has it where there is no other row.
  """

  def __init__(self, examples: list[Any], *, key: tuple[int, ...], is_dummy: bool):
    super().__init__(examples)
    self.key, self.is_dummy = key, is_dummy


@dataclasses.dataclass(frozen=True)
class MaskingCollator:
  """Masks tokens of packed rows, for masked language models.

  Attributes:
    collator: lays out the rows.
    masking: `DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)` of
      transformers, which chooses and replaces tokens; none of padding.

  Example:
    >>> collator = MaskingCollator(  # doctest: +SKIP
    ...   PackedCollator.of(plan, model.config), DataCollatorForLanguageModeling(tokenizer)
    ... )
  """

  collator: PackedCollator
  masking: Any

  def __post_init__(self):
    if getattr(self.masking, "whole_word_mask", False):
      raise InputError("whole_word_mask needs padded examples. Leave it out.")
    if not getattr(self.masking, "mlm", True) or not hasattr(
      self.masking, "torch_mask_tokens"
    ):
      raise InputError(
        f"masking is {type(self.masking).__name__}; expected "
        "DataCollatorForLanguageModeling(tokenizer) of transformers, with mlm=True."
      )

  def __call__(self, packs: Sequence[Any]) -> dict[str, Any]:
    """As `PackedCollator`, with `labels` of -100 except where a token was chosen.

    If examples have a `special_tokens_mask`, tokens with a 1 there are not chosen;
    otherwise these are the special tokens of the tokenizer.
    """
    masking, rows = self.masking, self.collator.rows(packs)
    if masking.seed is not None and masking.generator is None:
      masking.create_rng()
    ids = torch.as_tensor(rows["input_ids"]).long()
    is_special = torch.as_tensor(self._special_tokens(rows)).bool()
    is_special |= torch.as_tensor(rows["segment_ids"] == 0)
    if isinstance(packs[0], KeyedPack):
      masked, labels = self._by_pack(packs, ids, is_special)
    else:
      masked, labels = masking.torch_mask_tokens(ids, is_special)
    return self.collator.arguments(rows | {"input_ids": masked, "labels": labels})

  def _special_tokens(self, rows: dict[str, np.ndarray]) -> Any:
    """[B, S], which tokens are never chosen: what the examples say, or the tokenizer."""
    if (given := rows.pop("special_tokens_mask", None)) is not None:
      return given
    told = self.masking.tokenizer.get_special_tokens_mask
    return [
      told(row, already_has_special_tokens=True) for row in rows["input_ids"].tolist()
    ]

  def _by_pack(
    self, packs: Sequence[Any], ids: torch.Tensor, is_special: torch.Tensor
  ) -> tuple[torch.Tensor, torch.Tensor]:
    """Masks depend on seed, epoch and pack, not on the batch, its process or its worker."""
    masking, made = copy.copy(self.masking), []
    for pack, row, special in zip(packs, ids, is_special, strict=True):
      seed = np.random.SeedSequence([masking.seed or 0, *pack.key]).generate_state(1)
      masking.generator = torch.Generator().manual_seed(int(seed[0]))
      made.append(masking.torch_mask_tokens(row[None], special[None]))
    masked, labels = zip(*made, strict=True)
    return torch.cat(masked), torch.cat(labels)
