"""Packed rows as the arguments of a transformers model in PyTorch, and the proof."""

import numpy as np
import torch

IGNORED = -100  # a label that the losses of PyTorch leave out


def model_arguments(rows, *, causal, pad_id, first_position=0, dtype=torch.float32):
  """Takes rows of `packing.make_row`, which may also have token_type_ids and labels."""
  stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
  batch = {name: torch.as_tensor(values).long() for name, values in stacked.items()}
  segments, positions = batch.pop("segment_ids"), batch["position_ids"]
  allowed = segments[:, :, None] == segments[:, None, :]
  if causal:
    allowed = allowed.tril()
    batch.setdefault("labels", batch["input_ids"])
  if "labels" in batch:  # no token predicts the first of the next sequence
    predicted = positions > 0 if causal else segments > 0
    batch["labels"] = batch["labels"].where(predicted, IGNORED)
  forbidden = torch.finfo(dtype).min
  return batch | {
    "input_ids": batch["input_ids"].where(segments > 0, pad_id),
    "position_ids": positions + first_position,
    "attention_mask": torch.where(allowed, 0.0, forbidden).to(dtype)[:, None],
  }  # all [B, S], except the mask, [B, 1, S, S]


@torch.no_grad()
def largest_difference(model, rows, **options):
  """How far logits in packed rows are from those of each sequence alone; no dropout."""
  packed = model.eval()(**model_arguments(rows, **options)).logits
  differences = []
  for number, row in enumerate(rows):
    for segment in range(1, row["segment_ids"].max() + 1):
      place = np.flatnonzero(row["segment_ids"] == segment)
      fields = [name for name in ("input_ids", "token_type_ids") if name in row]
      alone = {name: torch.as_tensor(row[name][place]).long()[None] for name in fields}
      differences.append((packed[number, place] - model(**alone).logits[0]).abs().max())
  return max(differences).item()
