"""From text to packed batches.

Each name is imported on first use, so that processes that only tokenise do not import
Grain.
"""
# ruff: noqa: F401

import importlib
from typing import TYPE_CHECKING

_NAMES = {
  "batches.atom_loader": "AtomLoader",
  "batches.loader": "PackedLoader RowLoader",
  "batches.masking": "Masking",
  "batches.online": "OnlineBatches",
  "batches.plans": "plan_sha256",
  "batches.streamed": "StreamedSequences",
  "batches.windows": "WindowLoader",
  "dataset": "PreparedDataset open_dataset",
  "prediction.answers": "label_names",
  "prediction.examples": "read_examples",
  "preparation.prepare": "prepare",
  "settings": "DatasetSettings",
  "store": "SequenceStore",
  "tasks.registry": "TASK_HEADS score",
}

if TYPE_CHECKING:  # the same names, for type checkers
  from pipeline.batches.atom_loader import AtomLoader
  from pipeline.batches.loader import PackedLoader, RowLoader
  from pipeline.batches.masking import Masking
  from pipeline.batches.online import OnlineBatches
  from pipeline.batches.plans import plan_sha256
  from pipeline.batches.streamed import StreamedSequences
  from pipeline.batches.windows import WindowLoader
  from pipeline.dataset import PreparedDataset, open_dataset
  from pipeline.prediction.answers import label_names
  from pipeline.prediction.examples import read_examples
  from pipeline.preparation.prepare import prepare
  from pipeline.settings import DatasetSettings
  from pipeline.store import SequenceStore
  from pipeline.tasks.registry import TASK_HEADS, score
else:

  def __getattr__(name: str):
    for module, names in _NAMES.items():
      if name in names.split():
        return getattr(importlib.import_module(f"pipeline.{module}"), name)
    raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
