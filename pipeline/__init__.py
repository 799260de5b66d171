"""Text to packed batches.

Names are imported when they are asked for: the processes that tokenise need none of the
loader's libraries.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from pipeline.answers import answer, label_names
  from pipeline.assignments import read_assignment, write_assignment
  from pipeline.atom_loader import AtomLoader
  from pipeline.batches import Masking, PackedBatch
  from pipeline.chunks import Chunk, Rows, pack_examples
  from pipeline.config import (
    HeldOut,
    make_held_out,
    make_loader,
    prepare_dataset,
    settings_of,
  )
  from pipeline.dataset import PreparedDataset, open_dataset, prepare
  from pipeline.examples import Example, read_examples
  from pipeline.loader import PackedLoader, RowLoader
  from pipeline.plans import keep_plans, make_plan, plan_sha256, read_plans
  from pipeline.settings import Settings
  from pipeline.store import SequenceStore
  from pipeline.submission import write_submission
  from pipeline.tasks import TASK_HEADS, score
  from pipeline.windows import WindowLoader

__all__ = [
  "TASK_HEADS",
  "AtomLoader",
  "Chunk",
  "Example",
  "HeldOut",
  "Masking",
  "PackedBatch",
  "PackedLoader",
  "PreparedDataset",
  "RowLoader",
  "Rows",
  "SequenceStore",
  "Settings",
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
  "answers": ("answer", "label_names"),
  "atom_loader": ("AtomLoader",),
  "assignments": ("read_assignment", "write_assignment"),
  "batches": ("Masking", "PackedBatch"),
  "chunks": ("Chunk", "Rows", "pack_examples"),
  "config": (
    "HeldOut",
    "make_held_out",
    "make_loader",
    "prepare_dataset",
    "settings_of",
  ),
  "dataset": ("PreparedDataset", "open_dataset", "prepare"),
  "examples": ("Example", "read_examples"),
  "loader": ("PackedLoader", "RowLoader"),
  "plans": ("keep_plans", "make_plan", "plan_sha256", "read_plans"),
  "settings": ("Settings",),
  "store": ("SequenceStore",),
  "submission": ("write_submission",),
  "tasks": ("TASK_HEADS", "score"),
  "windows": ("WindowLoader",),
}


def __getattr__(name: str):
  for module, names in _MODULES.items():
    if name in names:
      return getattr(importlib.import_module(f"pipeline.{module}"), name)
  raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
