"""Packed rows as the arguments of a transformers model in PyTorch, and the proof."""

import numpy as np
import torch

IGNORED = -100  # a label that the losses of PyTorch leave out


def model_arguments(rows, *, causal, pad_id, first_position=0, dtype=torch.float32):
  """From rows of `packing.make_row`, which may have token_type_ids and labels besides."""
  stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
  batch = {name: torch.as_tensor(values).long() for name, values in stacked.items()}
  segments, positions = batch.pop("segment_ids"), batch["position_ids"]
  allowed = segments[:, :, None] == segments[:, None, :]
  if causal:
    allowed = allowed.tril()
    batch.setdefault("labels", batch["input_ids"])
  if "labels" in batch:  # no token predicts the first of the next sequence
    told = positions > 0 if causal else segments > 0
    batch["labels"] = batch["labels"].where(told, IGNORED)
  forbidden = torch.finfo(dtype).min
  return batch | {
    "input_ids": batch["input_ids"].where(segments > 0, pad_id),
    "position_ids": positions + first_position,
    "attention_mask": torch.where(allowed, 0.0, forbidden).to(dtype)[:, None],
  }  # [B, S], and of the mask [B, 1, S, S]


@torch.no_grad()
def largest_difference(model, rows, **options):
  """Of the logits in packed rows from those of each sequence alone; without dropout."""
  found = model.eval()(**model_arguments(rows, **options)).logits
  differences = []
  for number, row in enumerate(rows):
    for segment in range(1, row["segment_ids"].max() + 1):
      place = np.flatnonzero(row["segment_ids"] == segment)
      fields = [name for name in ("input_ids", "token_type_ids") if name in row]
      alone = {name: torch.as_tensor(row[name][place]).long()[None] for name in fields}
      differences.append((found[number, place] - model(**alone).logits[0]).abs().max())
  return max(differences).item()
