"""The sequences of one step on many ranks, with one sum of gradients."""

import torch

import packing


def targets(example) -> int:
  """The tokens of a causal example that are predicted: not the first, and none of -100."""
  labels = example.get("labels", example["input_ids"])
  return sum(int(label) != -100 for label in labels[1:])


def own_loss(model, batch):
  """The loss of a model of transformers: the mean over the targets of a batch."""
  return model(**batch).loss


def moved(batch, device):
  """A batch on a device; its masks may be a dictionary."""
  if isinstance(batch, dict):
    return {name: moved(x, device) for name, x in batch.items()}
  return batch.to(device) if hasattr(batch, "to") else batch


def backward(model, collator, examples, *, loss=own_loss, **options):
  """Gives each rank the gradient of the mean loss over all targets of the examples.

  All ranks have the same examples and weights. The model is not wrapped in
  DistributedDataParallel, which would expect equally many calls of backward on each rank.
  `options` are those of `pack_step`, such as groups. Returns the mean loss.
  """
  ranks, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
  lengths = [len(example["input_ids"]) for example in examples]
  step = packing.pack_step(
    lengths, row_length=collator.row_length, devices=ranks, **options
  )
  parameters = [x for x in model.parameters() if x.requires_grad]
  device = parameters[0].device
  number, total = sum(map(targets, examples)), torch.zeros(1, device=device)
  for pack in step.devices[rank]:
    own = [examples[i] for i in pack]
    if count := sum(map(targets, own)):  # a pack may be empty or without targets
      share = count / number * loss(model, moved(collator([own]), device))
      share.backward()
      total += share.detach()
  for x in parameters:
    if x.grad is None:
      x.grad = torch.zeros_like(x)
  flat = torch.cat([x.grad.flatten() for x in parameters])
  for sums in (flat, total):  # sums, since the shares of all ranks add up to 1
    torch.distributed.all_reduce(sums)
  for x, gradient in zip(
    parameters, flat.split([x.numel() for x in parameters]), strict=True
  ):
    x.grad = gradient.view_as(x)
  return float(total)
