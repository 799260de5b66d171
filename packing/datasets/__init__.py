"""Packed rows as Hugging Face datasets; extra `datasets`.

A stream is packed by `packing.torch.PackedIterableDataset` while it is read.

>>> import datasets
>>> import packing
>>> from packing.datasets import pack_dataset
>>> tokens = [[7, 8, 9, 7], [5, 6], [4, 4, 4], [3, 1]]
>>> dataset = datasets.Dataset.from_dict({"input_ids": tokens})
>>> plan = packing.pack([4, 2, 3, 2], max_sequence_length=6)
>>> rows = pack_dataset(dataset, plan, epoch=1).shuffle(seed=0)
>>> rows[:2]["input_ids"].shape
(2, 6)
"""

from packing.datasets.plan import pack_dataset

__all__ = ["pack_dataset"]
