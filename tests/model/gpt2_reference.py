"""Hugging Face's GPT-2 as the reference; skips where the extra `reference` is missing.

As in `reference`, it sees each sequence alone and without padding.
"""

import numpy as np

from tests import packs
from tests.model.reference import fetch, torch, transformers

SIZES: dict[str, dict] = {
  "odd": {
    "vocab_size": packs.VOCAB_SIZE,
    "n_embd": 15,
    "n_layer": 2,
    "n_head": 3,
    "n_inner": 11,
    "n_positions": 17,
  },
  "wide": {
    "vocab_size": 257,
    "n_embd": 192,
    "n_layer": 3,
    "n_head": 3,
    "n_positions": 64,
  },
}


def make(**fields):
  """A model with random weights, large enough for every path to matter."""
  fields |= {"attn_implementation": "eager", "bos_token_id": None, "eos_token_id": None}
  config = transformers.GPT2Config(**fields)
  model = transformers.GPT2LMHeadModel(config).eval()
  generator = torch.Generator().manual_seed(0)
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      noise = torch.randn(parameter.shape, generator=generator)
      if parameter.ndim == 1:
        scale = "ln_" in name and name.endswith("weight")
        parameter.copy_(0.2 * noise + scale)
      elif "wte" in name or "wpe" in name:
        parameter.copy_(0.5 * noise)
      else:  # kernels keep the size of what goes through them
        parameter.copy_(noise / parameter.shape[0] ** 0.5)
  return model


def run(model, batch: dict) -> tuple[dict[str, np.ndarray], np.ndarray]:
  """Logits as ours are placed, zeros at padding; and float[B, M], each sequence's loss."""
  shape = (*batch["segment_ids"].shape, model.config.vocab_size)
  logits = np.zeros(shape, np.float32)
  losses = np.zeros(batch["sequence_mask"].shape, np.float32)
  for row, slot, tokens, result in _alone(model, batch):
    logits[row, tokens] = fetch(result.logits[0])
    losses[row, slot] = result.loss.item()
  return {"causal_logits": logits}, losses


def gradients(model, batch: dict) -> tuple[float, dict[str, np.ndarray]]:
  """The loss over tokens, and its gradients by the tensors' names."""
  model.zero_grad()
  found = [(tokens.size - 1, result.loss) for _, _, tokens, result in _alone(model, batch)]
  loss = sum(targets * loss for targets, loss in found) / sum(n for n, _ in found)
  loss.backward()
  named = {name: fetch(parameter.grad) for name, parameter in model.named_parameters()}
  return loss.item(), named


def _alone(model, batch: dict):
  """Row, slot, positions in the row and result of each sequence."""
  for row, slot in np.argwhere(batch["sequence_mask"]).tolist():
    tokens = np.flatnonzero(batch["segment_ids"][row] == slot + 1)
    ids = torch.tensor(batch["input_ids"][row, tokens].astype(np.int64)[None])
    yield row, slot, tokens, model(input_ids=ids, labels=ids)
