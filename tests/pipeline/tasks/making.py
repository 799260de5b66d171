"""Small datasets of each task, prepared from records, and their sequences."""

import json

import numpy as np

from pipeline.preparation.prepare import prepare
from pipeline.settings import DatasetSettings

WORDS = [*"abcdefghij", *(f"##{c}" for c in "abcdefghij"), "yes", "no", "?", "."]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
ID = {token: number for number, token in enumerate(VOCABULARY)}
CLS, SEP = ID["[CLS]"], ID["[SEP]"]


def make(tmp_path, vocab_file, task, rows, **settings):
  """Prepares rows given as JSON lines."""
  (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
  chosen = {"max_sequence_length": 16, "vocab_file": vocab_file, "seed": 3} | settings
  source = str(tmp_path / "rows.jsonl")
  return prepare(tmp_path / "out", DatasetSettings(source=source, task=task, **chosen))


def sequences(store):
  return [store.gather(np.array([i])).tolist() for i in range(len(store))]


def tokens(store):
  return [[VOCABULARY[t] for t in ids] for ids in sequences(store)]
