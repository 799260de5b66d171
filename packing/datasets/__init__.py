"""Packed rows as Hugging Face datasets; extra `datasets`.

>>> import datasets
>>> import packing
>>> from packing.datasets import pack_dataset, pack_iterable_dataset
>>> tokens = [[7, 8, 9, 7], [5, 6], [4, 4, 4], [3, 1]]
>>> dataset = datasets.Dataset.from_dict({"input_ids": tokens})
>>> plan = packing.pack([4, 2, 3, 2], max_sequence_length=6)
>>> rows = pack_dataset(dataset, plan, epoch=1).shuffle(seed=0)
>>> rows[:2]["input_ids"].shape
(2, 6)

A stream is packed while it is read:

>>> rows = pack_iterable_dataset(dataset.to_iterable_dataset(), row_length=6, open_packs=2)
>>> [row["segment_ids"].tolist() for row in rows]
[[1, 1, 1, 1, 2, 2], [1, 1, 1, 2, 2, 0]]
"""

from packing.datasets.plan import pack_dataset
from packing.datasets.stream import pack_iterable_dataset

__all__ = ["pack_dataset", "pack_iterable_dataset"]
