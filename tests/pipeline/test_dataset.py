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


@pytest.mark.parametrize("name", ["source", "labels", "counts", "most_frequent_token"])
def test_a_manifest_that_lacks_a_part_is_refused(reference, tmp_path, name):
  folder = shutil.copytree(reference.directory, tmp_path / "d")
  manifest = {key: x for key, x in reference.manifest.items() if key != name}
  (folder / "manifest.json").write_text(json.dumps(manifest))
  with pytest.raises(InputError, match=r"manifest\.json is incomplete"):
    open_dataset(folder)


@pytest.mark.parametrize("name", ["../other.arrow", "other.arrow", "train-copy.arrow"])
def test_shards_outside_the_folder_or_without_a_checksum_are_refused(
  reference, tmp_path, name
):
  folder = shutil.copytree(reference.directory, tmp_path / "d")
  manifest = reference.manifest
  shards = manifest["shards"]["train"]
  shutil.copy(folder / shards[0], folder / name)
  for named in ([name, *shards], shards[::-1], [*shards, shards[0]]):
    changed = manifest | {"shards": manifest["shards"] | {"train": named}}
    (folder / "manifest.json").write_text(json.dumps(changed))
    with pytest.raises(InputError, match="names other shards of train than"):
      open_dataset(folder)


def test_a_file_in_another_folder_is_refused(reference, tmp_path):
  folder = shutil.copytree(reference.directory, tmp_path / "d")
  manifest = dict(reference.manifest)
  manifest["sha256"] = manifest["sha256"] | {"../train.arrow": ""}
  (folder / "manifest.json").write_text(json.dumps(manifest))
  with pytest.raises(InputError, match=r"names \.\./train\.arrow, which is not in its"):
    open_dataset(folder)


def test_a_dataset_of_another_version_is_refused(reference, tmp_path):
  folder = shutil.copytree(reference.directory, tmp_path / "d")
  (folder / "manifest.json").write_text(json.dumps(reference.manifest | {"version": 2}))
  with pytest.raises(InputError, match=r"manifest\.json has version 2; expected 1"):
    open_dataset(folder)


def test_a_missing_corpus_is_one_clear_error(tmp_path):
  with pytest.raises(InputError, match=r"found no .*topics\.py"):
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
