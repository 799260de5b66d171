"""The sequences of one step on many ranks, with one sum of gradients."""

import torch

import packing


def targets(example) -> int:
  """The tokens of a causal example that are predicted: not the first, and none of -100."""
  labels = example.get("labels", example["input_ids"])
  return sum(int(label) != -100 for label in labels[1:])


def backward(model, collator, examples):
  """Gives each rank the gradient of the mean loss over all targets of the examples.

  All ranks have the same examples and weights. The model is not wrapped in
  DistributedDataParallel, which would expect equally many calls of backward on each rank.
  """
  ranks, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
  lengths = [len(example["input_ids"]) for example in examples]
  step = packing.pack_step(lengths, row_length=collator.row_length, devices=ranks)
  number = sum(map(targets, examples))
  for pack in step.devices[rank]:
    own = [examples[i] for i in pack]
    if count := sum(map(targets, own)):  # a pack may be empty or without targets
      loss = model(**collator([own])).loss
      (count / number * loss).backward()
  parameters = [x for x in model.parameters() if x.requires_grad]
  for x in parameters:
    if x.grad is None:
      x.grad = torch.zeros_like(x)
  flat = torch.cat([x.grad.flatten() for x in parameters])
  torch.distributed.all_reduce(flat)  # the sum, since the shares of all ranks add up to 1
  for x, gradient in zip(
    parameters, flat.split([x.numel() for x in parameters]), strict=True
  ):
    x.grad = gradient.view_as(x)
