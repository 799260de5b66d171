"""A causal model on packed rows in DistributedDataParallel.

Call `train` from a script that torchrun starts, with the model on the device of its rank.
"""

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import packing
from packing.torch import PackedCollator, PackedDataset


def loader_of(examples, config, *, row_length: int, rows: int):
  """Batches of `rows` packed rows on each rank; the same number of batches on all."""
  lengths = [len(example["input_ids"]) for example in examples]
  plan = packing.pack(lengths, max_sequence_length=row_length)
  packs = PackedDataset(examples, plan, lengths=lengths)
  sampler = DistributedSampler(packs, drop_last=True)  # else it repeats rows
  collator = PackedCollator.of(plan, config)
  return DataLoader(packs, batch_size=rows, sampler=sampler, collate_fn=collator)


def train(model, loader, optimizer, *, epochs: int):
  """Each step follows the mean loss over the targets of all ranks."""
  device = next(model.parameters()).device
  devices = None if device.type == "cpu" else [device]  # to which it moves each batch
  model = DistributedDataParallel(model, device_ids=devices)
  for epoch in range(epochs):
    loader.dataset.set_epoch(epoch)  # other sequences share a row
    loader.sampler.set_epoch(epoch)
    for batch in loader:
      number = (batch["labels"] != -100).sum().to(device)
      torch.distributed.all_reduce(number)
      number = number.clamp(min=1)  # without targets, the loss is 0, not 0 / 0
      loss = model(**batch, num_items_in_batch=number).loss  # the sum / number
      (loss * torch.distributed.get_world_size()).backward()  # ranks are averaged
      optimizer.step()
      optimizer.zero_grad()
