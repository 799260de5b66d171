"""Packed rows in Grain; extra `grain`.

The packs of a plan are a `MapDataset`, whose position is one integer:

>>> import packing
>>> from packing.grain import PackedIterDataset, PackedMapDataset
>>> examples = [{"input_ids": ids} for ids in ([7, 8, 9, 7], [5, 6], [4, 4, 4], [3, 1])]
>>> plan = packing.pack([4, 2, 3, 2], max_sequence_length=6)
>>> rows = PackedMapDataset(examples, plan).shuffle(seed=0).repeat(3).batch(2)
>>> batches = iter(rows.to_iter_dataset())
>>> sorted((name, x.shape) for name, x in next(batches).items())
[('input_ids', (2, 6)), ('position_ids', (2, 6)), ('segment_ids', (2, 6))]

A stream is packed while it is read:

>>> import grain
>>> stream = grain.MapDataset.source(examples).to_iter_dataset()
>>> rows = PackedIterDataset(stream, row_length=6, open_packs=2)
>>> [row["segment_ids"].tolist() for row in rows]
[[1, 1, 1, 1, 2, 2], [1, 1, 1, 2, 2, 0]]
"""

from packing.grain.plan import PackedMapDataset
from packing.grain.stream import PackedIterDataset

__all__ = ["PackedIterDataset", "PackedMapDataset"]
