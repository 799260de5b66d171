"""Sentences with classes or numbers: GLUE's tasks, and a user's own."""

import shutil

import numpy as np
import pytest

import packing
from packing import InputError
from pipeline.batches.loader import PackedLoader
from pipeline.preparation.prepare import prepare
from pipeline.settings import DatasetSettings
from pipeline.tasks import glue
from pipeline.tasks.table import TASKS, find_task
from tests.pipeline.tasks.making import make, tokens


@pytest.mark.parametrize("name", glue.TASKS)
def test_each_glue_task_has_its_sentences_and_labels(tmp_path, vocab_file, name):
  fields, labels = glue.TASKS[name]
  values = [1.5, 0.0, 5.0] if not labels else [len(labels) - 1, 0, labels[0]]
  rows = [
    {fields[0]: "a b c", "label": value} | dict.fromkeys(fields[1:], "d e")
    for value in values
  ]
  dataset = make(tmp_path, vocab_file, f"glue/{name}", rows)
  one, two = ["[CLS]", "a", "b", "c", "[SEP]"], ["d", "e", "[SEP]"]
  expected = one + two if len(fields) == 2 else one
  assert tokens(dataset.train) == [expected] * 3
  assert dataset.train.first_type_lengths.tolist() == [5] * 3
  found = dataset.train.sequence_labels
  assert found.tolist() == ([1.5, 0.0, 5.0] if not labels else [len(labels) - 1, 0, 0])
  assert found.dtype == (np.int32 if labels else np.float32)
  assert dataset.manifest["labels"] == {
    "dtype": "int32" if labels else "float",
    "names": list(labels),
  }


def test_labels_of_a_regression_are_unchanged_in_batches(tmp_path, vocab_file):
  """STS-B has labels such as 3.8, which integers and half precision cannot hold."""
  values = [0.0, 3.8, 4.2, 2.6666667, 5.0, 0.001]
  rows = [
    {"sentence1": "a b", "sentence2": "c " * n, "label": str(value) if n % 2 else value}
    for n, value in enumerate(values, 1)
  ]
  store = make(tmp_path, vocab_file, "glue/stsb", rows).train
  histogram = packing.Histogram.from_lengths(store.lengths, max_sequence_length=16)
  plan = packing.pack(histogram, row_length=32)
  assert plan.packing_depth > 1
  loader = PackedLoader(store, plan, batch_size=2, masking=None, seed=0)
  found: dict = {}
  for batch in (*loader.evaluation_batches(), loader[0]):
    labels = batch["sequence_labels"]
    assert labels.dtype == np.float32
    assert (labels[batch["sequence_ids"] < 0] == 0).all()
    found |= dict(zip(batch["sequence_ids"].ravel(), labels.ravel(), strict=True))
  assert [found[n] for n in range(6)] == [np.float32(value) for value in values]


def test_all_nine_tasks_have_their_number_of_classes():
  classes = {name: len(labels) for name, (_, labels) in glue.TASKS.items()}
  assert len(classes) == 9
  assert classes.pop("stsb") == 0
  assert classes.pop("mnli") == 3
  assert set(classes.values()) == {2}
  assert {f"glue/{name}" for name in glue.TASKS} <= set(TASKS)


def test_glue_pairs_lose_tokens_at_the_end_of_the_longer(tmp_path, vocab_file):
  rows = [
    {"sentence1": "a b c d e f g h i j", "sentence2": "a b c", "label": 1},
    {"sentence1": "a b", "sentence2": "j i h g f e d c b a", "label": 0},
  ]
  dataset = make(tmp_path, vocab_file, "glue/mrpc", rows, max_sequence_length=11)
  assert tokens(dataset.train) == [
    ["[CLS]", *"abcde", "[SEP]", *"abc", "[SEP]"],
    ["[CLS]", *"ab", "[SEP]", *"jihgfe", "[SEP]"],
  ]
  assert dataset.manifest["counts"]["train"]["too_long"] == 2
  with pytest.raises(InputError, match=r"line 1: The example has 16 tokens; expected at"):
    prepare(
      tmp_path / "strict",
      DatasetSettings(**{**dataset.manifest["settings"], "too_long": "error"}),
    )
  with pytest.raises(InputError, match=r"expected truncate or error for glue/mrpc"):
    prepare(
      tmp_path / "split",
      DatasetSettings(**{**dataset.manifest["settings"], "too_long": "split"}),
    )


def test_of_two_equally_long_sentences_the_second_loses_a_token():
  parts = [[1, 2, 3], [4, 5, 6]]
  glue.shorten(parts, 5)
  assert parts == [[1, 2, 3], [4, 5]]
  glue.shorten(parts, 3)
  assert parts == [[1, 2], [4]]


@pytest.mark.parametrize(
  ("task", "label", "message"),
  [
    ("glue/cola", 2, r"label is 2; expected 0 to 1 or one of unacceptable, acceptable"),
    ("glue/cola", -1, r"Test splits hide their labels"),
    ("glue/cola", "maybe", r"label is 'maybe'"),
    ("glue/cola", None, r"label is None"),
    ("glue/stsb", "high", r"label is 'high'; expected a number"),
    ("glue/stsb", "nan", r"expected a number"),
    ("glue/stsb", 1e39, r"label is 1e\+39; expected a number"),
    ("glue/stsb", "-1e39", r"label is '-1e39'; expected a number"),
    pytest.param(
      "glue/stsb", 10**400, r"label is 10+\.\.\.; expected a number", id="stsb-huge"
    ),
    pytest.param(
      "glue/cola", 10**400, r"label is 10+\.\.\.; expected 0 to 1", id="cola-huge"
    ),
  ],
)
def test_invalid_labels_are_refused(tmp_path, vocab_file, task, label, message):
  fields = glue.TASKS[task.removeprefix("glue/")][0]
  rows = [{"label": label} | dict.fromkeys(fields, "a b.")]
  with pytest.raises(InputError, match=message):
    make(tmp_path, vocab_file, task, rows)
  assert not (tmp_path / "out").exists()


# ---- a user's own ----------------------------------------------------------------------


def test_a_users_classes_have_names_and_sentences_may_be_pairs(tmp_path, vocab_file):
  rows = [
    {"sentence": "a b", "label": "good"},
    {"sentence": "a b", "sentence2": "c", "label": 0},
    {"sentence": "a b", "sentence2": "", "label": 1.0},
    {"sentence": "a b", "sentence2": None, "label": "bad"},
  ]
  dataset = make(tmp_path, vocab_file, "classification", rows, labels="bad, good")
  one, two = ["[CLS]", "a", "b", "[SEP]"], ["c", "[SEP]"]
  assert tokens(dataset.train) == [one, one + two, one, one]
  assert dataset.train.first_type_lengths.tolist() == [4] * 4
  assert dataset.train.sequence_labels.tolist() == [1, 0, 1, 0]
  assert dataset.manifest["labels"] == {"dtype": "int32", "names": ["bad", "good"]}
  task, _ = find_task(DatasetSettings(**dataset.manifest["settings"]))
  assert task.label_names == ("bad", "good")
  assert TASKS["classification"].label_names == ()


def test_class_names_that_are_numbers_match_by_value(tmp_path, vocab_file):
  rows = [{"sentence": "a", "label": n} for n in ("1", 5, 3.0, " 3 ", 1)]
  dataset = make(tmp_path, vocab_file, "classification", rows, labels="1,3,5")
  assert dataset.train.sequence_labels.tolist() == [0, 2, 1, 1, 0]
  rows[3]["label"] = 2
  shutil.rmtree(tmp_path / "out")
  with pytest.raises(InputError, match=r"line 4: label is 2; expected one of 1, 3, 5"):
    make(tmp_path, vocab_file, "classification", rows, labels="1,3,5")


def test_a_users_regression(tmp_path, vocab_file):
  rows = [{"sentence": "a", "label": 3.5}, {"sentence": "b", "label": "-1e3"}]
  dataset = make(tmp_path, vocab_file, "regression", rows)
  assert dataset.train.sequence_labels.tolist() == [3.5, -1000]
  assert dataset.manifest["labels"] == {"dtype": "float", "names": []}


@pytest.mark.parametrize(
  ("task", "labels", "message"),
  [
    ("classification", "", r"needs the names of its classes.*--labels no,yes"),
    ("classification", "yes", r"labels is 'yes'; expected at least two different names"),
    ("classification", "a,b,a", r"expected at least two different names"),
    ("classification", "a,,b", r"expected at least two different names"),
    ("regression", "a,b", r"labels is 'a,b'; expected none for regression"),
    ("glue/cola", "a,b", r"expected none for glue/cola"),
  ],
)
def test_only_classification_takes_names_of_classes(
  tmp_path, vocab_file, task, labels, message
):
  with pytest.raises(InputError, match=message):
    make(tmp_path, vocab_file, task, [{"sentence": "a", "label": 0}], labels=labels)


def test_a_named_column_must_exist(tmp_path, vocab_file):
  rows = [{"sentence": "a", "label": 0}]
  with pytest.raises(InputError, match=r"line 1 has no 'reply'; found sentence, label"):
    make(
      tmp_path,
      vocab_file,
      "classification",
      rows,
      labels="n,y",
      columns="sentence2=reply",
    )
