"""Turns packs into the arguments of a model, with masks that keep sequences apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

import packing
from packing.errors import InputError, check, check_integer
from packing.row import IGNORED, SameTypes, lay_out_packs
from packing.torch import masks, models


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
    attention: `mask` for masks, as `sdpa` and `eager` take them; `flex` for a `BlockMask`,
      as FlexAttention takes it; `flash` for one long row with `cu_seq_lens_q` and so on, as
      FlashAttention takes it.
    window: `config.sliding_window` of a model with local layers, such as ModernBERT.
    local_layers: whether `some` layers have the window, such as ModernBERT's, and there is
      a mask for each kind of layer, or `all`, such as Mistral's.
    dtype: the type of the mask: that of the model, to add to the scores, or `torch.bool`,
      which `sdpa` takes too and which has a quarter of the size.
    implementation: the model's `config._attn_implementation`, such as `flash_attention_2`.
      Without FlashAttention, a model that is not causal would ignore the inputs of `flash`.
    max_sequences: M, the most sequences in a row. Without it, fields with an entry for each
      sequence are as wide as the batch needs.
    length_multiple, separator_tokens: as in the plan.
    answers: what the model answers for: each `token`, or each `sequence`, as after
      `packed_heads`. For sequences there are always their places, labels may be lists of
      as many floats (one for each class), and tokens do not become labels.

  Raises:
    InputError: an attribute is out of range, the masks of one row would take more than 2
      GiB, or a field's type changes between batches.

  Example:
    >>> collator = PackedCollator(row_length=6, max_sequences=2)
    >>> pack = [{"input_ids": [5, 6], "label": 1}, {"input_ids": [4, 4, 4], "label": 0}]
    >>> batch = collator([pack])
    >>> batch["position_ids"].tolist(), batch["labels"].tolist()
    ([[0, 1, 0, 1, 2, 0]], [[1, 0]])
    >>> batch["cls_positions"].tolist()  # where the [CLS] of each sequence is
    [[0, 2]]
    >>> batch["sequence_ends"].tolist()  # its last token
    [[1, 4]]
    >>> (batch["attention_mask"][0, 0] == 0).int().tolist()[:3]
    [[1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 0]]
  """

  row_length: int
  causal: bool = False
  pad_id: int = 0
  first_position: int = 0
  attention: Literal["mask", "flash", "flex"] = "mask"
  window: int | None = None
  local_layers: Literal["some", "all"] = "some"
  dtype: torch.dtype = torch.float32
  implementation: str | None = None
  max_sequences: int | None = None
  length_multiple: int = 1
  separator_tokens: int = 0
  answers: Literal["token", "sequence"] = "token"
  _same_types: SameTypes = dataclasses.field(
    default_factory=SameTypes, init=False, repr=False, compare=False
  )

  def __post_init__(self):
    for name in ("row_length", "length_multiple", "window", "max_sequences"):
      value = getattr(self, name)
      if value is not None or name not in ("window", "max_sequences"):
        check_integer(name, value, at_least=1)
    for name in ("pad_id", "first_position", "separator_tokens"):
      check_integer(name, getattr(self, name), at_least=0)
    attentions = ("mask", "flash", "flex")
    check(self.attention in attentions, "attention", self.attention, f"one of {attentions}")
    check(
      self.local_layers in ("some", "all"), "local_layers", self.local_layers, "some or all"
    )
    check(self.answers in ("token", "sequence"), "answers", self.answers, "token, sequence")
    if self.attention == "flash" and self.window is not None:
      raise InputError("window is for masks; FlashAttention gets it from the model.")
    if (
      self.attention == "flash"
      and not self.causal
      and "flash" not in str(self.implementation)
    ):
      raise InputError(
        "A model that is not causal keeps the sequences of flash inputs apart only with "
        "FlashAttention. Use PackedCollator.for_model(model.config, ...), which knows, or "
        "give implementation='flash_attention_2'."
      )
    is_float = getattr(self.dtype, "is_floating_point", False)
    expected = "that of the model, such as torch.bfloat16, or torch.bool"
    check(is_float or self.dtype == torch.bool, "dtype", self.dtype, expected)
    self._check_size(1, self.row_length)

  @classmethod
  def for_model(
    cls, config: Any, *, row_length: int, attention: str = "auto", **options: Any
  ) -> PackedCollator:
    """Makes a collator for a model of transformers.

    Args:
      config: that of the loaded model, `model.config`. It gives `causal`, `pad_id`,
        `first_position`, `window`, `local_layers`, `dtype` and `implementation`; that of a
        model of images and text gives those of its text model.
      row_length: S, in tokens.
      attention: `auto` takes what the model's `attn_implementation` takes: `flash` for
        FlashAttention, `flex` for FlexAttention, `mask` for the others. Any other form is
        an error.
      options: other attributes, in place of those of the config.

    Raises:
      InputError: an attribute is out of range, `config` is not a config, the model does not
        take this attention, or its packed rows would not equal each sequence alone (for the
        types of transformers 5.23, docs/isolation_atlas.md says what was found).
    """
    of_model = models.options_of(config)
    kind: Any = models.attention_of(config, attention)
    if kind == "flash":
      of_model["window"] = None
    if options.get("causal", of_model["causal"]) != of_model["causal"]:
      raise InputError(
        f"causal is {options['causal']}, but {config.model_type} with this config has "
        f"causal={of_model['causal']}. Leave it out, or change is_decoder of the config."
      )
    return cls(row_length=row_length, attention=kind, **of_model | options)

  @classmethod
  def of(
    cls, plan: packing.Plan, model_config: Any = None, **options: Any
  ) -> PackedCollator:
    """Makes a collator for the rows of a plan.

    Args:
      plan: gives `row_length`, `max_sequences`, `length_multiple` and `separator_tokens`.
      model_config: the config of a model of transformers, used as in `for_model`; None for
        the defaults of the attributes.
      options: attributes, in place of those of the plan and the config.

    Raises:
      InputError: as for `for_model`.
    """
    of_plan = {
      "row_length": plan.row_length,
      "max_sequences": plan.packing_depth,
      **plan.spacing,
    }
    if model_config is None:
      return cls(**of_plan | options)
    return cls.for_model(model_config, **of_plan | options)

  def __call__(self, packs: Sequence[Any]) -> dict[str, Any]:
    """The arguments of a model for B packs, or for B rows of `packing.datasets`.

    Returns:
      `input_ids` and `position_ids`, int64[B, S]; `attention_mask`, [B, 1, S, S] of
      `dtype` or a `BlockMask`, or with a window in some layers a dictionary of two masks,
      `full_attention` and `sliding_attention`; and the other lists of the examples, [B, S],
      integers or floats, which are 0 in padding, or -100 in `labels`. If examples have
      single numbers, these become [B, M], with -100 or NaN in empty places, a `label` is
      renamed `labels`, and there are also `cls_positions` and `sequence_ends`, int64[B,
      M], the places of the first and the last token of each sequence, and `sequence_mask`
      bool[B, M]. For FlashAttention, B and S become 1 and B x S.
      `cu_seq_lens_q` and `cu_seq_lens_k`, int32, and `max_length_q` and `max_length_k`
      replace the mask; padding counts as a sequence. If causal, there is also `use_cache`,
      False: with a cache, transformers does not look for several sequences in a row.

    Raises:
      InputError: a pack does not fit, or examples have different fields or types or are
        padded (see `packing.make_rows`); or, with answers by `sequence`, a label is NaN.
    """
    return self._arguments(*self._fields(packs))

  def rows(self, packs: Sequence[Any]) -> dict[str, np.ndarray]:
    """A packed batch of NumPy arrays, in the form that `packing.testing` needs."""
    return self._fields(packs)[0]

  def arguments(self, rows: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a model for a packed batch of `rows` or of `packing.testing`.

    Raises:
      InputError: M is S, so that fields of sequences look like fields of tokens.
    """
    return self._arguments(rows, None)

  def _fields(self, packs: Sequence[Any]) -> tuple[dict[str, np.ndarray], set[str] | None]:
    """A packed batch, and which of its fields belong to sequences, if that is known."""
    is_row = not isinstance(packs, Mapping) and packs and isinstance(packs[0], Mapping)
    if is_row and "segment_ids" in packs[0]:
      rows = {name: np.stack([row[name] for row in packs]) for name in packs[0]}
      return self._same_types(rows), None
    tokens, sequences = lay_out_packs(
      packs,
      self.row_length,
      self.max_sequences,
      answers=self.answers,
      length_multiple=self.length_multiple,
      separator_tokens=self.separator_tokens,
    )
    return self._same_types(tokens | sequences), set(sequences)

  def _arguments(
    self, rows: Mapping[str, Any], of_sequences: set[str] | None
  ) -> dict[str, Any]:
    batch = {name: torch.as_tensor(np.asarray(x)) for name, x in rows.items()}
    for name, x in batch.items():  # PyTorch's losses and gathers reject int32
      if not x.is_floating_point() and x.dtype != torch.bool:
        batch[name] = x.long()
    segments, positions = batch.pop("segment_ids"), batch["position_ids"]
    batch.pop("attention_mask", None)  # a tokenizer's; it does not separate sequences
    is_real = segments > 0
    if of_sequences is None:
      of_sequences = {name for name, x in batch.items() if x.shape != segments.shape}
      if "cls_positions" in batch and "cls_positions" not in of_sequences:
        raise InputError(
          f"max_sequences is {segments.shape[1]}; expected less than the row length."
        )
    if "cls_positions" in batch:
      batch["sequence_ends"] = _last_places(segments, batch["cls_positions"].shape[1])
      of_sequences = of_sequences | {"sequence_ends"}
    if self.causal and self.answers == "token":
      batch.setdefault("labels", batch["input_ids"])
    if self.answers == "sequence" and "labels" in of_sequences:
      labels = batch["labels"][batch["sequence_mask"]]
      if labels.isnan().any():  # their loss would be NaN
        raise InputError(
          "The label of an example is NaN. Leave out such examples to train, or the field "
          "to predict."
        )
    if "labels" in batch and "labels" not in of_sequences:
      is_target = is_real & (positions > 0) if self.causal else is_real
      batch["labels"] = batch["labels"].where(is_target, IGNORED)
    batch |= {
      "input_ids": batch["input_ids"].where(is_real, self.pad_id),
      "position_ids": positions + self.first_position,
    }
    if self.attention == "flash":
      first = segments.shape[1] * torch.arange(len(segments))[:, None]
      for name in of_sequences & {"cls_positions", "sequence_ends"}:
        batch[name] = batch[name] + first  # places in the one long row
      flat = {
        name: x if name in of_sequences else x.reshape(1, -1) for name, x in batch.items()
      }
      return flat | self._flash(segments)
    return batch | {"attention_mask": self._masks(segments)}

  def _masks(self, segments: torch.Tensor) -> Any:
    self._check_size(*segments.shape)
    if self.window is None:
      return self._mask(segments, None)
    local = self._mask(segments, self.window)
    if self.local_layers == "all":
      return local
    return {"full_attention": self._mask(segments, None), "sliding_attention": local}

  def _mask(self, segments: torch.Tensor, window: int | None) -> Any:
    allowed = masks.Allowed(segments, self.causal, window)
    if self.attention == "flex":
      return masks.as_blocks(allowed)
    return masks.as_tensor(allowed, self.dtype)

  def _check_size(self, rows: int, row_length: int):
    if self.attention == "mask":
      kinds = 1 if self.window is None or self.local_layers == "all" else 2
      masks.check_size(rows, row_length, kinds, self.dtype)

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
    longest = segments.shape[1]
    no_cache = {"use_cache": False} if self.causal else {}
    return no_cache | {
      "cu_seq_lens_q": ends,
      "cu_seq_lens_k": ends,
      "max_length_q": longest,
      "max_length_k": longest,
    }


def _last_places(segments: torch.Tensor, width: int) -> torch.Tensor:
  """int64[B, M]; the place of the last token of each sequence, or 0 if there is none."""
  places = torch.arange(segments.shape[1]).expand_as(segments)
  last = torch.zeros(len(segments), width + 1, dtype=torch.int64)
  return last.scatter_reduce(1, segments, places, "amax")[:, 1:]
