"""What a collator has to know of a model of transformers, from its config."""

from __future__ import annotations

import functools
import importlib.resources
import json
from typing import Any

import torch

from packing.errors import InputError, check

# Models of transformers that count positions from `pad_token_id + 1` on.
COUNT_FROM_PAD = (
  *("camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer"),
  *("luke", "markuplm", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta"),
  *("xlm-roberta-xl", "xmod"),
)
# Their config has a sliding window that their attention does not use.
_NO_WINDOW = ("moshi",)
_BY_HAND = (
  "Or make a PackedCollator(row_length=...) with options of your own, and prove it with "
  "packing.testing.assert_packed_equals_unpacked and its reference=."
)


@functools.cache
def tried() -> dict[str, Any]:
  """The types that `python -m experiments.isolation_atlas` tried, and what it found.

  Returns:
    `causal` and `bidirectional`, the types whose packed logits, loss and gradients equal
    those of each sequence alone; `refused`, the reason for each other type.
  """
  path = importlib.resources.files("packing.torch").joinpath("model_types.json")
  return json.loads(path.read_text())


def text_config(config: Any) -> Any:
  """The config of the text model in the config of a model of images and text, or itself.

  Raises:
    InputError: `config` is not the config of a model of transformers.
  """
  expected = "the config of a model of transformers, such as model.config"
  check(hasattr(config, "model_type"), "model_config", config, expected)
  find = getattr(config, "get_text_config", None)
  return config if find is None else find()


def attention_of(config: Any, asked: str) -> str:
  """The form of masks that the model's implementation of attention takes.

  Args:
    config: of a loaded model, which knows its implementation.
    asked: `auto`, or the form that the user wants.

  Raises:
    InputError: the implementation does not take this form, or is none of transformers'.
  """
  implementation = getattr(text_config(config), "_attn_implementation", None)
  known = {None: "mask", "eager": "mask", "sdpa": "mask", "flex_attention": "flex"}
  takes = known.get(implementation, "flash" if "flash" in str(implementation) else None)
  if takes is None:
    raise InputError(
      f"The model has attn_implementation={implementation!r}, whose masks are not known. "
      "Load it with 'sdpa', 'eager', 'flex_attention' or 'flash_attention_2'."
    )
  if asked in ("auto", takes):
    return takes
  names = {"flash": "flash_attention_2", "flex": "flex_attention", "mask": "sdpa"}
  check(asked in names, "attention", asked, "'auto', 'mask', 'flash' or 'flex'")
  raise InputError(
    f"attention is {asked!r}, but the model has attn_implementation={implementation!r}, "
    "with which sequences would see each other. Leave attention out, or load the model "
    f"with attn_implementation={names[asked]!r} and pass the model's own config."
  )


def options_of(config: Any) -> dict[str, Any]:
  """The options of a `PackedCollator` for a model.

  Returns:
    `causal`, `pad_id`, `first_position`, `window`, `local_layers`, `dtype` and
    `implementation`.

  Raises:
    InputError: packed rows of this type of model are not equal to each sequence alone, or
      were never tried.
  """
  text = text_config(config)
  if getattr(config, "is_encoder_decoder", False):
    raise InputError(
      f"{config.model_type} has an encoder and a decoder; rows are for one of them. Choose "
      "a model without a second part, or pad."
    )
  for model_type in dict.fromkeys((config.model_type, text.model_type)):
    _check_tried(model_type)
  return {"causal": is_causal(text)} | layout_of(config)


def _check_tried(model_type: str):
  if reason := tried()["refused"].get(model_type):
    raise InputError(
      f"PackedCollator does not pack for models of type {model_type}: {reason}. Pad the "
      "batches, or choose another model, such as one of type bert, modernbert or llama. "
      "docs/isolation_atlas.md says whether another call keeps its sequences apart."
    )
  if model_type not in {*tried()["causal"], *tried()["bidirectional"]}:
    raise InputError(
      f"Packed rows were never tried with models of type {model_type!r}. Pad. {_BY_HAND}"
    )


def is_causal(text: Any) -> bool:
  """Whether a token of this model sees only earlier ones."""
  if not getattr(text, "is_causal", True):
    return False
  if text.model_type in tried()["bidirectional"]:
    return bool(getattr(text, "is_decoder", False))
  return True


def pad_id_of(text: Any) -> int:
  """The token that stands in padding."""
  pad_id = getattr(text, "pad_token_id", None)
  return 0 if pad_id is None or pad_id < 0 else pad_id


def first_position_of(text: Any) -> int:
  """The position of the first token of a sequence."""
  return pad_id_of(text) + 1 if text.model_type in COUNT_FROM_PAD else 0


def layout_of(config: Any) -> dict[str, Any]:
  """`pad_id`, `first_position`, `window` and the rest, for any type.

  Raises:
    InputError: the model has layers that no mask fits.
  """
  text = text_config(config)
  kinds = set(getattr(text, "layer_types", None) or ())
  if others := kinds - {"full_attention", "sliding_attention"}:
    raise InputError(
      f"PackedCollator makes no mask for layers of type {', '.join(sorted(others))}. Pad, "
      "or choose another model."
    )
  if getattr(text, "use_bidirectional_attention", None) in (True, "all"):
    raise InputError(
      "use_bidirectional_attention is set, which changes the model's windows. Pad, or "
      "choose another model."
    )
  window = getattr(text, "sliding_window", None)
  is_local = not kinds or "sliding_attention" in kinds
  is_local = is_local and text.model_type not in _NO_WINDOW
  implementation = getattr(text, "_attn_implementation", None)
  dtype = getattr(text, "dtype", None) or torch.float32
  return {
    "pad_id": pad_id_of(text),
    "first_position": first_position_of(text),
    "window": window if is_local else None,
    "local_layers": "some" if kinds else "all",
    "dtype": torch.bool if implementation == "sdpa" else dtype,
    "implementation": implementation,
  }
