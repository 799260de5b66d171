"""Heads that give one answer for each sequence of a packed row."""

from __future__ import annotations

import copy
import functools
from typing import Any, Literal

import torch

from packing.errors import InputError
from packing.row import IGNORED

# The types of transformers whose ...ForSequenceClassification reads the first token (or,
# where the config says so, the mean of all), and those that read the last.
# tests/packing/torch/test_heads.py holds each of them against each sequence alone.
FIRST = frozenset(
  {
    *("albert", "bert", "camembert", "data2vec-text", "distilbert", "electra", "ernie"),
    *("eurobert", "megatron-bert", "modernbert", "mpnet", "nomic_bert", "rembert"),
    *("roberta", "roberta-prelayernorm", "squeezebert", "xlm-roberta", "xlm-roberta-xl"),
  }
)
LAST = frozenset(
  {
    *("biogpt", "exaone4", "falcon", "gemma", "gemma2", "gemma3_text", "glm", "glm4"),
    *("gpt2", "gpt_neox", "gpt_oss", "helium", "llama", "ministral3", "mistral"),
    *("mixtral", "modernbert-decoder", "mpt", "olmo", "olmo2", "olmo3", "opt"),
    *("persimmon", "phi", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3", "stablelm"),
    "starcoder2",
  }
)
_ASK_CONFIG = ("eurobert", "modernbert")
_BY_CONFIG = {"cls": "first", "bos": "first", "mean": "mean"}  # `classifier_pooling`


def packed_heads(model: Any) -> Any:
  """Makes a `...ForSequenceClassification` answer for each sequence of a packed row.

  The base model runs on rows, and the head, as it is, on what it reads of each sequence:
  the first token, the last, or the mean of all. With a batch that is not packed, the model
  does what it did before. Its weights keep their names, so `save_pretrained` writes those
  of the plain model.

  The loss is the mean over the sequences that have labels, as for sequences alone: squared
  differences for regression, cross-entropy for one class of several, and binary
  cross-entropy for several labels (`config.problem_type`, or what transformers concludes
  from labels). `model(**batch, num_items_in_batch=n)` divides the sum by n instead, the
  number of labelled sequences in all micro-batches of a step.

  Args:
    model: of transformers, of a type in `FIRST` or `LAST`. It is changed.

  Returns:
    The same model. Its `logits` for a batch of `PackedCollator` are [B, M, L], for
    `labels` [B, M], or [B, M, L] where they are lists of floats. Where `sequence_mask` is
    False there is no sequence, and logits mean nothing.

  Raises:
    InputError: it is another model, or its config asks for another pooling.

  Example:
    >>> import transformers  # doctest: +SKIP
    >>> from packing.torch import PackedCollator, packed_heads
    >>> config = transformers.BertConfig(num_labels=4)  # doctest: +SKIP
    >>> model = transformers.BertForSequenceClassification(config)  # doctest: +SKIP
    >>> model = packed_heads(model)  # doctest: +SKIP
    >>> collator = PackedCollator.for_model(config, row_length=8)  # doctest: +SKIP
    >>> pack = [{"input_ids": [5, 6], "label": 1}, {"input_ids": [4, 4], "label": 0}]
    >>> model(**collator([pack])).logits.shape  # doctest: +SKIP
    torch.Size([1, 2, 4])
  """
  if not isinstance(model, _BySequence):
    pooling_of(model)
    if model.base_model_prefix not in model._modules:  # its head would run another model
      raise InputError(
        f"{type(model).__name__} wraps the model with the head. Call packed_heads on the "
        "model before it is wrapped."
      )
    plain: Any = type(model)
    model.__class__ = _by_sequence(plain)
  return model


def has_packed_heads(model: torch.nn.Module) -> bool:
  """Whether the model, or one that it wraps, answers for each sequence."""
  return any(isinstance(module, _BySequence) for module in model.modules())


def pooling_of(model: Any) -> Literal["first", "last", "mean"]:
  """Which hidden states of a sequence the head of a model reads.

  Raises:
    InputError: this is no `...ForSequenceClassification` of a known type.
  """
  name = type(model).__name__
  config: Any = getattr(model, "config", None)
  kind = getattr(config, "model_type", None)
  if not name.endswith("ForSequenceClassification") or kind not in FIRST | LAST:
    raise InputError(
      f"{name} (type {kind!r}) has no head that is known to answer for each sequence of a "
      "row. Pad its batches, or use a ...ForSequenceClassification of one of these types: "
      f"{', '.join(sorted(FIRST | LAST))}."
    )
  if kind in LAST:
    return "last"
  if kind not in _ASK_CONFIG:
    return "first"
  asked = config.classifier_pooling
  if asked not in _BY_CONFIG:
    raise InputError(
      f"{name} has classifier_pooling={asked!r}; expected one of {sorted(_BY_CONFIG)}. "
      "Change it in the config, or pad."
    )
  return _BY_CONFIG[asked]  # type: ignore[return-value]


class _BySequence:
  """What `packed_heads` puts before the class of a model."""

  accepts_loss_kwargs = False  # else a Trainer counts the NaN of empty places as labels
  _plain: type

  def forward(
    self,
    *args: Any,
    cls_positions: torch.Tensor | None = None,
    sequence_ends: torch.Tensor | None = None,
    sequence_mask: torch.Tensor | None = None,
    labels: torch.Tensor | None = None,
    num_items_in_batch: Any = None,
    **batch: Any,
  ) -> Any:
    plain: Any = self._plain.forward  # type: ignore[attr-defined]
    if cls_positions is None:
      _check_not_packed(batch)
      if num_items_in_batch is not None:
        batch["num_items_in_batch"] = num_items_in_batch
      return plain(self, *args, labels=labels, **batch)
    if args or sequence_ends is None or sequence_mask is None:
      raise InputError(
        "A packed batch needs input_ids, cls_positions, sequence_ends and sequence_mask "
        "by name. Call model(**batch) with a batch of PackedCollator."
      )
    model: Any = self
    config = model.config
    as_dict = batch.pop("return_dict", None)
    base = getattr(model, model.base_model_prefix)
    rows = base(**batch, return_dict=True)
    pooled = _pool(model, rows.last_hidden_state, batch, cls_positions, sequence_ends)
    logits = plain(_head(model, base, pooled), **_one_token(pooled)).logits
    logits = logits.view(*cls_positions.shape, -1)
    loss = None
    if labels is not None:
      loss = _loss(config, logits, labels, sequence_mask, num_items_in_batch)
    output = _outputs().SequenceClassifierOutput(
      loss=loss,
      logits=logits,
      hidden_states=rows.hidden_states,
      attentions=rows.attentions,
    )
    is_dict = config.return_dict if as_dict is None else as_dict
    return output if is_dict else output.to_tuple()

  def __reduce_ex__(self, protocol: Any) -> Any:
    reduced: Any = super().__reduce_ex__(protocol)
    return _empty, (self._plain,), *reduced[2:]


@functools.cache
def _by_sequence(plain: Any) -> Any:
  """The class of a model with packed heads, under the name that its config records."""
  names = {"__module__": plain.__module__, "__qualname__": plain.__qualname__}
  return type(plain.__name__, (_BySequence, plain), names | {"_plain": plain})


def _empty(plain: type) -> Any:
  """An object without state, for `copy` and `pickle`, which do not find its class."""
  kind: Any = _by_sequence(plain)
  return kind.__new__(kind)


def _outputs() -> Any:
  import transformers.modeling_outputs  # there, since the model is of transformers

  return transformers.modeling_outputs


def _check_not_packed(batch: dict[str, Any]):
  mask = batch.get("attention_mask")
  is_plain = mask is None or (isinstance(mask, torch.Tensor) and mask.ndim == 2)
  if not is_plain or "cu_seq_lens_q" in batch:
    raise InputError(
      "This packed batch does not say where its sequences are. Make its PackedCollator "
      "with answers='sequence'."
    )


def _pool(
  model: Any,
  hidden: torch.Tensor,
  batch: dict[str, Any],
  starts: torch.Tensor,
  ends: torch.Tensor,
) -> torch.Tensor:
  """[B x M, 1, H]; what the head reads of each sequence, as its only token."""
  pooling = pooling_of(model)
  rows, length, width = hidden.shape
  offsets = length * torch.arange(rows, device=hidden.device)[:, None]
  if pooling == "mean":
    places = torch.arange(length, device=hidden.device)
    # With FlashAttention there is one long row, but [B, M] sequences.
    first, last = (x.reshape(rows, -1, 1) for x in (starts, ends))
    own = (places >= first) & (places <= last)  # [B, M, S]
    weights = own.to(hidden.dtype) / own.sum(-1, keepdim=True)
    return (weights @ hidden).view(-1, 1, width)
  at = starts
  pad_id = model.config.get_text_config().pad_token_id
  if pooling == "last":
    at = ends
    if pad_id is not None:  # alone, the last token that is not padding's
      places = torch.arange(length, device=hidden.device)
      other = (batch["input_ids"] != pad_id).long() * (places + 1) - 1
      last = torch.cummax(other, 1).values.reshape(-1)[(offsets + ends).reshape(-1)]
      at = torch.maximum(last.view_as(ends), starts)
  return hidden.reshape(-1, width)[(offsets + at).reshape(-1)][:, None]


class _Answered(torch.nn.Module):
  """Stands for the base model, and returns what it is given."""

  def __init__(self, output: Any):
    super().__init__()
    self._output = output

  def forward(self, *_: Any, **__: Any) -> Any:
    return self._output


def _head(model: Any, base: Any, pooled: torch.Tensor) -> Any:
  """A shallow copy of the model that has the hidden states of its sequences already."""
  pooler = getattr(base, "pooler", None)
  summary = None if pooler is None else pooler(pooled)
  if summary is not None and summary.ndim == 3:  # ALBERT's is a layer without activation
    summary = base.pooler_activation(summary[:, 0])
  output = _outputs().BaseModelOutputWithPoolingAndCrossAttentions(
    last_hidden_state=pooled, pooler_output=summary
  )
  head = object.__new__(model._plain)
  head.__dict__.update(model.__dict__)
  head.__dict__["_modules"] = model._modules | {model.base_model_prefix: _Answered(output)}
  config = copy.copy(model.config)
  # Padding is no question here, and without its token several sequences are refused.
  config.pad_token_id, config.return_dict = 0, True
  head.__dict__["config"] = config
  return head


def _one_token(pooled: torch.Tensor) -> dict[str, torch.Tensor]:
  ones = torch.ones(pooled.shape[:2], dtype=torch.int64, device=pooled.device)
  return {"input_ids": ones, "attention_mask": ones}


def _loss(
  config: Any,
  logits: torch.Tensor,
  labels: torch.Tensor,
  mask: torch.Tensor,
  number: Any,
) -> torch.Tensor:
  """The mean over sequences with labels, or their sum divided by a number given."""
  classes = logits.shape[-1]
  if config.problem_type is None:  # as transformers concludes it
    if config.num_labels == 1:
      config.problem_type = "regression"
    elif not labels.is_floating_point():
      config.problem_type = "single_label_classification"
    else:
      config.problem_type = "multi_label_classification"
  functional = torch.nn.functional
  if config.problem_type == "single_label_classification":
    _check_shape(labels, mask.shape, "one integer for each sequence")
    flat = logits.reshape(-1, classes), labels.reshape(-1)
    loss = functional.cross_entropy(*flat, ignore_index=IGNORED, reduction="sum")
    own = (labels != IGNORED).sum()
  else:
    is_one = labels.ndim == 2 and classes == 1
    expected = f"{classes} floats for each sequence"
    _check_shape(labels, mask.shape if is_one else logits.shape, expected)
    # Before any arithmetic, since 0 times the NaN of an empty place is NaN.
    targets = labels.view_as(logits).to(logits.dtype).where(mask[..., None], 0)
    by_kind = {
      "regression": functional.mse_loss,
      "multi_label_classification": functional.binary_cross_entropy_with_logits,
    }
    each = by_kind[config.problem_type](logits, targets, reduction="none").mean(-1)
    loss, own = each.where(mask, 0).sum(), mask.sum()
  return loss / (own if number is None else number)


def _check_shape(labels: torch.Tensor, shape: Any, expected: str):
  if labels.shape != shape:
    raise InputError(
      f"labels have shape {list(labels.shape)}; expected {list(shape)}, {expected}. Change "
      "them, or num_labels and problem_type of the config."
    )
