"""Every type of text model of transformers, tiny and with random weights."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto as auto

from experiments.isolation_atlas.examples import VOCABULARY
from packing.torch import models

# By kind: the types by name, and what makes a model of a config.
KINDS = {
  "causal": (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, transformers.AutoModelForCausalLM),
  "bidirectional": (
    auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    transformers.AutoModelForMaskedLM,
  ),
  "encoder": (
    auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES,
    transformers.AutoModelForTextEncoding,
  ),
  "of images and text": (
    auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    transformers.AutoModelForImageTextToText,
  ),
}
LAYERS = 4
# Windows and chunks are shorter than the sequences that are tried, so that a window that is
# counted wrongly is seen, and every head has 16 numbers.
SIZES: dict[str, Any] = {
  **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "embedding_size"), 64),
  **dict.fromkeys(("emb_dim", "word_embed_proj_dim", "embed_dim", "embedding_dim"), 64),
  **dict.fromkeys(("attention_hidden_size", "lru_width"), 64),
  **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "hidden_dim", "d_ff"), 128),
  **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), LAYERS),
  **dict.fromkeys(("num_blocks", "num_layers_per_stack"), LAYERS),
  **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
  **{"num_key_value_heads": 2, "head_dim": 16, "d_head": 16, "vocab_size": VOCABULARY},
  **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 64),
  **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
  **{"num_experts_per_tok": 2, "moe_intermediate_size": 32, "depth": 2, "image_size": 28},
  **{"shared_expert_intermediate_size": 32, "n_group": 1, "topk_group": 1, "n_groups": 1},
  **{"patch_size": 14, "mask_token_id": 4, "rotary_dim": 8, "num_kv_shared_layers": 0},
  **{"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 16},
  **{"entity_vocab_size": 16, "entity_emb_size": 16},
  **{"encoder_hash_byte_group_vocab": 64},
  **{"sliding_window": 4, "local_attention": 8, "attention_chunk_size": 4},
  **{"window_size": 4, "attention_window_size": 4, "index_topk": 4},
  # State-space layers and linear attention.
  **{"state_size": 8, "mamba_d_state": 8, "ssm_state_size": 8, "mamba_dt_rank": 4},
  **{"mamba_n_heads": 4, "mamba_num_heads": 4, "mamba_d_head": 32, "mamba_head_dim": 32},
  **{"mamba_headdim": 32, "mamba_n_groups": 1, "mamba_ngroups": 1, "mamba_d_ssm": 128},
  **{"n_mamba_heads": 4, "mamba_chunk_size": 8, "chunk_size": 8, "time_step_rank": 4},
  **{"linear_num_key_heads": 2, "linear_num_value_heads": 4},
  **{"linear_key_head_dim": 16, "linear_value_head_dim": 16},
}
# Heads of latent attention: the part with positions and the part without.
LATENT = {
  **{"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 16, "v_head_dim": 16},
  **{"qk_nope_head_dim": 16, "qk_head_dim": 32, "num_key_value_heads": 4, "head_dim": 16},
}
# Layers of both kinds, where the default config has only one.
BOTH = {
  **{"use_sliding_window": True, "sliding_window": 4},
  "layer_types": ["sliding_attention", "full_attention"] * 2,
}
# What else a type needs to be small, to have each kind of its layers, or to run at all.
SPECIAL: dict[str, dict[str, Any]] = {
  "mamba2": {"head_dim": 32},
  "zamba": {"attention_hidden_size": 128, "attention_head_dim": 32, "n_mamba_heads": 2},
  "zamba2": {"attention_hidden_size": 128, "attention_head_dim": 32},
  "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
  "zaya": {"num_experts_per_tok": 1},
  "esmc": {"num_key_value_heads": 4},
  "reformer": {"axial_pos_embds": False},
  "bamba": {"attn_layer_indices": [1, 3]},
  "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2},
  "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
  "cohere_compass_text": BOTH
  | {
    "rope_parameters": {
      kind: {"rope_theta": 1e4, "rope_type": "default"}
      for kind in ("full_attention", "sliding_attention")
    }
  },
  "deepseek_v2": {"num_experts_per_tok": 2},
  "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
  "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1},
  "hrm_text": {"num_layers_per_stack": 1, "H_cycles": 1, "L_cycles": 3},
  "qwen4_exp_text": {"indexer_budget": 8, "indexer_compress_ratio": 2},
  "xmod": {"default_language": "en_XX"},
  **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "smollm3", "mellum", "ministral"), BOTH),
  "dots1": BOTH | {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
}
_EVEN_IF_NONE = ("pad_token_id", "vocab_size", "head_dim", "num_key_value_heads")
DROPOUT = (
  *("attention_dropout", "hidden_dropout", "resid_pdrop", "attn_pdrop", "dropout"),
  *("embd_pdrop", "emb_pdrop", "hidden_dropout_prob", "attention_probs_dropout_prob"),
)
MOST_PARAMETERS = 1e8


def configs(config: Any) -> list[Any]:
  """A config and all in it."""
  inner = [getattr(config, name, None) for name in getattr(config, "sub_configs", ())]
  return [config, *(one for x in inner if x is not None for one in configs(x))]


def tiny(model_type: str) -> Any:
  """The default config of a type, with small sizes and windows shorter than sequences."""
  config = transformers.AutoConfig.for_model(model_type)
  for one in configs(config):
    _shrink(one)
  return config


def _shrink(config: Any):
  """Makes the sizes of one config small; some of its attributes have no setter."""
  if getattr(config, "is_heterogeneous", False):
    config.per_layer_config = None  # all layers have the same heads
  layers = getattr(config, "num_hidden_layers", None) or 0
  sizes = SIZES | dict.fromkeys(DROPOUT, 0.0)
  if getattr(config, "kv_lora_rank", None):
    sizes |= LATENT
  counts = config.model_type in models.COUNT_FROM_PAD
  sizes |= {"pad_token_id": int(counts), "bos_token_id": 2, "eos_token_id": 3}
  by_layer = {
    name: value
    for name, value in vars(config).items()
    if isinstance(value, list | tuple) and len(value) == layers and layers > LAYERS
  }
  for name, value in sizes.items():
    known = getattr(config, name, None) is not None
    if known or (name in _EVEN_IF_NONE and hasattr(config, name)):
      _set(config, name, value)
  for name, values in by_layer.items():
    kinds = list(dict.fromkeys(values)) if isinstance(values[0], str) else values
    _set(config, name, [kinds[i % len(kinds)] for i in range(LAYERS)])
  for name, value in SPECIAL.get(config.model_type, {}).items():
    _set(config, name, value)
  for rotary in (
    getattr(config, "rope_parameters", None),
    getattr(config, "rope_scaling", None),
  ):
    if rotary and "mrope_section" in rotary:
      rotary["mrope_section"] = [2, 3, 3]  # half of the head's size


def _set(config: Any, name: str, value: Any):
  with contextlib.suppress(Exception):  # without a setter, or derived
    setattr(config, name, value)


def build(make: Any, config: Any, implementation: str) -> Any:
  """A model with random weights, in evaluation mode.

  Raises:
    ValueError: it has more than `MOST_PARAMETERS`.
  """
  config = type(config).from_dict(config.to_dict())  # a model changes its config
  with torch.device("meta"):
    number = sum(x.numel() for x in make.from_config(config).parameters())
  if number > MOST_PARAMETERS:
    raise ValueError(f"it has {number:.0f} parameters even with small sizes")
  torch.manual_seed(0)
  model = make.from_config(config, attn_implementation=implementation).float().eval()
  for parameter in model.parameters():
    if parameter.dim() > 1 and parameter.requires_grad:  # no table of sines
      torch.nn.init.normal_(parameter, std=0.08)
  return model
