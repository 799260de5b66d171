import dataclasses
import json

import numpy as np
import pytest

from packing import InputError
from pipeline.dataset import open_dataset
from pipeline.preparation.prepare import prepare
from pipeline.settings import DatasetSettings
from pipeline.sources import stdlib
from pipeline.tokenizer import SPECIAL_TOKENS, read_vocabulary
from tests import forked
from tests.prepared import ROOT
from tests.stdlib_corpus import make_library


@pytest.fixture(scope="module")
def library(tmp_path_factory):
  return make_library(tmp_path_factory.mktemp("library"))


def settings(library, **fields) -> DatasetSettings:
  return DatasetSettings(
    **{
      "source": f"stdlib:{library}",
      "max_sequence_length": 41,
      "vocab_size": 300,
      "vocab_file": "",
      "min_sentences": 2,
      "held_out_fraction": 0.2,
      "short_sequence_probability": 0.1,
      "seed": 0,
    }
    | fields
  )


def texts_of(dataset, store) -> list[str]:
  vocabulary = np.array(dataset.vocabulary)
  return [" ".join(vocabulary[store.gather(np.array([i]))]) for i in range(len(store))]


def test_a_prepared_dataset_is_complete_and_reproducible(library, tmp_path):
  first = prepare(tmp_path / "a", settings(library))
  second = prepare(tmp_path / "b", settings(library))
  assert first.manifest == second.manifest
  counts = first.manifest["counts"]
  assert counts["train"]["sequences"] == len(first.train) > 50
  assert counts["held_out"]["sequences"] == len(first.held_out) > 5
  assert (
    counts["train"]["documents"] + counts["held_out"]["documents"]
    == (counts["documents_used"])
  )
  assert first.train.lengths.max() <= 41
  for text in texts_of(first, first.train):
    assert text.startswith("[CLS]")
    assert text.endswith("[SEP]")
    assert text.count("[SEP]") == 2
  assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_nothing_held_out_is_trained_on(library, tmp_path):
  dataset = prepare(tmp_path / "a", settings(library, max_sequence_length=512))
  train = " ".join(texts_of(dataset, dataset.train))
  segments = [
    segment.strip()
    for text in texts_of(dataset, dataset.held_out)
    for segment in text.removeprefix("[CLS]").split("[SEP]")
    if len(segment.split()) > 40
  ]
  assert segments
  assert not any(segment in train for segment in segments)


def test_preparing_again_does_nothing(library, tmp_path):
  prepare(tmp_path / "a", settings(library))
  before = {p: p.stat().st_mtime_ns for p in (tmp_path / "a").iterdir()}
  prepare(tmp_path / "a", settings(library))
  assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "a").iterdir()}


def test_other_settings_are_refused(library, tmp_path):
  prepare(tmp_path / "a", settings(library))
  with pytest.raises(InputError, match="vocab_size: 300, now 400"):
    prepare(tmp_path / "a", settings(library, vocab_size=400))


def test_an_altered_file_is_refused(library, tmp_path):
  prepare(tmp_path / "a", settings(library))
  content = bytearray((tmp_path / "a" / "train-00000-00000.arrow").read_bytes())
  content[len(content) // 2] ^= 1
  (tmp_path / "a" / "train-00000-00000.arrow").write_bytes(content)
  with pytest.raises(InputError, match=r"train-.*\.arrow is missing or was altered"):
    open_dataset(tmp_path / "a")


def test_a_folder_of_something_else_is_left_alone(library, tmp_path):
  (tmp_path / "a").mkdir()
  (tmp_path / "a" / "thesis.txt").write_text("years of work")
  with pytest.raises(InputError, match="not a prepared dataset"):
    prepare(tmp_path / "a", settings(library))
  assert (tmp_path / "a" / "thesis.txt").read_text() == "years of work"


def test_the_folder_may_be_the_current_one(library, tmp_path, monkeypatch):
  (tmp_path / "a").mkdir()
  monkeypatch.chdir(tmp_path / "a")
  assert prepare(".", settings(library)).directory == tmp_path / "a"
  monkeypatch.chdir(tmp_path / "a")  # the empty one was replaced
  assert prepare(".", settings(library)).manifest
  assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_killed_preparation_leaves_nothing_that_looks_whole(library, tmp_path):
  """The process dies by SIGKILL when the training part is written."""
  program = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT)!r})
from pipeline.preparation import prepare, shard_files
from pipeline.settings import DatasetSettings
write = shard_files.write_sequences
def write_and_die(path, sequences, **options):
  write(path, sequences, **options)
  os.kill(os.getpid(), signal.SIGKILL)
shard_files.write_sequences = write_and_die
made = DatasetSettings(**{settings(library).__dict__!r})
prepare.prepare({str(tmp_path / "a")!r}, made)
"""
  (tmp_path / "program.py").write_text(program)
  result = forked.run([tmp_path / "program.py"], cwd=ROOT)
  assert result.returncode == -9
  assert not (tmp_path / "a").exists()
  dataset = prepare(tmp_path / "a", settings(library))
  assert dataset.manifest == prepare(tmp_path / "b", settings(library)).manifest


def test_a_given_vocabulary_is_used(library, tmp_path):
  words = ["the", "a", "of", "##s", ".", ","]
  (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *words]) + "\n")
  chosen = settings(library, vocab_file=str(tmp_path / "vocab.txt"))
  dataset = prepare(tmp_path / "a", chosen)
  assert dataset.vocabulary == [*SPECIAL_TOKENS, *words]
  manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
  assert manifest["settings"] == dataclasses.asdict(chosen) | {"too_long": "truncate"}


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"the\na\n", b"[PAD]\n[PAD]\n"])
def test_an_invalid_vocabulary_is_refused(tmp_path, content):
  if content is not None:
    (tmp_path / "vocab.txt").write_bytes(content)
  with pytest.raises(InputError, match=r"vocabulary.*vocab\.txt|vocab\.txt is not a BERT"):
    read_vocabulary(tmp_path / "vocab.txt")


def test_too_small_a_corpus_is_refused(library, tmp_path):
  with pytest.raises(InputError, match="at least 2 documents to train on and 2"):
    prepare(tmp_path / "a", settings(library, min_sentences=10_000))
  assert list(tmp_path.iterdir()) == []


def test_an_unknown_source_is_refused(tmp_path, library):
  with pytest.raises(InputError, match="no data source 'web'"):
    prepare(tmp_path / "a", settings(library, source="web"))


def test_a_missing_corpus_is_one_clear_error(tmp_path):
  with pytest.raises(InputError, match=r"topics\.py; it is not there"):
    list(stdlib.standard_library_documents(stdlib.source_files(tmp_path)))


def test_documents_are_parsed_not_imported_and_given_once(tmp_path):
  (tmp_path / "pydoc_data").mkdir()
  (tmp_path / "pydoc_data" / "topics.py").write_text("topics = {'a': 'Topic.'}\n")
  same = '"""This text is the same."""'
  (tmp_path / "module.py").write_text(
    f'"""Module."""\nraise SystemExit\nclass A:\n  {same}\ndef f():\n  {same}\n'
  )
  (tmp_path / "broken.py").write_text("def f(:\n")
  (tmp_path / "test").mkdir()
  (tmp_path / "test" / "skipped.py").write_text('"""Skipped."""\n')
  documents = list(stdlib.standard_library_documents(stdlib.source_files(tmp_path)))
  assert documents == [["Topic."], ["Module."], ["This text is the same."]]
