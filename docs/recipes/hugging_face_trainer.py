"""Packed rows in the Trainer of transformers."""

from transformers import Trainer, TrainerCallback, TrainingArguments

import packing
from packing.torch import PackedCollator, PackedDataset


class OtherPacks(TrainerCallback):
  """Lets other sequences share a pack in each epoch, also after a checkpoint."""

  def __init__(self, dataset: PackedDataset):
    self.dataset = dataset

  def on_epoch_begin(self, args, state, control, **_):
    self.dataset.set_epoch(int(state.epoch or 0))


def packed_trainer(model, examples, *, longest: int, causal: bool = False, **options):
  lengths = [len(example["input_ids"]) for example in examples]
  plan = packing.pack(lengths, max_sequence_length=longest)
  dataset = PackedDataset(examples, plan, lengths=lengths)
  return Trainer(
    model=model,
    args=TrainingArguments(remove_unused_columns=False, **options),
    train_dataset=dataset,
    data_collator=PackedCollator.of(plan, model.config, causal=causal),
    callbacks=[OtherPacks(dataset)],
  )
