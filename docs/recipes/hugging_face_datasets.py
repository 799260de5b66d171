"""Packed rows as a Hugging Face dataset; tokens stay where they are until a row is read."""

import datasets
import numpy as np

import packing


def packed_rows(
  dataset: datasets.Dataset, plan: packing.Plan, *, epoch: int
) -> datasets.Dataset:
  lengths = [len(sequence) for sequence in dataset["input_ids"]]
  assignment = plan.assign(lengths, seed=epoch)
  packs = np.split(assignment.sequence_ids, assignment.offsets[1:-1])

  def rows(batch):
    names = ("input_ids", "segment_ids", "position_ids")
    found: dict[str, list] = {name: [] for name in names}
    for pack in batch["pack"]:
      sequences = dataset[pack]["input_ids"]
      numbers = np.arange(1, len(sequences) + 1)
      values = (
        np.concatenate(sequences),
        np.repeat(numbers, [len(sequence) for sequence in sequences]),
        np.concatenate([np.arange(len(sequence)) for sequence in sequences]),
      )
      fill = (0, plan.row_length - len(values[0]))
      for name, value in zip(names, values, strict=True):
        found[name].append(np.pad(value, fill))
    return found

  return datasets.Dataset.from_dict({"pack": packs}).with_transform(rows)
