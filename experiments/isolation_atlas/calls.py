"""The ways in which people pass several sequences in one row to a model of transformers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers

from packing.torch import PackedCollator, models

ROW = 32  # tokens; longer than the examples together, so that there is padding
Batch = dict[str, Any]
Collate = Callable[[Sequence[dict]], Batch]


def _flatten(examples: Sequence[dict], **options: Any) -> Batch:
  """All examples in one row, as transformers' own collator lays them out."""
  flatten = transformers.DataCollatorWithFlattening(**options)
  return dict(flatten([{"input_ids": list(map(int, x["input_ids"]))} for x in examples]))


def _from_first_position(model: Any) -> Batch:
  return {"position_ids_start": models.first_position_of(models.text_config(model.config))}


def _no_cache(model: Any, is_causal: bool) -> Batch:
  """`use_cache=False`, for a model that could have a cache."""
  accepted = inspect.signature(model.forward).parameters
  by_name = "use_cache" in accepted
  passed_on = any(x.kind == inspect.Parameter.VAR_KEYWORD for x in accepted.values())
  return {"use_cache": False} if by_name or (is_causal and passed_on) else {}


def _positions(model: Any, is_causal: bool) -> Collate:
  start = _from_first_position(model)
  return lambda examples: _flatten(examples, **start) | _no_cache(model, is_causal)


def _mask_of_ones(model: Any, is_causal: bool) -> Collate:
  def collate(examples):
    batch = _positions(model, is_causal)(examples)
    return batch | {"attention_mask": torch.ones_like(batch["input_ids"])}

  return collate


def _default_cache(model: Any, is_causal: bool) -> Collate:
  start = _from_first_position(model)
  return lambda examples: _flatten(examples, **start)


def _flattening(model: Any, is_causal: bool) -> Collate:
  return _flatten


def _boundaries(model: Any, is_causal: bool) -> Collate:
  options = {"return_flash_attn_kwargs": True, "return_seq_idx": True}
  options |= _from_first_position(model)
  return lambda examples: _flatten(examples, **options) | _no_cache(model, is_causal)


def _four_axes(model: Any, is_causal: bool) -> Collate:
  options = models.layout_of(model.config)
  kind: Any = models.attention_of(model.config, "auto")
  collator = PackedCollator(row_length=ROW, causal=is_causal, attention=kind, **options)
  return lambda examples: collator([list(examples)])


# From a model and whether it is causal to a function from examples to arguments; by the
# name that docs/isolation_atlas.md explains.
CALLS: dict[str, Callable[[Any, bool], Collate]] = {
  "positions": _positions,
  "mask of ones": _mask_of_ones,
  "default cache": _default_cache,
  "flattening": _flattening,
  "boundaries": _boundaries,
  "four axes": _four_axes,
}
