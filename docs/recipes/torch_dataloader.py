"""Packed rows for a PyTorch DataLoader."""

import torch

import packing


class PackedRows(torch.utils.data.Dataset):
  """`others` holds more values for each token, such as token_type_ids and labels."""

  def __init__(self, sequences, plan: packing.Plan, *, epoch: int, **others):
    self.packs = plan.assign([len(sequence) for sequence in sequences], seed=epoch)
    self.sequences, self.others, self.row_length = sequences, others, plan.row_length

  def __len__(self):
    return len(self.packs)

  def __getitem__(self, number):
    def row(values):
      return packing.make_row([values[i] for i in self.packs[number]], self.row_length)

    others = {name: row(values)["input_ids"] for name, values in self.others.items()}
    return row(self.sequences) | others
