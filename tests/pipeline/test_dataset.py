"""Prepared datasets, and the standard library's English."""

import json
import shutil
import string

import numpy as np
import pytest

from packing import InputError
from pipeline.dataset import open_dataset
from pipeline.preparation.prepare import prepare
from pipeline.settings import DatasetSettings
from pipeline.sources import stdlib


def test_nothing_is_learned_from_what_is_held_out(tmp_path):
  """Each document has a letter of its own; a letter that is held out is unknown."""
  (tmp_path / "a.txt").write_text("\n\n".join(string.ascii_lowercase))
  fields = {"vocab_size": 64, "held_out_fraction": 0.2, "min_sentences": 1}
  dataset = prepare(tmp_path / "d", DatasetSettings(str(tmp_path / "a.txt"), 41, **fields))
  vocabulary = np.array(dataset.vocabulary)
  learned = set(dataset.vocabulary) & set(string.ascii_lowercase)
  assert len(learned) == dataset.manifest["counts"]["train"]["documents"] < 26
  train, held_out = (
    set(vocabulary[store.gather(np.arange(len(store)))])
    for store in (dataset.train, dataset.held_out)
  )
  assert train == learned | {"[CLS]", "[SEP]"}
  assert held_out == {"[UNK]", "[CLS]", "[SEP]"}


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (lambda m: m.pop("shards"), "is not a prepared dataset"),
    (lambda m: m.update(version=2), r"manifest\.json has version 2; expected 1"),
    (lambda m: m["sha256"].update({"other.arrow": "0"}), r"other\.arrow is missing"),
    (lambda m: m["shards"].pop("train"), "is not a prepared dataset .*train"),
    (lambda m: m["shards"].update(train=[]), "is not a prepared dataset .*IndexError"),
    (lambda m: m["tokenizer"].pop("file"), "is not a prepared dataset .*file"),
    (lambda m: m["labels"].pop("names"), "is not a prepared dataset .*names"),
    (lambda m: m["shards"]["train"].append("../x.arrow"), r"names '\.\./x\.arrow', which"),
    (lambda m: m["shards"]["train"].append("x.arrow"), r"names 'x\.arrow', which is not"),
    (lambda m: m["tokenizer"].update(file="../t.json"), r"names '\.\./t\.json', which"),
    (
      lambda m: (m["shards"]["train"].append("../x"), m["sha256"].update({"../x": "0"})),
      r"names '\.\./x', which is not",
    ),
  ],
)
def test_a_folder_that_is_not_as_it_was_prepared_is_refused(
  reference, tmp_path, change, message
):
  folder = shutil.copytree(reference.directory, tmp_path / "d")
  manifest = json.loads((folder / "manifest.json").read_text())
  change(manifest)
  (folder / "manifest.json").write_text(json.dumps(manifest))
  with pytest.raises(InputError, match=message):
    open_dataset(folder)


def test_a_flipped_bit_in_a_manifest_is_told_in_a_line(reference, tmp_path):
  folder = shutil.copytree(reference.directory, tmp_path / "d")
  text = bytearray((folder / "manifest.json").read_bytes())
  text[len(text) // 2] ^= 128
  (folder / "manifest.json").write_bytes(text)
  with pytest.raises(InputError, match="can't decode byte") as caught:
    open_dataset(folder)
  assert len(str(caught.value)) < 300 + len(str(folder))


def test_a_missing_corpus_is_one_clear_error(tmp_path):
  with pytest.raises(InputError, match=r"no .*topics\.py"):
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


def test_a_large_dataset_is_compared_by_size_unless_all_is_wanted(
  reference, tmp_path, monkeypatch, capsys
):
  folder = shutil.copytree(reference.directory, tmp_path / "d")
  assert not open_dataset(folder).train.reads_ahead
  monkeypatch.setattr("pipeline.dataset.LARGE", 1000)
  path = folder / reference.manifest["shards"]["train"][0]
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)
  assert not capsys.readouterr().err
  large = open_dataset(folder)
  assert "only the sizes of its files were compared" in capsys.readouterr().err
  assert large.train.reads_ahead
  with pytest.raises(InputError, match=rf"{path.name} is missing or was altered"):
    open_dataset(folder, compare_all=True)
  for damaged in content[:-1], None:
    path.unlink() if damaged is None else path.write_bytes(damaged)
    with pytest.raises(InputError, match=rf"{path.name} is missing or was altered"):
      open_dataset(folder)
