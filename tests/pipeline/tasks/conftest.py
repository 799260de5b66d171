import itertools
import json

import pytest

from pipeline.preparation.prepare import prepare
from pipeline.settings import DatasetSettings
from tests.pipeline.tasks.making import VOCABULARY


@pytest.fixture
def vocab_file(tmp_path):
  path = tmp_path / "vocab.txt"
  path.write_text("\n".join(VOCABULARY) + "\n")
  return str(path)


@pytest.fixture
def make(tmp_path, vocab_file):
  """Prepares rows given as JSON lines, each time in another folder `out...`."""
  numbers = itertools.count()
  source = tmp_path / "rows.jsonl"

  def make(task, rows, **fields):
    source.write_text("\n".join(map(json.dumps, rows)))
    chosen = {"max_sequence_length": 16, "vocab_file": vocab_file, "seed": 3} | fields
    chosen = {"min_sentences": 1} | chosen
    settings = DatasetSettings(source=str(source), task=task, **chosen)
    return prepare(tmp_path / f"out{next(numbers)}", settings)

  return make
