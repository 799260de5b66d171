"""Text to packed batches.

Names are imported when they are asked for: the processes that tokenise need none of the
loader's libraries.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from pipeline.batches.atom_loader import AtomLoader
  from pipeline.batches.loader import PackedLoader, RowLoader
  from pipeline.batches.packed import Masking, PackedBatch
  from pipeline.batches.plans import keep_plans, make_plan, plan_sha256, read_plans
  from pipeline.batches.windows import WindowLoader
  from pipeline.config import (
    HeldOut,
    make_held_out,
    make_loader,
    prepare_dataset,
    settings_of,
  )
  from pipeline.dataset import PreparedDataset, open_dataset
  from pipeline.prediction.answers import answer, label_names
  from pipeline.prediction.chunks import BatchShape, Chunk, pack_examples
  from pipeline.prediction.examples import Example, read_examples
  from pipeline.prediction.submission import write_submission
  from pipeline.preparation.assignments import read_assignment, write_assignment
  from pipeline.preparation.prepare import prepare
  from pipeline.settings import DatasetSettings
  from pipeline.store import SequenceStore
  from pipeline.tasks.table import TASK_HEADS, score

__all__ = [
  "TASK_HEADS",
  "AtomLoader",
  "BatchShape",
  "Chunk",
  "DatasetSettings",
  "Example",
  "HeldOut",
  "Masking",
  "PackedBatch",
  "PackedLoader",
  "PreparedDataset",
  "RowLoader",
  "SequenceStore",
  "WindowLoader",
  "answer",
  "keep_plans",
  "label_names",
  "make_held_out",
  "make_loader",
  "make_plan",
  "open_dataset",
  "pack_examples",
  "plan_sha256",
  "prepare",
  "prepare_dataset",
  "read_assignment",
  "read_examples",
  "read_plans",
  "score",
  "settings_of",
  "write_assignment",
  "write_submission",
]

_MODULES = {
  "prediction.answers": ("answer", "label_names"),
  "batches.atom_loader": ("AtomLoader",),
  "preparation.assignments": ("read_assignment", "write_assignment"),
  "batches.packed": ("Masking", "PackedBatch"),
  "prediction.chunks": ("Chunk", "BatchShape", "pack_examples"),
  "config": (
    "HeldOut",
    "make_held_out",
    "make_loader",
    "prepare_dataset",
    "settings_of",
  ),
  "dataset": ("PreparedDataset", "open_dataset"),
  "preparation.prepare": ("prepare",),
  "prediction.examples": ("Example", "read_examples"),
  "batches.loader": ("PackedLoader", "RowLoader"),
  "batches.plans": ("keep_plans", "make_plan", "plan_sha256", "read_plans"),
  "settings": ("DatasetSettings",),
  "store": ("SequenceStore",),
  "prediction.submission": ("write_submission",),
  "tasks.table": ("TASK_HEADS", "score"),
  "batches.windows": ("WindowLoader",),
}


def __getattr__(name: str):
  for module, names in _MODULES.items():
    if name in names:
      return getattr(importlib.import_module(f"pipeline.{module}"), name)
  raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
