"""TRL's SFTTrainer on packed rows: TRL makes tokens and labels, isopack lays them out."""

from transformers import TrainerCallback
from trl import SFTTrainer

import packing
from packing.torch import PackedCollator, PackedDataset


class OtherPacks(TrainerCallback):
  """In each epoch other sequences share a row."""

  def __init__(self, packs):
    self.packs = packs

  def on_epoch_begin(self, args, state, control, **_):
    self.packs.set_epoch(int(state.epoch or 0))


def packed_sft(model, args, examples, tokenizer, **options):
  """An SFTTrainer whose batches have `args.per_device_train_batch_size` rows.

  Examples are what SFTTrainer takes: text, messages, or prompts with completions.
  """
  trainer = SFTTrainer(
    model, args, train_dataset=examples, processing_class=tokenizer, **options
  )
  prepared = trainer.train_dataset.select_columns(["input_ids", "labels"])
  lengths = [len(ids) for ids in prepared["input_ids"]]
  plan = packing.pack(lengths, max_sequence_length=args.max_length)
  trainer.train_dataset = PackedDataset(prepared, plan, lengths=lengths)
  trainer.data_collator = PackedCollator.of(plan, trainer.model.config)
  trainer.add_callback(OtherPacks(trainer.train_dataset))
  return trainer
