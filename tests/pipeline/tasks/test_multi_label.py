"""Sentences with several classes, or none: sources, classes, packs and scores."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import packing
import pipeline
from packing import InputError
from pipeline.batches.audit import AuditError, audit
from pipeline.batches.loader import PackedLoader
from pipeline.preparation.prepare import prepare
from pipeline.settings import DatasetSettings
from pipeline.store import MULTI_LABEL_SCHEMA, SequenceStore, StoredSequence
from tests.pipeline.batches.test_audit import altered

NAMES = ["dry", "hot", "wet"]
LABELS = [["hot", "dry"], [], ["wet"], ["dry", "hot", "wet"], ["hot", "hot"], []]
MARKS = [[name in labels for name in NAMES] for labels in LABELS]
TEXTS = ["a b", "c", "d e f", "g", "h i j a b", "c d"]
ROWS = [{"sentence": text, "label": x} for text, x in zip(TEXTS, LABELS, strict=True)]


def test_lists_mark_classes_which_are_found_and_printed(make, capsys):
  dataset = make("multi_label", ROWS)
  assert dataset.labels == ("dry", "hot", "wet")
  assert "3 classes in" in capsys.readouterr().err
  assert dataset.train.sequence_labels.tolist() == MARKS


def test_columns_of_lists_are_read_by_the_names_of_hugging_face(tmp_path, vocab_file):
  numbers = [[NAMES.index(name) for name in labels] for labels in LABELS]
  item = {"names": NAMES, "_type": "ClassLabel"}
  kind = {"label": {"feature": item, "_type": "Sequence"}}
  table = pa.table({"sentence": TEXTS, "label": numbers}).replace_schema_metadata(
    {"huggingface": json.dumps({"info": {"features": kind}})}
  )
  path = tmp_path / "a.parquet"
  pa.parquet.write_table(table, path)
  chosen = DatasetSettings(str(path), 16, task="multi_label", vocab_file=vocab_file)
  dataset = prepare(tmp_path / "out", chosen)
  assert dataset.labels == tuple(NAMES)
  assert dataset.train.sequence_labels.tolist() == MARKS


@pytest.mark.parametrize("row", [[0, 1, 0], [False, True, False], [0.0, 1.0, 0.0]])
def test_marks_instead_of_classes_are_refused(make, row):
  rows = [row] * 5 + [row[:1]]
  with pytest.raises(InputError, match=r"repeats a number\. List those that apply"):
    make(
      "multi_label", [{"sentence": t, "label": x} for t, x in zip(TEXTS, rows, strict=True)]
    )


def test_marks_of_two_classes_are_refused(make):
  rows = [[0, 1], [1, 0], [0, 1]]
  texts = zip(TEXTS, rows, strict=False)
  with pytest.raises(InputError, match=r"Each label lists all of 0, 1\. List only those"):
    make("multi_label", [{"sentence": text, "label": row} for text, row in texts])


@pytest.mark.parametrize(
  ("labels", "row"),
  [
    ("x,y", [0, 1]),
    ("x,y", [1.0, 0.0]),
    ("x,y", ["0", "1"]),
    ("false,true", [False, True]),
    ("0,1", [0, 1]),
  ],
)
def test_two_numbers_may_mean_both_classes_or_one_and_are_refused(make, labels, row):
  rows = [{"sentence": "a", "label": row}, *ROWS[1:2]]
  expected = "may mean both classes or one. List those that apply by name, as in"
  with pytest.raises(InputError, match=f"line 1: label .* {expected}"):
    make("multi_label", rows, labels=labels)


@pytest.mark.parametrize("row", [["0", "1", "0"], ["false", "false", "true"]])
@pytest.mark.parametrize("labels", ["", "0,1", "false,true,other"])
def test_marks_written_as_text_are_refused(make, row, labels):
  rows = [{"sentence": text, "label": row} for text in TEXTS]
  known = set(row) <= set(labels.split(",")) or not labels
  message = "repeats a number|Each label lists all of" if known else "label is|repeats"
  with pytest.raises(InputError, match=message):
    make("multi_label", rows, labels=labels)


def test_names_that_are_numbers_may_be_listed_as_text(make):
  rows = zip(TEXTS, [["0", "1"], ["1"], []], strict=False)
  dataset = make("multi_label", [{"sentence": t, "label": x} for t, x in rows])
  assert dataset.labels == ("0", "1")
  assert dataset.train.sequence_labels.tolist() == [[True] * 2, [False, True], [False] * 2]


@pytest.mark.parametrize(
  ("task", "label", "labels", "message"),
  [
    ("multi_label", "hot", "", "label is 'hot'; multi_label takes lists of classes"),
    ("multi_label", "hot", "dry,hot,wet", "label is 'hot'; multi_label takes lists"),
    ("multi_label", ["hot", None], "", "label is .*; expected names of classes"),
    ("multi_label", ["mild"], "dry,hot,wet", "label is 'mild'; expected 0 to 2 or one of"),
    ("classification", [], "", r"label is \[\]; .* set the task multi_label"),
    ("regression", [1], "", r"label is \[1\]; regression takes one label a record"),
  ],
)
def test_labels_of_another_kind_are_refused_with_their_line(
  make, task, label, labels, message
):
  rows = ROWS if task == "multi_label" else [ROWS[0] | {"label": 1}] * 6
  with pytest.raises(InputError, match=f"line 7: {message}"):
    make(task, [*rows, {"sentence": "a", "label": label}], labels=labels)


def test_packs_carry_the_marks_and_the_audit_compares_them(make):
  store = make("multi_label", ROWS).train
  plan = packing.pack(store.lengths, max_sequence_length=16)
  assert plan.packing_depth > 1
  options: dict = {"batch_size": 2, "masking": None, "seed": 0}
  audit(PackedLoader(store, plan, **options), epoch=0)

  def flip(batch):
    batch["sequence_labels"][0, 0, 2] ^= True

  with pytest.raises(AuditError, match="sequence_labels in row 0, column 0: expected"):
    audit(altered(flip)(store, plan, **options), epoch=0)


def test_scores_equal_a_loop():
  rng = np.random.default_rng(0)
  marks, logits = rng.random((23, 5)) < 0.4, rng.standard_normal((23, 5))
  marks[:, 4], logits[:, 4] = False, -1  # never there and never predicted
  sequences = [StoredSequence([2, 3], 2, one.tolist()) for one in marks]
  store = SequenceStore.from_sequences(sequences, MULTI_LABEL_SCHEMA)
  found, said = pipeline.score("multi_label", store, list(logits)), logits > 0
  hits, sizes = (marks & said).sum(axis=0), marks.sum(axis=0) + said.sum(axis=0)
  micro = 2 * hits.sum() / sizes.sum()
  macro = (2 * hits / np.maximum(sizes, 1)).mean()
  right = (marks == said).all(axis=1).mean()
  expected = {"micro_f1": micro, "macro_f1": macro, "subset_accuracy": right}
  assert found == pytest.approx({"score": micro} | expected)
  assert 0 < right < macro < micro < 1
  with pytest.raises(ValueError, match="expected 23 times 5 finite logits"):
    pipeline.score("multi_label", store, list(logits[:, :4]))
