"""Packed texts in the trainer of sentence-transformers: each column is one row."""

import torch

from packing.torch import PackedCollator


class PackedColumns:
  """A `data_collator`: the texts of a column share a row, in which none sees another.

  The trainer leaves prompts to its own collator, so put them into the texts.
  """

  valid_label_columns = ("label", "labels", "score", "scores")

  def __init__(self, tokenizer, config):
    self.tokenizer, self.config = tokenizer, config

  def __call__(self, records):
    if "dataset_name" in records[0]:  # it would be one more column of texts
      raise ValueError("Give one dataset and one loss, and no prompts by dataset.")
    batch = {}
    for column in records[0]:
      values = [record[column] for record in records]
      if column in self.valid_label_columns:
        batch["label"] = torch.tensor(values)
        continue
      texts = self.tokenizer(values, truncation=True)["input_ids"]
      ends = torch.tensor([0, *map(len, texts)]).cumsum(0)
      collate = PackedCollator.for_model(self.config, row_length=int(ends[-1]))
      row = collate([[{"input_ids": ids} for ids in texts]])
      row["cu_seq_lens_q"] = ends  # by which its Pooling finds the texts
      batch |= {f"{column}_{name}": value for name, value in row.items()}
    return batch
