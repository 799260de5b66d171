"""Text to packed batches."""

from pipeline.batches import Masking, PackedBatch
from pipeline.config import make_loader, prepare_dataset
from pipeline.dataset import PreparedDataset, open_dataset, prepare
from pipeline.loader import PackedLoader
from pipeline.settings import Settings
from pipeline.store import SequenceStore

__all__ = [
  "Masking",
  "PackedBatch",
  "PackedLoader",
  "PreparedDataset",
  "SequenceStore",
  "Settings",
  "make_loader",
  "open_dataset",
  "prepare",
  "prepare_dataset",
]
