"""A step of reinforcement learning on packed rows: a policy's loss, and verl's planner."""

import torch

import packing

COST = packing.Cost(linear=24576.0, quadratic=1.0)  # verl's estimate, `calculate_workload`


def policy_loss(model, batch, *, clip=0.2):
  """The mean clipped loss (PPO, GRPO) over the targets of packed rows.

  Samples have `input_ids`, and for each token `labels`, which are -100 in the prompt,
  `advantages` and `old_log_probs`, the logarithm of its probability when it was sampled.
  """
  names = "labels", "advantages", "old_log_probs"
  labels, advantages, old = (batch.pop(name)[:, 1:] for name in names)
  logits = model(**batch).logits[:, :-1]
  is_target = labels != -100
  new = -torch.nn.functional.cross_entropy(
    logits.flatten(0, 1), labels.flatten(), reduction="none"
  ).view_as(old)
  ratio = torch.exp(new - old)
  gain = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
  return -gain[is_target].mean()


def micro_batches(lengths, max_token_len, *, groups=None, least=1, multiple=1, ranks=None):
  """Indices of samples for each micro-batch, as many on each rank of a process group."""
  options = {"row_length": max_token_len, "groups": groups, "cost": COST}
  number = max(packing.pack_step(lengths, **options).num_packs, least)
  if ranks is not None:
    numbers = [0] * torch.distributed.get_world_size(ranks)
    torch.distributed.all_gather_object(numbers, number, group=ranks)
    number = max(numbers)
  number = -(-number // multiple) * multiple
  return [i for (i,) in packing.pack_step(lengths, devices=number, **options).devices]


def rearrange_micro_batches(
  batch,
  max_token_len,
  dp_group=None,
  num_batches_divided_by=None,
  same_micro_num_in_dp=True,
  min_num_micro_batch=None,
  use_dynamic_bsz_balance=True,
  force_group_size=1,
):
  """verl's function of this name: the same arguments, micro-batches and indices."""
  from verl.utils.tensordict_utils import index_select_tensor_dict

  if batch["input_ids"].is_nested:
    lengths = batch["input_ids"].offsets().diff()
  else:
    lengths = batch["attention_mask"].sum(1)
  is_grouped = force_group_size > 1
  groups = [i // force_group_size for i in range(len(lengths))] if is_grouped else None
  indices = micro_batches(
    lengths.tolist(),
    int(max_token_len),
    groups=groups,
    least=min_num_micro_batch or 1,
    multiple=num_batches_divided_by or 1,
    ranks=dp_group if same_micro_num_in_dp else None,
  )
  if not all(indices):
    raise ValueError(f"{len(indices)} micro-batches are more than the samples of a rank.")
  return [index_select_tensor_dict(batch, own) for own in indices], indices
