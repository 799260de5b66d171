"""Tries packed rows with each type of model of transformers: tiny, with random weights.

python -m tests.packing.torch.model_types [TYPE ...] tries these types, or all, and writes
what it finds into packing/torch/model_types.json, by which `PackedCollator.for_model`
accepts and refuses types.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import pathlib
import signal
import sys
import warnings
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto as auto

import packing.torch
from packing.torch import PackedCollator, models

TABLE = pathlib.Path(packing.torch.__file__).with_name("model_types.json")
AUTOMATIC = {
  "bidirectional": (
    auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    transformers.AutoModelForMaskedLM,
  ),
  "causal": (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, transformers.AutoModelForCausalLM),
  "of images and text": (
    auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    transformers.AutoModelForImageTextToText,
  ),
}
KINDS = ("full_attention", "sliding_attention")
VOCABULARY, LAYERS = 160, 4
TINY: dict[str, Any] = {
  **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "embedding_size"), 64),
  **dict.fromkeys(("emb_dim", "word_embed_proj_dim", "embed_dim"), 64),
  **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "hidden_dim", "d_ff"), 128),
  **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), LAYERS),
  **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
  **{"num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCABULARY},
  **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 64),
  **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
  **{"num_experts_per_tok": 2, "moe_intermediate_size": 32, "depth": 2, "image_size": 28},
  **{"patch_size": 14, "sliding_window": 4, "local_attention": 8, "mask_token_id": 4},
}
DROPOUT = (
  *("attention_dropout", "hidden_dropout", "resid_pdrop", "attn_pdrop", "dropout"),
  *("embd_pdrop", "hidden_dropout_prob", "attention_probs_dropout_prob"),
)
# In rows longer than those tried here, their attention skips tokens by place in the row.
SPARSE = ("big_bird", "longformer", "reformer")
LENGTHS = ((9, 3, 11, 1), (6, 2, 14))
ROW = 26
SECONDS = 120


class TooLong(Exception):
  """A type took longer than `SECONDS`."""


def configs(config) -> list[Any]:
  """A config and all in it."""
  inner = [getattr(config, name, None) for name in getattr(config, "sub_configs", ())]
  return [config, *(one for x in inner if x is not None for one in configs(x))]


def tiny(model_type: str):
  """The default config of a type, with small sizes and windows shorter than sequences."""
  config = transformers.AutoConfig.for_model(model_type)
  for one in configs(config):
    sizes = TINY | dict.fromkeys(DROPOUT, 0.0)
    counts = one.model_type in models._COUNT_FROM_PAD
    sizes |= {"pad_token_id": int(counts), "bos_token_id": 2, "eos_token_id": 3}
    for name, value in sizes.items():
      with contextlib.suppress(Exception):  # some attributes have no setter
        is_needed = name in ("pad_token_id", "vocab_size") and hasattr(one, name)
        if getattr(one, name, None) is not None or is_needed:
          setattr(one, name, value)
    for rotary in (
      getattr(one, "rope_parameters", None),
      getattr(one, "rope_scaling", None),
    ):
      if rotary and "mrope_section" in rotary:
        rotary["mrope_section"] = [2, 3, 3]  # half of the head's size
    if kinds := list(dict.fromkeys(getattr(one, "layer_types", None) or ())):
      one.layer_types = [kinds[i % len(kinds)] for i in range(LAYERS)]
  return config


def build(make, config, implementation: str):
  """A model with random weights.

  Raises:
    ValueError: it has more than 20 million parameters.
  """
  with torch.device("meta"):
    number = sum(x.numel() for x in make.from_config(config).parameters())
  if number > 2e7:
    raise ValueError(f"it has {number:.0f} parameters even with small sizes")
  torch.manual_seed(0)
  model = make.from_config(config, attn_implementation=implementation).float().eval()
  for parameter in model.parameters():
    if parameter.dim() > 1:
      torch.nn.init.normal_(parameter, std=0.08)
  return model


def packs():
  rng = torch.Generator().manual_seed(1)

  def one(n):
    return {"input_ids": torch.randint(5, 140, (n,), generator=rng).numpy()}

  return [[one(n) for n in pack] for pack in LENGTHS]


def gradients(model):
  grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in model.parameters()]
  model.zero_grad(set_to_none=True)
  return torch.cat([x.flatten() for x in grads])


def differences(model, collator: PackedCollator) -> dict[str, float]:
  """The largest differences of packed and alone, relative to the largest number.

  Returns:
    `logits`, `loss` (the model's own, if it has one) and `gradients`; and `influence`, the
    largest derivative of a sequence by the embeddings of another, which has to be 0.
  """
  rows = packs()
  batch = collator(rows)
  batch.setdefault("labels", batch["input_ids"])
  segments = torch.as_tensor(collator.rows(rows)["segment_ids"])
  batch["labels"] = batch["labels"].where(segments > 0, packing.torch.IGNORED)
  alone, losses, counts = [], [], []
  for pack in rows:
    for example in pack:
      ids = torch.as_tensor(example["input_ids"])[None]
      out = model(input_ids=ids, labels=ids)
      count = ids.numel() - collator.causal
      alone.append(out.logits[0])
      if count:
        losses.append(out.loss)
        counts.append(count)
  alone_loss = sum(x * n for x, n in zip(losses, counts, strict=True)) / sum(counts)
  alone_loss.backward()
  alone_gradients = gradients(model)
  embedded = []
  hook = model.get_input_embeddings().register_forward_hook(
    lambda module, inputs, output: embedded.append(output)
  )
  out = model(**batch)
  hook.remove()
  own = [(r, k) for r, pack in enumerate(rows) for k in range(1, len(pack) + 1)]
  influence = 0.0
  for r, k in own:
    here = segments[r] == k
    total = (out.logits[r, here] * torch.linspace(-1, 1, out.logits.shape[-1])).sum()
    (by,) = torch.autograd.grad(total, embedded[0], retain_graph=True)
    by = by.reshape(*segments.shape, -1).clone()
    by[r, here] = 0
    influence = max(influence, float(by.abs().max()))
  out.loss.backward()
  packed_logits = torch.cat([out.logits[r, segments[r] == k] for r, k in own])
  pairs = {
    "logits": (packed_logits, torch.cat(alone)),
    "loss": (out.loss, alone_loss),
    "gradients": (gradients(model), alone_gradients),
  }
  found = {}
  for name, (packed, expected) in pairs.items():
    difference = (packed - expected).abs().max() / expected.abs().max()
    found[name] = float(difference.detach())
  return found | {"influence": influence}


def verdict(model_type: str, kind: str) -> tuple[str, str]:
  """`equal`, `refused` or `untried`, and why."""
  make = AUTOMATIC[kind][1]
  if model_type in SPARSE:
    return "refused", "in long rows its attention skips tokens by their place in the row"
  try:
    config = tiny(model_type)
    if getattr(config, "is_encoder_decoder", False):
      return "refused", "it has an encoder and a decoder"
    text = models.text_config(config)
    is_both = model_type in AUTOMATIC["bidirectional"][0]
    if kind == "causal" and is_both and hasattr(text, "is_decoder"):
      text.is_decoder = True
    with torch.device("meta"):
      model = make.from_config(config)
    works = ["eager"] + ["sdpa"] * bool(getattr(model, "_supports_sdpa", False))
    built = {name: build(make, tiny_again(config), name) for name in works}
  except Exception as error:
    return "untried", f"no tiny model was made: {describe(error)}"
  try:
    with torch.no_grad():
      built["eager"](input_ids=torch.arange(5, 12)[None])
  except Exception as error:
    return "untried", f"a tiny model did not run: {describe(error)}"
  worst: dict[str, float] = {}
  for model in built.values():
    try:
      options = models.layout_of(model.config)
    except packing.InputError as error:
      return "refused", str(error).split(". ")[0]
    is_causal = kind != "bidirectional" and getattr(text, "is_causal", True)
    collator = PackedCollator(row_length=ROW, causal=is_causal, **options)
    try:
      found = differences(model, collator)
    except TooLong:
      raise
    except Exception as error:
      return "refused", f"it does not take the mask: {describe(error)}"
    worst = {name: max(x, worst.get(name, 0.0)) for name, x in found.items()}
  wrong = [name for name in ("logits", "loss", "gradients") if not worst[name] < 1e-4]
  if wrong or worst["influence"]:
    numbers = ", ".join(f"{name} {x:.1e}" for name, x in worst.items())
    return "refused", f"packed differs from each sequence alone ({numbers})"
  return "equal", ", ".join(f"{name} {x:.1e}" for name, x in worst.items())


def tiny_again(config):
  return type(config).from_dict(config.to_dict())


def describe(error: Exception) -> str:
  return f"{type(error).__name__}, {' '.join(str(error).split())[:90]}"


def try_one(of: tuple[str, str]) -> tuple[str, str, str, str]:
  """Runs `verdict` with a limit of time."""
  warnings.filterwarnings("ignore")
  transformers.logging.set_verbosity_error()
  torch.set_num_threads(1)

  def stop(*_):
    raise TooLong

  signal.signal(signal.SIGALRM, stop)
  signal.alarm(SECONDS)
  try:
    return *of, *verdict(*of)
  except TooLong:
    return *of, "untried", f"it took more than {SECONDS} seconds"
  finally:
    signal.alarm(0)


def all_types() -> list[tuple[str, str]]:
  return [(name, kind) for kind, (names, _) in AUTOMATIC.items() for name in names]


def as_entry(model_type: str, kind: str, found: str, why: str) -> dict[str, str]:
  """What the table says of a type."""
  text = models.text_config(transformers.AutoConfig.for_model(model_type)).model_type
  return {"type": model_type, "text_type": text, "kind": kind, "found": found, "why": why}


if __name__ == "__main__":
  asked = [x for x in all_types() if not sys.argv[1:] or x[0] in sys.argv[1:]]
  table = json.loads(TABLE.read_text()) if TABLE.exists() else {"tried": {}}
  table["transformers"] = transformers.__version__
  with multiprocessing.get_context("spawn").Pool(2) as pool:
    for one in pool.imap_unordered(try_one, asked):
      print(*one, sep=" | ", flush=True)
      table["tried"].pop(key := f"{one[0]}, {one[1]}", None)
      if one[2] != "untried":
        table["tried"][key] = as_entry(*one)
      table["tried"] = dict(sorted(table["tried"].items()))
      TABLE.write_text(json.dumps(table, indent=1) + "\n")
