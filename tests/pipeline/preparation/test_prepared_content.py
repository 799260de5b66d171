"""The content of a prepared dataset, counted with plain loops."""

import collections

import numpy as np
import pytest

from pipeline.batches.packed import pack_rows
from pipeline.preparation.prepare import prepare
from pipeline.settings import DatasetSettings
from tests.stdlib_corpus import make_library


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
  folder = tmp_path_factory.mktemp("content")
  (folder / "library").mkdir()
  return prepare(
    folder / "data",
    DatasetSettings(
      source=f"stdlib:{make_library(folder / 'library')}",
      max_sequence_length=41,
      vocab_size=300,
      vocab_file="",
      min_sentences=2,
      held_out_fraction=0.2,
      short_sequence_probability=0.1,
      seed=0,
    ),
  )


def tokens_of(dataset, store, number) -> list[str]:
  return [dataset.vocabulary[i] for i in store.gather(np.array([number]))]


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_the_first_token_type_ends_with_the_first_separator(dataset, split):
  store = getattr(dataset, split)
  for number in range(len(store)):
    tokens = tokens_of(dataset, store, number)
    separators = [i for i, token in enumerate(tokens) if token == "[SEP]"]
    assert tokens.index("[CLS]") == 0
    assert tokens.count("[CLS]") == 1
    assert len(separators) == 2
    assert separators[1] == len(tokens) - 1
    assert 1 < separators[0] < len(tokens) - 2  # neither segment is empty
    assert store.first_type_lengths[number] == separators[0] + 1


def test_token_types_in_a_row_change_after_each_first_separator(dataset):
  rows = np.array([[3, 0, 1], [2, 5, -1], [7, -1, -1]])
  batch = pack_rows(dataset.train, rows, row_length=3 * 41)
  separator = dataset.vocabulary.index("[SEP]")
  for row in range(3):
    segment, passed = 0, 0
    for column in range(3 * 41):
      if batch["segment_ids"][row, column] != segment:
        segment, passed = batch["segment_ids"][row, column], 0
      expected = int(segment > 0 and passed > 0)
      assert batch["token_type_ids"][row, column] == expected
      passed += batch["input_ids"][row, column] == separator
  assert batch["token_type_ids"].any()


def test_the_unigram_token_is_the_most_frequent_maskable_one(dataset):
  counts: collections.Counter[str] = collections.Counter()
  for number in range(len(dataset.train)):
    counts.update(tokens_of(dataset, dataset.train, number))
  for token in ("[PAD]", "[CLS]", "[SEP]", "[MASK]"):
    del counts[token]
  (commonest, most), (_, second) = counts.most_common(2)
  assert most > second
  assert dataset.vocabulary[dataset.manifest["most_frequent_token"]] == commonest


def test_the_manifest_counts_what_the_stores_hold(dataset):
  for split in ("train", "held_out"):
    store = getattr(dataset, split)
    lengths = [len(tokens_of(dataset, store, number)) for number in range(len(store))]
    labels = store.sequence_labels.tolist()
    counts = dataset.manifest["counts"][split]
    assert counts["sequences"] == len(lengths)
    assert counts["tokens"] == sum(lengths)
    assert counts["random_next"] == pytest.approx(sum(labels) / len(labels))
    assert 0.3 < counts["random_next"] < 0.8
