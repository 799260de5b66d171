"""Sentences with classes or numbers: GLUE's tasks, and a user's own."""

import json
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from packing import InputError
from pipeline.preparation.prepare import prepare
from pipeline.settings import DatasetSettings
from pipeline.sources.document import Document
from pipeline.sources.document_shards import is_held_out
from pipeline.tasks import glue
from pipeline.tasks.registry import TASKS, find_task
from tests.pipeline.sources.files import write_arrow
from tests.pipeline.tasks.making import tokens

NAMES = "cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli"


@pytest.mark.parametrize("name", NAMES)
def test_each_glue_task_has_its_sentences_and_labels(make, name):
  fields, labels, _ = glue.TASKS[name]
  assert len(labels) == {"stsb": 0, "mnli": 3}.get(name, 2)
  values = [3.8, 0.001, "2.6666667"] if not labels else [len(labels) - 1, 0, labels[0]]
  sentences = dict.fromkeys(fields, "d e") | {fields[0]: "a b c"}
  dataset = make(f"glue/{name}", [sentences | {"label": value} for value in values])
  expected = "[CLS] a b c [SEP]" + " d e [SEP]" * (len(fields) - 1)
  assert tokens(dataset.train) == [expected] * 3
  assert dataset.train.first_type_lengths.tolist() == [5] * 3
  found = dataset.train.sequence_labels
  numbers = [len(labels) - 1, 0, 0] if labels else [3.8, 0.001, 2.6666667]
  np.testing.assert_array_equal(found, np.array(numbers, found.dtype))
  assert found.dtype == (np.int32 if labels else np.float32)
  dtype = "int32" if labels else "float"
  assert dataset.manifest["labels"] == {"dtype": dtype, "names": list(labels)}


def test_glue_pairs_lose_tokens_at_the_end_of_the_longer(make):
  rows = [
    {"sentence1": "a b c d e f g h i j", "sentence2": "a b c", "label": 1},
    {"sentence1": "a b", "sentence2": "j i h g f e d c b a", "label": 0},
    {"sentence1": "a b c d e", "sentence2": "f g h i j", "label": 0},  # of equal length
  ]
  dataset = make("glue/mrpc", rows, max_sequence_length=12)
  assert tokens(dataset.train) == [
    "[CLS] a b c d e f [SEP] a b c [SEP]",
    "[CLS] a b [SEP] j i h g f e d [SEP]",
    "[CLS] a b c d e [SEP] f g h i [SEP]",
  ]
  assert dataset.manifest["counts"]["train"]["too_long"] == 3
  for how, message in (
    ("error", r"line 1: The example has 16 tokens; expected at"),
    ("split", r"glue/mrpc takes truncate or error"),
  ):
    with pytest.raises(InputError, match=message):
      make("glue/mrpc", rows, max_sequence_length=12, too_long=how)


@pytest.mark.parametrize(
  ("name", "label", "message"),
  [
    ("cola", 2, r"label is 2; expected 0 to 1 or one of unacceptable, acceptable"),
    ("cola", -1, r"Test splits hide their labels"),
    pytest.param("cola", 10**400, r"label is 10+\.\.\.; expected 0 to 1", id="cola-huge"),
    ("stsb", -1.0, r"label is -1.0; expected .* 0 to 5. Test splits hide their labels"),
    ("stsb", "5.01", r"label is '5.01'; expected a similarity from 0 to 5\.$"),
    ("stsb", "high", r"label is 'high'; expected a 32-bit number"),
    ("stsb", "-1e39", r"label is '-1e39'; expected a 32-bit number"),
  ],
)
def test_invalid_labels_are_refused(make, tmp_path, name, label, message):
  row = {"label": label} | dict.fromkeys(glue.TASKS[name].fields, "a b.")
  with pytest.raises(InputError, match=message):
    make(f"glue/{name}", [row])
  assert not list(tmp_path.glob("*out*"))


def test_a_users_classes_have_names_and_sentences_may_be_pairs(make):
  rows = [
    {"sentence": "a b", "label": "good"},
    {"sentence": "a b", "sentence2": "c", "label": 0},
    {"sentence": "a b", "sentence2": "", "label": 1.0},
    {"sentence": "a b", "sentence2": None, "label": "bad"},
  ]
  dataset = make("classification", rows, labels="bad, good")
  one = "[CLS] a b [SEP]"
  assert tokens(dataset.train) == [one, f"{one} c [SEP]", one, one]
  assert dataset.train.first_type_lengths.tolist() == [4] * 4
  assert dataset.train.sequence_labels.tolist() == [1, 0, 1, 0]
  assert dataset.manifest["labels"] == {"dtype": "int32", "names": ["bad", "good"]}
  task, _ = find_task(DatasetSettings(**dataset.manifest["settings"]))
  assert task.label_names == ("bad", "good")
  assert TASKS["classification"].label_names == ()


def test_empty_sentences_are_counted(make):
  rows = [{"sentence": text, "label": "x"} for text in ("a", "", " ")]
  counts = make("classification", rows, labels="x,y").manifest["counts"]["train"]
  assert (counts["documents"], counts["empty_sentences"]) == (3, 2)
  pairs = [{"sentence1": "a", "sentence2": text, "label": 1} for text in ("b", "")]
  assert make("glue/mrpc", pairs).manifest["counts"]["train"]["empty_sentences"] == 1
  assert "empty_sentences" not in make("glue/mrpc", pairs[:1]).manifest["counts"]["train"]


@pytest.mark.parametrize(
  ("task", "settings", "message"),
  [
    ("classification", {}, r"rows.jsonl has only the class '0'; expected several"),
    ("classification", {"labels": "a,b,a"}, r"expected different names"),
    ("classification", {"labels": "a,,b"}, r"expected different names"),
    ("glue/cola", {"labels": "a,b"}, r"labels is 'a,b'; expected none for glue/cola"),
    ("regression", {"columns": "sentence2=reply"}, r"line 1 has no 'reply'; found 'sen"),
  ],
)
def test_names_that_do_not_fit_are_refused(make, task, settings, message):
  with pytest.raises(InputError, match=message):
    make(task, [{"sentence": "a", "label": 0}], **settings)


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("name", ["sentence_2", "text2", "Question 2", "document_b"])
def test_a_second_sentence_of_another_name_is_not_lost(make, task, name):
  rows = [{"sentence": "a", name: "b", "label": n} for n in (0, 1)]
  with pytest.raises(InputError, match=f"'{name}', which is not read. .*sentence2={name}"):
    make(task, rows)
  both = make(task, rows, columns=f"sentence2={name}")
  assert tokens(both.train) == ["[CLS] a [SEP] b [SEP]"] * 2
  alone = make(
    task,
    [{"sentence1": "c", "sentence2": "d", "label": n} for n in (0, 1)],
    columns="sentence=sentence2",
  )  # which is then no second sentence
  assert tokens(alone.train) == ["[CLS] d [SEP]"] * 2
  rows = [row | {"sentence_b": "c"} for row in rows]  # nothing lacks a name
  assert tokens(make(task, rows, columns=f"sentence2={name}").train) == tokens(both.train)


def test_classes_are_printed_without_their_control_characters(make, capsys):
  make("classification", [{"sentence": "a", "label": x} for x in ("x\x1b[31m", "y\nz")])
  assert r": 'x\x1b[31m', 'y\nz'" in capsys.readouterr().err


def test_a_field_has_one_column(make):
  with pytest.raises(InputError, match=r"expected one name for sentence\."):
    make("regression", [{"a": "a", "label": 1}], columns="sentence=a,sentence=b")


def test_a_file_without_records_says_so(make):
  with pytest.raises(InputError, match=r"rows.jsonl has no records. Name another source"):
    make("classification", [])
  with pytest.raises(InputError, match=r"rows.jsonl has no class in its records"):
    make("multi_label", [{"sentence": "a", "label": []}])


@pytest.mark.parametrize(
  ("names", "found"),
  [
    # By their exact text, then by their exact number.
    (("1.1", "1.10", "1.2"), {"1.1": 0, "1.10": 1, 1.2: 2, " 1.20": 2, Decimal("1.2"): 2}),
    (("9007199254740992", "9007199254740993"), {2**53: 0, 2**53 + 1: 1}),
    # By name, never as 0 and 1.
    (("true", "false"), {True: 0, False: 1, "True": 0, "FALSE": 1}),
    (("false", "true"), {True: 1, "true": 1, "0": 0, "1": 1}),
    (("no", "yes"), {"yes": 1, 0: 0, "1": 1, 1.0: 1}),
  ],
)
def test_a_label_is_the_class_that_it_names(names, found):
  for label, number in found.items():
    document = Document({"label": label})
    assert glue.parse_label(document, names) == number, label


@pytest.mark.parametrize(
  ("names", "labels", "message"),
  [
    (("1.1", "1.10"), (1.1, "1.100"), "may be any of 1.1, 1.10"),
    (("True", "true"), (True, "TRUE"), "may be any of True, true"),
    (("true", "false"), (1, "0"), "expected one of true, false"),
    (("no", "yes"), (True, "False", 1.5, "1_0", None), "expected 0 to 1 or one of no, yes"),
    (("0", "1"), (True, "1_0"), "expected one of 0, 1"),
    ((), (True, "1_0", "nan", "inf", [1]), "expected a 32-bit number"),
  ],
)
def test_a_label_that_names_no_class_or_several_is_refused(names, labels, message):
  for label in labels:
    with pytest.raises(InputError, match=message):
      glue.parse_label(Document({"label": label}, "here"), names)


def test_a_class_that_only_held_out_records_have_is_refused(make):
  rows = [{"sentence": "a", "label": "xy"[number % 2]} for number in range(20)]
  held_out = next(number for number in range(20) if is_held_out(number, 0.1, 3))
  rows[held_out]["label"] = "z"
  message = rf"line {held_out + 1}: label is 'z'; expected 0 to 1 or one of x, y\."
  with pytest.raises(InputError, match=message):
    make("classification", rows, held_out_fraction=0.1)


def test_class_numbers_of_a_file_that_names_its_classes_are_read_by_name(
  tmp_path, vocab_file
):
  """As Hugging Face's datasets write them, in Parquet and in Arrow."""
  kind = {"_type": "ClassLabel", "names": ["contradiction", "entailment", "neutral"]}
  features = {"info": {"features": {"label": kind, "premise": {"_type": "Value"}}}}
  table = pa.table(
    {"premise": ["a", "b", "c"], "hypothesis": ["d"] * 3, "label": [1, 0, 2]}
  )
  table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
  pa.parquet.write_table(table, tmp_path / "a.parquet")
  write_arrow(tmp_path / "a.arrow", table)
  for name in ("a.parquet", "a.arrow"):
    source = str(tmp_path / name)
    fields = {"held_out_source": source, "vocab_file": vocab_file, "task": "glue/mnli"}
    settings = DatasetSettings(source, 16, **fields)
    dataset = prepare(tmp_path / f"out-{name}", settings)
    assert dataset.train.sequence_labels.tolist() == [0, 2, 1]
  fields = {"vocab_file": vocab_file, "task": "classification", "labels": "no,yes"}
  settings = DatasetSettings(source, 16, columns="sentence=premise", **fields)
  with pytest.raises(InputError, match=r"label is 'entailment'; expected 0 to 1 or one of"):
    prepare(tmp_path / "out", settings)
