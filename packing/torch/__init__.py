"""Packed batches in PyTorch, for models of transformers and others; extra `torch`.

The items of the dataset are packs, lists of examples; the collator lays them out in rows of
one shape:

>>> import packing
>>> from torch.utils.data import DataLoader
>>> from packing.torch import PackedCollator, PackedDataset
>>> examples = [{"input_ids": ids} for ids in ([7, 8, 9, 7], [5, 6], [4, 4, 4], [3, 1])]
>>> plan = packing.pack([4, 2, 3, 2], max_sequence_length=6)
>>> dataset = PackedDataset(examples, plan)
>>> loader = DataLoader(dataset, batch_size=2, collate_fn=PackedCollator.of(plan))
>>> [{name: tuple(x.shape) for name, x in batch.items()} for batch in loader]
[{'input_ids': (2, 6), 'position_ids': (2, 6), 'attention_mask': (2, 1, 6, 6)}]
"""

from typing import Any

from packing.row import IGNORED
from packing.torch.collator import PackedCollator
from packing.torch.dataset import PackedDataset
from packing.torch.heads import packed_heads
from packing.torch.masking import MaskingCollator
from packing.torch.stream import PackedIterableDataset

__all__ = [
  "IGNORED",
  "MaskingCollator",
  "PackedCollator",
  "PackedDataset",
  "PackedIterableDataset",
  "packed_heads",
]


def __getattr__(name: str) -> Any:
  if name != "packed_trainer":  # which needs transformers
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  from packing.torch.trainer import packed_trainer

  return packed_trainer
