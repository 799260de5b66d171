"""Datasets of the standard library's English."""

import string

import numpy as np
import pytest

from packing import InputError
from pipeline.preparation.prepare import prepare
from pipeline.settings import DatasetSettings
from pipeline.sources import stdlib
from tests.stdlib_corpus import make_library


def test_nothing_held_out_is_trained_on(tmp_path):
  library = make_library(tmp_path / "library")
  fields = {"vocab_size": 300, "min_sentences": 2, "held_out_fraction": 0.2}
  chosen = DatasetSettings(f"stdlib:{library}", 512, **fields)
  dataset = prepare(tmp_path / "d", chosen)
  vocabulary = np.array(dataset.vocabulary)
  train, held_out = (
    " ".join(vocabulary[store.gather(np.arange(len(store)))])
    for store in (dataset.train, dataset.held_out)
  )
  segments = [s.removeprefix("[CLS]") for s in held_out.split(" [SEP] ")]
  long = [segment.strip() for segment in segments if len(segment.split()) > 40]
  assert long
  assert not any(segment in train for segment in long)


def test_no_vocabulary_is_learned_from_what_is_held_out(tmp_path):
  """Each document has a letter of its own."""
  (tmp_path / "a.txt").write_text("\n\n".join(string.ascii_lowercase))
  fields = {"vocab_size": 64, "held_out_fraction": 0.2}
  dataset = prepare(tmp_path / "d", DatasetSettings(str(tmp_path / "a.txt"), 41, **fields))
  learned = set(dataset.vocabulary) & set(string.ascii_lowercase)
  assert len(learned) == dataset.manifest["counts"]["train"]["documents"] < 26


def test_a_missing_corpus_is_one_clear_error(tmp_path):
  with pytest.raises(InputError, match=r"topics\.py; it is not there"):
    stdlib.source_files(tmp_path)


def test_documents_are_parsed_not_imported_and_given_once(tmp_path):
  same = '"""This text is the same."""'
  for name, text in {
    "pydoc_data/topics.py": "topics = {'a': 'Topic.'}\n",
    "module.py": f'"""Module."""\nexit()\nclass A:\n  {same}\ndef f():\n  {same}\n',
    "broken.py": "def f(:\n",
    "test/skipped.py": '"""Skipped."""\n',
  }.items():
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
  documents = list(stdlib.standard_library_documents(stdlib.source_files(tmp_path)))
  assert documents == [["Topic."], ["Module."], ["This text is the same."]]
