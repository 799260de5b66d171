"""Packed rows for a PyTorch DataLoader."""

import torch

import packing


class PackedRows(torch.utils.data.Dataset):
  def __init__(self, sequences, plan: packing.Plan, *, epoch: int):
    self.packs = plan.assign([len(sequence) for sequence in sequences], seed=epoch)
    self.sequences, self.row_length = sequences, plan.row_length

  def __len__(self):
    return len(self.packs)

  def __getitem__(self, number):
    pack = [self.sequences[i] for i in self.packs[number]]
    return packing.make_row(pack, self.row_length)
