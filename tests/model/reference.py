"""Hugging Face's models as the reference; skips where the extra `reference` is missing.

They see each sequence alone and without padding. What they give is laid out as what our
models give for packs.
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import pytest

pytest.importorskip("torch", reason="make reference installs it")
pytest.importorskip("transformers", reason="make reference installs it")

import torch
import transformers

from tests import packs

torch.set_num_threads(1)

GPT2 = "GPT2LMHeadModel"
# By architecture: fields of its config.
HEADS: dict[str, dict[str, int]] = {
  "BertForPreTraining": {},
  "BertForMaskedLM": {},
  "BertForSequenceClassification": {"num_labels": 3},
  "BertForTokenClassification": {"num_labels": 5},
  "BertForQuestionAnswering": {},
}
MODERN_HEADS: dict[str, dict] = {
  "ModernBertForMaskedLM": {},
  "ModernBertForSequenceClassification": {"num_labels": 3, "classifier_pooling": "mean"},
  "ModernBertForTokenClassification": {"num_labels": 5},
}
# Encoders of BERT's kind, and what of their configs differs from BERT's.
VARIANTS: dict[str, dict] = {
  "Roberta": {"type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5},
  "XLMRoberta": {"type_vocab_size": 1, "pad_token_id": 2},
  "Camembert": {"type_vocab_size": 1, "pad_token_id": 1},
  "DistilBert": {},
  "Electra": {"embedding_size": 5},
}
_ENDS: dict[str, dict] = {
  "ForMaskedLM": {},
  "ForSequenceClassification": {"num_labels": 3},
  "ForTokenClassification": {"num_labels": 5},
  "ForQuestionAnswering": {},
}
VARIANT_HEADS = {f"{name}{end}": x for name in VARIANTS for end, x in _ENDS.items()}
_DISTILBERTS = {
  "hidden_size": "dim",
  "num_hidden_layers": "n_layers",
  "num_attention_heads": "n_heads",
  "intermediate_size": "hidden_dim",
}
_NAMES = (
  *("hidden_size", "num_hidden_layers", "num_attention_heads"),
  *("intermediate_size", "max_position_embeddings", "vocab_size"),
)
SIZES: dict[str, dict] = {
  "odd": dict(zip(_NAMES, (14, 2, 2, 11, 17, packs.VOCAB_SIZE), strict=True)),
  "deep": dict(zip(_NAMES, (21, 3, 3, 13, 13, 31), strict=True))
  | {"type_vocab_size": 3, "layer_norm_eps": 1e-5},
  "wide": dict(zip(_NAMES, (192, 2, 3, 768, 64, 257), strict=True)),
}
GPT2_SIZES: dict[str, dict] = {
  "odd": SIZES["odd"] | {"hidden_size": 15, "num_attention_heads": 3, "n_inner": 11},
  "wide": SIZES["wide"] | {"num_hidden_layers": 3},
}
# Three layers, of which the last two are local: a token sees 2 or 4 others to either side.
MODERN_SIZES: dict[str, dict] = {
  "odd": SIZES["odd"] | {"hidden_size": 12, "num_hidden_layers": 3, "local_attention": 4},
  "wide": SIZES["wide"]
  | {"num_hidden_layers": 5, "local_attention": 8, "global_attn_every_n_layers": 2}
  | {"global_rope_theta": 500.0, "local_rope_theta": 70.0, "norm_eps": 1e-6},
}


def make(architecture: str, **fields):
  """A model with random weights, large enough for every path to matter."""
  make_config: type = transformers.BertConfig
  if architecture == GPT2:
    make_config = transformers.GPT2Config
    fields |= {"bos_token_id": None, "eos_token_id": None}
    del fields["intermediate_size"]
  if architecture in MODERN_HEADS:
    make_config = transformers.ModernBertConfig
    tokens = ("pad", "bos", "eos", "cls", "sep")
    fields |= dict.fromkeys(f"{name}_token_id" for name in tokens)
  if variant := variant_of(architecture):
    make_config = getattr(transformers, f"{variant}Config")
    fields = VARIANTS[variant] | fields
    if "pad_token_id" in fields:
      fields["max_position_embeddings"] += fields["pad_token_id"] + 1
    if variant == "DistilBert":
      fields = {_DISTILBERTS.get(name, name): x for name, x in fields.items()}
  config = make_config(**fields, **{"attn_implementation": "eager"})
  model = getattr(transformers, architecture)(config).eval()
  generator = torch.Generator().manual_seed(0)
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      noise = torch.randn(parameter.shape, generator=generator)
      if parameter.ndim == 1:
        parameter.copy_(0.2 * noise + name.endswith("weight"))  # LayerNorm's are around 1
      elif any(part in name for part in ("embedding", "wte", "wpe")):
        parameter.copy_(0.5 * noise)
      else:  # kernels keep the size of what goes through them
        inputs = parameter.shape[0 if architecture == GPT2 else 1]
        parameter.copy_(noise / inputs**0.5)
  return model


def variant_of(architecture: str) -> str:
  """The key of `VARIANTS` with which the name begins, or "" for none."""
  return next((name for name in VARIANTS if architecture.startswith(name)), "")


def fetch(tensor: torch.Tensor) -> np.ndarray:
  return tensor.detach().numpy()


def run(model, batch: dict) -> tuple[dict[str, np.ndarray], np.ndarray]:
  """Each sequence alone.

  Args:
    model: of this module.
    batch: a PackedBatch.

  Returns:
    The logits as our model names and places them, zeros elsewhere, and float[B, M], the
    model's own loss of each sequence.
  """
  outputs: dict[str, np.ndarray] = {}
  losses = np.zeros(batch["sequence_mask"].shape, np.float32)
  for row, slot in np.argwhere(batch["sequence_mask"]).tolist():
    result, heads = _alone(model, batch, row, slot)
    losses[row, slot] = result.loss.item()
    for name, (field, places, logits, _) in heads.items():
      zeros = np.zeros((*batch[field].shape, logits.shape[-1]), np.float32)
      outputs.setdefault(name, zeros)[row, places] = fetch(logits)
  return outputs, losses


def alone(model, batch: dict, row: int, slot: int):
  """The result of an encoder for one sequence."""
  tokens = np.flatnonzero(batch["segment_ids"][row] == slot + 1)
  names = ["input_ids"]
  if variant_of(type(model).__name__) in ("", "Electra"):
    names.append("token_type_ids")
  return model(
    **{name: torch.tensor(batch[name][row, tokens])[None].long() for name in names}
  )


def gradients(model, batch: dict) -> tuple[float, dict[str, np.ndarray]]:
  """The loss over tokens of a language model, and its gradients by the tensors' names."""
  pairs = np.argwhere(batch["sequence_mask"]).tolist()
  found = [_alone(model, batch, *pair)[1] for pair in pairs]
  loss = torch.zeros(())
  for name in found[0]:
    logits, labels = (torch.cat([heads[name][i] for heads in found]) for i in (2, 3))
    loss = loss + torch.nn.functional.cross_entropy(logits, labels)  # -100 does not count
  model.zero_grad()
  loss.backward()
  # A tied tensor has the name that it has in the encoder.
  named = sorted(
    model.named_parameters(remove_duplicate=False), key=lambda x: x[0].startswith("lm_head")
  )
  first = {id(x): name for name, x in reversed(named)}
  return loss.item(), {
    name: fetch(x.grad) for name, x in named if x.grad is not None and first[id(x)] == name
  }


def _alone(model, batch: dict, row: int, slot: int):
  """The result for a sequence, and by output: field, places in the row, logits, labels."""
  kind = type(model).__name__
  fields = {name: torch.tensor(x[row]) for name, x in batch.items()}
  fields = {k: x if x.is_floating_point() else x.long() for k, x in fields.items()}
  tokens = np.flatnonzero(batch["segment_ids"][row] == slot + 1)
  masked = np.flatnonzero(batch["mlm_segment_ids"][row] == slot + 1)
  ids, one = fields["input_ids"][tokens], slice(slot, slot + 1)
  inputs = {"input_ids": ids[None]}
  if kind == GPT2:
    result = model(**inputs, labels=ids[None])
    following = torch.cat([ids[1:], torch.tensor([-100])])
    return result, {"causal_logits": ("segment_ids", tokens, result.logits[0], following)}
  if kind not in MODERN_HEADS and variant_of(kind) in ("", "Electra"):
    inputs["token_type_ids"] = fields["token_type_ids"][tokens][None]
  label = fields["sequence_labels"][one]
  label = label.float() if batch["sequence_labels"].dtype == bool else label
  if kind.endswith("ForSequenceClassification"):
    result = model(**inputs, labels=label)
    return result, {"sequence_logits": ("sequence_mask", one, result.logits, label)}
  if kind.endswith("ForTokenClassification"):
    labels = fields["token_labels"][tokens]
    labels = torch.where(labels >= 0, labels, -100)
    result = model(**inputs, labels=labels[None])
    return result, {"token_logits": ("segment_ids", tokens, result.logits[0], labels)}
  if kind.endswith("ForQuestionAnswering"):
    ends = {n: fields[n][one] - tokens[0] for n in ("start_positions", "end_positions")}
    result = model(**inputs, **ends)
    answers = torch.stack([result.start_logits[0], result.end_logits[0]], -1)
    return result, {"answer_logits": ("segment_ids", tokens, answers, None)}
  at = fields["mlm_positions"][masked] - tokens[0]
  labels = torch.full((1, tokens.size), -100)
  labels[0, at] = fields["mlm_labels"][masked]
  heads = {"labels": labels}
  if kind == "BertForPreTraining":
    heads["next_sentence_label"] = label
  result = model(**inputs, **heads)
  logits = result.prediction_logits if kind == "BertForPreTraining" else result.logits
  found: dict = {"mlm_logits": ("mlm_labels", masked, logits[0, at], labels[0, at])}
  if kind == "BertForPreTraining":
    found["nsp_logits"] = ("sequence_mask", one, result.seq_relationship_logits, label)
  return result, found


def make_batch(*, regression: bool = False, seed: int = 0) -> dict:
  """Random packs with the labels of every head."""
  rng = np.random.default_rng(seed)
  batch = packs.lay_out(packs.random_sequences(seed=seed))
  mask, segments = batch["sequence_mask"], batch["segment_ids"]
  starts = batch["cls_positions"]
  lengths = (segments[:, None] == np.arange(1, mask.shape[1] + 1)[None, :, None]).sum(-1)
  for name in ("start_positions", "end_positions"):
    inside = rng.integers(0, np.maximum(lengths, 1))
    batch[name] = np.where(mask, starts + inside, 0).astype(np.int32)
  labels = rng.integers(-1, 5, segments.shape)
  labels[batch["position_ids"] == 0] = 1  # no sequence is without a label
  batch["token_labels"] = labels.astype(np.int32)
  if regression:
    noise = rng.standard_normal(mask.shape).astype(np.float32)
    batch["sequence_labels"] = np.where(mask, noise, 0)
  return batch
