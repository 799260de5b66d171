"""Packed rows for a PyTorch DataLoader."""

import numpy as np
import torch

import packing


class PackedRows(torch.utils.data.Dataset):
  def __init__(self, sequences, plan: packing.Plan, *, epoch: int):
    assignment = plan.assign([len(sequence) for sequence in sequences], seed=epoch)
    self.packs = np.split(assignment.sequence_ids, assignment.offsets[1:-1])
    self.sequences, self.row_length = sequences, plan.row_length

  def __len__(self):
    return len(self.packs)

  def __getitem__(self, number):
    pack = [torch.as_tensor(self.sequences[i]) for i in self.packs[number]]
    segments = [torch.full_like(tokens, n) for n, tokens in enumerate(pack, start=1)]
    positions = [torch.arange(len(tokens)) for tokens in pack]
    fields = {"input_ids": pack, "segment_ids": segments, "position_ids": positions}
    rows = {name: torch.cat(parts) for name, parts in fields.items()}
    fill = self.row_length - len(rows["input_ids"])
    return {name: torch.nn.functional.pad(x, (0, fill)) for name, x in rows.items()}
