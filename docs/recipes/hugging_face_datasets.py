"""Packed rows as a Hugging Face dataset; tokens stay where they are until a row is read."""

import datasets

import packing


def packed_rows(dataset: datasets.Dataset, plan: packing.Plan, *, epoch: int):
  packs = plan.assign([len(tokens) for tokens in dataset["input_ids"]], seed=epoch)

  def rows(batch):
    tokens = [dataset[packs[number]]["input_ids"] for number in batch["pack"]]
    made = [packing.make_row(pack, plan.row_length) for pack in tokens]
    return {name: [row[name] for row in made] for name in made[0]}

  return datasets.Dataset.from_dict({"pack": range(len(packs))}).with_transform(rows)
