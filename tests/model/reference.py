"""Hugging Face's BERT as the reference; skips where the extra `reference` is missing.

It sees each sequence alone and without padding. What it gives is laid out as what our
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

# By architecture: fields of its config.
HEADS: dict[str, dict[str, int]] = {
  "BertForPreTraining": {},
  "BertForMaskedLM": {},
  "BertForSequenceClassification": {"num_labels": 3},
  "BertForTokenClassification": {"num_labels": 5},
  "BertForQuestionAnswering": {},
}
SIZES: dict[str, dict] = {
  "odd": {
    "vocab_size": packs.VOCAB_SIZE,
    "hidden_size": 14,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 11,
    "max_position_embeddings": 17,
  },
  "deep": {
    "vocab_size": 31,
    "hidden_size": 21,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 13,
    "max_position_embeddings": 13,
    "type_vocab_size": 3,
    "layer_norm_eps": 1e-5,
  },
  "wide": {
    "vocab_size": 257,
    "hidden_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 768,
    "max_position_embeddings": 64,
  },
}


def make(architecture: str, **fields):
  """A model with random weights, large enough for every path to matter."""
  config = transformers.BertConfig(**fields, **{"attn_implementation": "eager"})
  model = getattr(transformers, architecture)(config).eval()
  generator = torch.Generator().manual_seed(0)
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      noise = torch.randn(parameter.shape, generator=generator)
      if parameter.ndim == 1:
        parameter.copy_(0.2 * noise + ("LayerNorm.weight" in name))
      elif "embeddings" in name:
        parameter.copy_(0.5 * noise)
      else:  # kernels keep the size of what goes through them
        parameter.copy_(noise / parameter.shape[1] ** 0.5)
  return model


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

  def put(name: str, where: tuple, shape: tuple[int, ...], values: torch.Tensor):
    zeros = np.zeros((*shape, values.shape[-1]), np.float32)
    outputs.setdefault(name, zeros)[where] = fetch(values)

  for row, slot in np.argwhere(batch["sequence_mask"]).tolist():
    inputs, tokens, masked = _alone(batch, row, slot)
    labels = _labels(type(model).__name__, batch, row, slot)
    result = model(**inputs, **labels)
    losses[row, slot] = result.loss.item()
    at_masked = batch["mlm_positions"][row, masked] - tokens[0]
    name = type(model).__name__
    if name in ("BertForPreTraining", "BertForMaskedLM"):
      pretraining = name == "BertForPreTraining"
      logits = result.prediction_logits if pretraining else result.logits
      size = batch["mlm_labels"].shape
      put("mlm_logits", (row, masked), size, logits[0, torch.tensor(at_masked)])
      if pretraining:
        put("nsp_logits", (row, slot), losses.shape, result.seq_relationship_logits[0])
    elif name == "BertForSequenceClassification":
      put("sequence_logits", (row, slot), losses.shape, result.logits[0])
    elif name == "BertForTokenClassification":
      put("token_logits", (row, tokens), batch["segment_ids"].shape, result.logits[0])
    else:
      answers = torch.stack([result.start_logits[0], result.end_logits[0]], -1)
      put("answer_logits", (row, tokens), batch["segment_ids"].shape, answers)
  return outputs, losses


def _alone(batch: dict, row: int, slot: int):
  """A sequence's inputs [1, L], its positions in the row, and its masked slots."""
  tokens = np.flatnonzero(batch["segment_ids"][row] == slot + 1)
  names = ("input_ids", "token_type_ids")
  inputs = {n: torch.tensor(batch[n][row, tokens].astype(np.int64)[None]) for n in names}
  masked = np.flatnonzero(batch["mlm_segment_ids"][row] == slot + 1)
  return inputs, tokens, masked


def _labels(name: str, batch: dict, row: int, slot: int) -> dict[str, torch.Tensor]:
  _, tokens, masked = _alone(batch, row, slot)
  label = torch.tensor(batch["sequence_labels"][row, slot : slot + 1])
  if name == "BertForSequenceClassification":
    return {"labels": label if label.is_floating_point() else label.long()}
  if name == "BertForQuestionAnswering":
    return {
      field: torch.tensor([int(batch[field][row, slot]) - int(tokens[0])])
      for field in ("start_positions", "end_positions")
    }
  of_tokens = np.full((1, tokens.size), -100, np.int64)
  if name == "BertForTokenClassification":
    given = batch["token_labels"][row, tokens]
    of_tokens[0] = np.where(given >= 0, given, -100)
    return {"labels": torch.tensor(of_tokens)}
  of_tokens[0, batch["mlm_positions"][row, masked] - tokens[0]] = batch["mlm_labels"][
    row, masked
  ]
  labels = {"labels": torch.tensor(of_tokens)}
  if name == "BertForPreTraining":
    labels["next_sentence_label"] = label.long()
  return labels


def gradients(model, batch: dict) -> tuple[float, dict[str, np.ndarray]]:
  """Loss and gradients of the sequences as one padded batch, by the tensors' names."""
  pairs = np.argwhere(batch["sequence_mask"]).tolist()
  parts = [_alone(batch, *pair)[0] for pair in pairs]
  labels = [_labels(type(model).__name__, batch, *pair) for pair in pairs]
  length = max(part["input_ids"].shape[1] for part in parts)

  def pad(fields: list[dict], name: str, value: int):
    rows = [field[name] for field in fields]
    rows = [torch.nn.functional.pad(x, (0, length - x.shape[1]), value=value) for x in rows]
    return torch.cat(rows)

  mask = [{"mask": torch.ones_like(part["input_ids"])} for part in parts]
  extra = {}
  if "next_sentence_label" in labels[0]:
    extra["next_sentence_label"] = torch.cat([x["next_sentence_label"] for x in labels])
  model.zero_grad()
  result = model(
    input_ids=pad(parts, "input_ids", 0),
    token_type_ids=pad(parts, "token_type_ids", 0),
    attention_mask=pad(mask, "mask", 0),
    labels=pad(labels, "labels", -100),
    **extra,
  )
  result.loss.backward()
  found = {
    name: fetch(parameter.grad)
    for name, parameter in model.named_parameters()
    if parameter.grad is not None
  }
  return result.loss.item(), found


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
