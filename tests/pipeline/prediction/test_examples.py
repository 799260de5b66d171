"""Examples without labels: the same tokens as for training, from any source."""

import collections
import csv
import io
import json
import pickle
import sys

import numpy as np
import pytest

from packing import InputError
from pipeline.prediction.examples import read_examples
from pipeline.preparation.prepare import prepare
from pipeline.settings import DatasetSettings
from pipeline.store import REGRESSION_SCHEMA, SequenceStore, StoredSequence
from pipeline.tasks import glue
from pipeline.tasks.table import TASKS, find_task
from pipeline.tokenizer import Tokenizer
from tests import shared_data, tfds_data

LETTERS = [*"abcdefghij", *(f"##{c}" for c in "abcdefghij"), "?", "."]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]
ID = {token: number for number, token in enumerate(VOCABULARY)}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
  path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
  path.write_text("\n".join(VOCABULARY) + "\n")
  return Tokenizer(path)


def settings_of(task, **fields) -> DatasetSettings:
  labels = {"labels": "no,yes"} if task == "classification" else {}
  return DatasetSettings(
    "none", **{"max_sequence_length": 17, "task": task} | labels | fields
  )


def read(source, task, tokenizer, **fields):
  return list(read_examples(str(source), settings_of(task, **fields), tokenizer))


def words(example):
  return [" ".join(VOCABULARY[t] for t in row.input_ids) for row in example.sequences]


def typed(monkeypatch, text: str):
  monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


# ---- the same as for training ----------------------------------------------------------


@pytest.mark.parametrize("task", [*(f"glue/{name}" for name in glue.TASKS), "regression"])
def test_examples_are_as_in_training_whatever_their_labels(tmp_path, tokenizer, task):
  fields, labels = glue.TASKS.get(task.removeprefix("glue/"), (glue.OWN, ()))
  label = labels[-1] if labels else 2.5
  texts = ["a b c", "a", "d . e ? f g h i j a b c d e f g h i j"]  # the last is too long

  def write(**more):
    rows = [dict.fromkeys(fields, text) | more for text in texts]
    path.write_text("\n".join(map(json.dumps, rows)))

  path = tmp_path / "rows.jsonl"
  write(label=label)
  vocab_file = str(tokenizer.path)
  settings = DatasetSettings(str(path), 17, task=task, vocab_file=vocab_file, doc_stride=5)
  trained = list(prepare(tmp_path / "d", settings).train.records())
  for hidden in ({}, {"label": -1}, {"label": None}, {"label": ["x"]}):
    write(**hidden)  # type: ignore[arg-type]
    found = read(path, task, tokenizer)
    assert [example.id for example in found] == ["0", "1", "2"]
    assert found[1].where == f"{path}, line 2"
    for example, row in zip(found, trained, strict=True):
      (made,) = example.sequences
      assert made._asdict() | {"sequence_label": row["sequence_label"]} == row


@pytest.mark.extra
def test_windows_of_real_questions_are_as_in_training(tmp_path):
  source = shared_data.needed("squad/xquad.en.json")
  path = shared_data.needed("bert-base-uncased-vocab.txt")
  settings = DatasetSettings(str(source), 384, task="squad", vocab_file=str(path))
  store = prepare(tmp_path / "d", settings).train
  found = list(read_examples(str(source), settings, Tokenizer(path)))
  assert len(found) == 1190
  rows = [row for example in found for row in example.sequences]
  made = SequenceStore.from_sequences(rows, TASKS["squad"].schema)
  learned = ("start_position", "end_position", "answers")
  for mine, theirs in zip(made.records(), store.records(), strict=True):
    for name in set(store.schema.names) - set(learned):
      assert mine[name] == theirs[name]
  assert not made.answer_starts.any()
  assert {example.id for example in found} == {
    window["example_id"] for window in store.records()
  }


# ---- sources ---------------------------------------------------------------------------


def test_each_line_of_text_is_an_example_even_a_blank_one(tmp_path, tokenizer):
  (tmp_path / "a.txt").write_text("a b\r\n\n  \nc.")
  found = read(tmp_path / "a.txt", "glue/cola", tokenizer)
  empty = "[CLS] [SEP]"
  assert [words(e) for e in found] == [
    ["[CLS] a b [SEP]"],
    [empty],
    [empty],
    ["[CLS] c . [SEP]"],
  ]
  assert [e.id for e in found] == ["0", "1", "2", "3"]
  assert found[3].where.endswith("a.txt, line 4")


def test_a_tab_separates_the_sentences_of_a_pair(tmp_path, tokenizer):
  (tmp_path / "a.txt").write_text("a b\tc\n\nd\t\n")
  found = read(tmp_path / "a.txt", "glue/rte", tokenizer)
  assert [words(e)[0] for e in found] == [
    "[CLS] a b [SEP] c [SEP]",
    "[CLS] [SEP] [SEP]",
    "[CLS] d [SEP] [SEP]",
  ]
  assert [e.sequences[0].first_type_length for e in found] == [4, 2, 3]
  (tmp_path / "a.txt").write_text("a b\tc\n\nd\n")
  found = read(tmp_path / "a.txt", "classification", tokenizer)
  assert words(found[0]) == ["[CLS] a b [SEP] c [SEP]"]
  assert words(found[2]) == ["[CLS] d [SEP]"]
  with pytest.raises(InputError, match=r"a.txt, line 3 has 1 texts separated.*expected 2:"):
    read(tmp_path / "a.txt", "glue/rte", tokenizer)
  with pytest.raises(InputError, match=r"line 1 has 2 texts.*expected 1: sentence"):
    read(tmp_path / "a.txt", "glue/cola", tokenizer)
  (tmp_path / "a.txt").write_text("a\tb\tc\n")
  with pytest.raises(InputError, match=r"has 3 texts.*expected 1 or 2: sentence, sent"):
    read(tmp_path / "a.txt", "classification", tokenizer)


@pytest.mark.parametrize(
  ("text", "task", "expected"),
  [
    ("a b\n\nc\n", "glue/sst2", {"0": "[CLS] a b [SEP]", "1": "[CLS] [SEP]", "2": "c"}),
    ("\n\na\n", "glue/sst2", {"0": "", "1": "", "2": "[CLS] a [SEP]"}),
    ("\n", "glue/sst2", {"0": "[CLS] [SEP]"}),
    ("", "glue/sst2", {}),
    (
      '\n{"sentence": "a", "id": "x"}\n\n{"sentence": "b"}',
      "glue/cola",
      {"x": "", "1": ""},
    ),
    ("\ufeff{}", "squad", None),
  ],
)
def test_standard_input_is_json_lines_or_text(monkeypatch, tokenizer, text, task, expected):
  typed(monkeypatch, text)
  if expected is None:
    with pytest.raises(InputError, match=r"standard input, line 1 has no 'id'"):
      read("-", task, tokenizer, max_question_length=3, doc_stride=5)
    return
  found = {example.id: words(example)[0] for example in read("-", task, tokenizer)}
  assert found.keys() == expected.keys()
  for name, part in expected.items():
    assert part in found[name]


def test_questions_on_standard_input(monkeypatch, tokenizer):
  short = {"max_question_length": 3, "doc_stride": 5}
  row = {"id": 7, "question": "a?", "context": "b c", "answers": None}
  typed(monkeypatch, json.dumps(row))
  (example,) = read("-", "squad", tokenizer, **short)
  assert (example.id, words(example)) == ("7", ["[CLS] a ? [SEP] b c [SEP]"])
  typed(monkeypatch, "a b\n")
  with pytest.raises(
    InputError, match=r"line 1 is 'a b\\n'; expected JSON lines with id, "
  ):
    read("-", "squad", tokenizer, **short)


@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".tsv", "\t")])
def test_a_table_gives_the_examples_that_json_lines_give(
  tmp_path, tokenizer, suffix, delimiter
):
  rows = [
    {"id": f"n{n}", "label": "no", "sentence": text}
    for n, text in enumerate(['a, "b"', "c\nd\te?", "", '"', "f"])
  ]
  (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
  with (tmp_path / f"a{suffix}").open("w", newline="") as file:
    writer = csv.DictWriter(file, ["id", "label", "sentence"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
  lines = read(tmp_path / "a.jsonl", "classification", tokenizer)
  found = read(tmp_path / f"a{suffix}", "classification", tokenizer)
  assert [e._replace(where="") for e in found] == [e._replace(where="") for e in lines]


def test_long_examples_are_counted(tmp_path, tokenizer):
  texts = ["a " * 15, "a " * 16, "b " * 40]
  rows = [{"sentence": text, "sentence2": ""} for text in texts]
  (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
  tally: collections.Counter[str] = collections.Counter()
  settings = settings_of("regression")
  found = list(read_examples(str(tmp_path / "a.jsonl"), settings, tokenizer, tally))
  assert [len(words(e)[0].split()) for e in found] == [17, 17, 17]
  assert tally["too_long"] == 2


def test_ids_come_from_the_source(tmp_path, tokenizer):
  (tmp_path / "a.tsv").write_text("idx\tsentence\n9\ta\n4\tb\n")
  assert [e.id for e in read(tmp_path / "a.tsv", "glue/cola", tokenizer)] == ["9", "4"]
  (tmp_path / "b.tsv").write_text("index\tsentence\tlabel\n9\ta\tx\n4\tb\ty\n")
  found = read(tmp_path / "b.tsv", "glue/cola", tokenizer, columns="id=index,label=none")
  assert [e.id for e in found] == ["9", "4"]
  assert [e.id for e in read(tmp_path / "b.tsv", "glue/cola", tokenizer)] == ["0", "1"]
  (tmp_path / "c.tsv").write_text("x\t1\t\ta\n")  # CoLA's own, without a header
  found = read(tmp_path / "c.tsv", "glue/cola", tokenizer, columns="sentence=3,label=1")
  assert words(found[0]) == ["[CLS] a [SEP]"]
  (tmp_path / "d.jsonl").write_text('{"sentence": "a", "id": [1]}')
  with pytest.raises(InputError, match=r"d.jsonl, line 1: id is \[1\]; expected a text"):
    read(tmp_path / "d.jsonl", "glue/cola", tokenizer)


def test_hidden_labels_of_tfds_do_no_harm(tmp_path, tokenizer, monkeypatch):
  tfds_data.build_all(tmp_path)
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  found = read("tfds:glue/cola#test", "glue/cola", tokenizer)
  assert sorted(e.id for e in found) == list("01234")
  assert found[3].where == "tfds:glue/cola#test, example 3"
  assert len(read("tfds:glue/mnli#test_matched", "glue/mnli", tokenizer)) == 5
  short = {"max_question_length": 3, "doc_stride": 5}
  found = read("tfds:squad", "squad", tokenizer, **short)
  assert {e.id for e in found} == {f"q{i}" for i in range(11)}
  assert all(len(example.sequences) > 1 for example in found)


def squad_file(path, *questions):
  qas = [{"id": name, "question": "a?"} | more for name, more in questions]
  paragraphs = [{"context": "b c d e", "qas": qas}, {"context": " ", "qas": qas[:0]}]
  if len(qas) > 1:
    paragraphs[1]["qas"] = [{"id": "empty", "question": "b?"}]
  path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
  return path


def test_a_file_in_the_layout_of_squad_and_a_context_without_windows(tmp_path, tokenizer):
  short = {"max_question_length": 3, "doc_stride": 5}
  path = squad_file(tmp_path / "a.json", ("x", {}), ("y", {"answers": "hidden"}))
  found = read(path, "squad", tokenizer, **short)
  assert [(e.id, len(e.sequences)) for e in found] == [("x", 1), ("y", 1), ("empty", 0)]
  path = squad_file(tmp_path / "b.json", ("x", {}), ("x", {}))
  with pytest.raises(
    InputError, match=r"question x: the id 'x' is that of an earlier questi"
  ):
    read(path, "squad", tokenizer, **short)
  with pytest.raises(InputError, match=r"is read as SQuAD's JSON, for --task squad"):
    read(path, "glue/qnli", tokenizer)


# ---- mistakes --------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("content", "task", "message"),
  [
    (b'{"sentence": 3}', "glue/cola", r"line 1: sentence is 3; expected a sentence"),
    (b'{"sentence": "a"}\nb', "glue/cola", r"line 2 is not JSON"),
    (b'{"sentence": "a"}\n{}', "regression", r"line 2 has no 'sentence'"),
    (b'\n{"sentence": "\xff"}', "glue/cola", r"line 2 is not UTF-8"),
    (b'{"id": 1, "question": 1, "context": "a"}', "squad", r"question is 1; expected a t"),
    (b'{"id": true, "question": "a", "context": "a"}', "squad", r"id is True"),
    (b"{}", "pretraining", r"A model of pretraining answers nothing"),
    (b"{}", "tokens", r"A model of tokens answers nothing"),
  ],
)
def test_invalid_examples_are_refused(tmp_path, tokenizer, content, task, message):
  (tmp_path / "a.jsonl").write_bytes(content)
  vocab_file = str(tokenizer.path)
  with pytest.raises(InputError, match=message):
    read(
      tmp_path / "a.jsonl",
      task,
      tokenizer,
      max_question_length=3,
      doc_stride=5,
      vocab_file=vocab_file,
    )


def test_settings_are_checked_before_anything_is_read(tmp_path, tokenizer):
  with pytest.raises(InputError, match="doc_stride is 128"):
    read_examples("no such file", settings_of("squad"), tokenizer)
  with pytest.raises(InputError, match="There is no data source"):
    read_examples("no such file", settings_of("glue/cola"), tokenizer)
  with pytest.raises(InputError, match="columns names 'text'; the task glue/cola has"):
    read_examples("x", settings_of("glue/cola", columns="text=a"), tokenizer)


def test_long_examples_are_cut_as_in_training(tmp_path, tokenizer):
  (tmp_path / "a.txt").write_text("a\n" + "a " * 16)
  found = read(tmp_path / "a.txt", "glue/cola", tokenizer)
  assert len(found[1].sequences[0].input_ids) == 17
  with pytest.raises(InputError, match=r"line 2: The example has 18 tokens; expected at m"):
    read(tmp_path / "a.txt", "glue/cola", tokenizer, too_long="error")


def test_examples_come_one_by_one(tmp_path, tokenizer):
  (tmp_path / "a.txt").write_text("a\n" * 200 + "a\tb\n")
  examples = read_examples(str(tmp_path / "a.txt"), settings_of("glue/cola"), tokenizer)
  assert [next(examples).id for _ in range(64)] == [str(n) for n in range(64)]
  with pytest.raises(InputError, match=r"line 201 has 2 texts"):
    list(examples)


# ---- a store in memory -----------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_store_in_memory_works_like_one_on_disk(count):
  rows = [StoredSequence(list(range(n + 2)), n, n / 2) for n in range(count)]
  store = SequenceStore.from_sequences(rows, REGRESSION_SCHEMA)
  for found in (store, pickle.loads(pickle.dumps(store))):
    assert len(found) == count
    assert found.lengths.tolist() == [n + 2 for n in range(count)]
    assert found.sequence_labels.tolist() == [n / 2 for n in range(count)]
    tokens = found.gather(np.arange(count)[::-1])
    assert tokens.tolist() == [t for row in rows[::-1] for t in row.input_ids]
    assert list(found.records()) == [row._asdict() for row in rows]
  assert find_task(settings_of("regression"))[0].schema == REGRESSION_SCHEMA
