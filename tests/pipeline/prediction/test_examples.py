"""Examples without labels: the same tokens as for training, from any source."""

import collections
import io
import json
import sys

import pytest

from packing import InputError
from pipeline.prediction.examples import examples_of, read_examples
from pipeline.preparation.prepare import prepare
from pipeline.settings import DatasetSettings
from pipeline.tasks import glue
from pipeline.tasks.encoder import about_special_tokens
from pipeline.tokenizer import Tokenizer
from tests.pipeline.tasks.making import VOCABULARY


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
  path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
  path.write_text("\n".join(VOCABULARY) + "\n")
  return Tokenizer(path)


def settings_of(task, **fields) -> DatasetSettings:
  fields |= {"labels": "no,yes"} if task == "classification" else {}
  return DatasetSettings("none", **{"max_sequence_length": 17, "task": task} | fields)


def read(source, task, tokenizer, **fields):
  return list(read_examples(str(source), settings_of(task, **fields), tokenizer))


def words(example):
  return [" ".join(VOCABULARY[t] for t in row.input_ids) for row in example.sequences]


def ids_of(examples):
  return [example.id for example in examples]


def rows_file(path, rows):
  path.write_text("\n".join(map(json.dumps, rows)))
  return path


@pytest.mark.parametrize("task", [*(f"glue/{name}" for name in glue.TASKS), "regression"])
def test_examples_are_as_in_training_whatever_their_labels(tmp_path, tokenizer, task):
  fields, labels, _ = glue.TASKS.get(task.removeprefix("glue/"), (glue.OWN, (), ()))
  texts = ["a b c", "a", "d . e ? f g h i j a b c d e f g h i j"]  # the last is too long

  def write(**more):
    rows = [dict.fromkeys(fields, text) | more for text in texts]
    return str(rows_file(tmp_path / "rows.jsonl", rows))

  path = write(label=labels[-1] if labels else 2.5)
  given = {"task": task, "vocab_file": str(tokenizer.path)}
  trained = prepare(tmp_path / "d", DatasetSettings(path, 17, **given)).train
  for hidden in ({}, {"label": -1}, {"label": None}, {"label": ["x"]}):
    found = read(write(**hidden), task, tokenizer)
    assert ids_of(found) == ["0", "1", "2"]
    assert found[1].where == f"{path}, line 2"
    for example, row in zip(found, trained.records(), strict=True):
      (made,) = example.sequences
      assert made._asdict() | {"sequence_label": row["sequence_label"]} == row


def test_a_text_in_memory_is_read_as_a_line_of_a_file(tmp_path, tokenizer):
  texts = ["a b\tc", "", " ", "d", "e\t"]
  (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
  expected = read(tmp_path / "texts.txt", "classification", tokenizer)
  found = list(examples_of(texts, settings_of("classification"), tokenizer))
  assert list(map(words, found)) == list(map(words, expected))
  assert ids_of(found) == ids_of(expected)
  message = "sentence 1 has 3 texts separated by tabs; expected 1 or 2"
  with pytest.raises(InputError, match=message):
    list(examples_of(["a", "a\tb\tc"], settings_of("classification"), tokenizer))


def test_special_tokens_in_a_text_are_text_and_counted(tmp_path, tokenizer):
  path = tmp_path / "lines.txt"
  path.write_text("a [SEP] b\na\n[MASK] [CLS] a\n")
  tally: collections.Counter[str] = collections.Counter()
  found = list(read_examples(str(path), settings_of("regression"), tokenizer, tally))
  assert words(found[0]) == ["[CLS] a [UNK] [UNK] [UNK] b [SEP]"]
  assert tally["texts_with_special_tokens"] == 2
  assert about_special_tokens(2).startswith("Texts with special tokens such as [SEP]: 2.")


@pytest.mark.parametrize(
  ("text", "task", "expected"),
  [
    ("a b\r\n\n  \nc.", "glue/cola", ["a b [SEP]", "[SEP]", "[SEP]", "c . [SEP]"]),
    ("a b\tc\n\nd\t\n", "glue/rte", ["a b [SEP] c [SEP]", "[SEP] [SEP]", "d [SEP] [SEP]"]),
    ("a b\tc\n\nd\n", "classification", ["a b [SEP] c [SEP]", "[SEP]", "d [SEP]"]),
    ("", "glue/sst2", []),
  ],
)
@pytest.mark.parametrize("source", ["file", "-"])
def test_each_line_is_an_example_with_tabs_between_its_sentences(
  tmp_path, tokenizer, monkeypatch, source, text, task, expected
):
  path = tmp_path / "a.txt"
  path.write_bytes(text.encode())
  with path.open() as file:
    monkeypatch.setattr(sys, "stdin", file)
    found = read(path if source == "file" else "-", task, tokenizer)
  assert [words(example) for example in found] == [[f"[CLS] {part}"] for part in expected]
  assert ids_of(found) == [str(number) for number in range(len(expected))]
  for number, example in enumerate(found, start=1):
    assert example.where.endswith(f", line {number}")
    tokens = words(example)[0].split()
    assert example.sequences[0].first_type_length == tokens.index("[SEP]") + 1


def test_standard_input_may_be_json_lines(monkeypatch, tokenizer):
  def read_typed(text, task):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    return read("-", task, tokenizer)

  found = read_typed(
    '\n{"sentence": "a", "id": "x"}\n\n{"sentence": "b", "id": "y"}', "glue/cola"
  )
  assert ids_of(found) == ["x", "y"]
  assert words(found[0]) == ["[CLS] a [SEP]"]
  asked = '{"id": 7, "question": "a?", "context": "b c", "answers": null}'
  assert words(read_typed(asked, "squad")[0]) == ["[CLS] a ? [SEP] b c [SEP]"]
  for text, message in (
    ("\ufeff{}", r"standard input, line 1 has no 'id'"),
    ("a b\n", r"line 1: expected JSON lines with id, "),
  ):
    with pytest.raises(InputError, match=message):
      read_typed(text, "squad")


@pytest.mark.parametrize(
  ("text", "columns", "ids"),
  [
    ("idx\tsentence\n9\ta\n4\tb\n", "", ["9", "4"]),
    ("index\tsentence\tlabel\n9\ta\tx\n4\tb\ty\n", "id=index,label=none", ["9", "4"]),
    ("index\tsentence\n9\ta\n4\tb\n", "", ["0", "1"]),
    ("x\t1\t\ta\n", "sentence=3,label=1", ["0"]),  # CoLA's own, without a header
  ],
)
def test_ids_come_from_the_source(tmp_path, tokenizer, text, columns, ids):
  (tmp_path / "a.tsv").write_text(text)
  found = read(tmp_path / "a.tsv", "glue/cola", tokenizer, columns=columns)
  assert ids_of(found) == ids
  assert words(found[0]) == ["[CLS] a [SEP]"]


def test_a_file_in_the_layout_of_squad_and_a_context_without_windows(tmp_path, tokenizer):
  questions = [{"id": "x"}, {"id": "y", "answers": "hidden"}, {"id": "empty"}]
  qas = [{"question": "a?"} | question for question in questions]
  paragraphs = [{"context": "b c d e", "qas": qas[:2]}, {"context": " ", "qas": qas[2:]}]
  path = rows_file(tmp_path / "a.json", [{"data": [{"paragraphs": paragraphs}]}])
  found = read(path, "squad", tokenizer)
  assert [(e.id, len(e.sequences)) for e in found] == [("x", 1), ("y", 1), ("empty", 0)]
  with pytest.raises(InputError, match=r"is read as SQuAD's JSON. Give JSON lines"):
    read(path, "glue/qnli", tokenizer)
  qas[1]["id"] = "x"
  rows_file(path, [{"data": [{"paragraphs": paragraphs}]}])
  with pytest.raises(InputError, match=r"question x: the id 'x' occurs twice"):
    read(path, "squad", tokenizer)


def test_settings_are_checked_at_once_and_examples_come_one_by_one(tmp_path, tokenizer):
  for settings, message in (
    (settings_of("glue/cola"), "There is no .*; expected stdlib, a file"),
    (settings_of("glue/cola", columns="text=a"), "in columns is 'text'; expected one of"),
  ):
    with pytest.raises(InputError, match=message):
      read_examples("no such file", settings, tokenizer)
  (tmp_path / "a.txt").write_text("a\n" * 200 + "a\tb\n")
  examples = read_examples(str(tmp_path / "a.txt"), settings_of("glue/cola"), tokenizer)
  assert [next(examples).id for _ in range(64)] == [str(n) for n in range(64)]
  with pytest.raises(InputError, match=r"line 201 has 2 texts"):
    list(examples)


@pytest.mark.parametrize(
  ("name", "content", "task", "message"),
  [
    ("a.txt", b"a b\tc\n\nd\n", "glue/rte", r"a.txt, line 3 has 1 texts .*expected 2"),
    ("a.jsonl", b'{"sentence": 3}', "glue/cola", r"line 1: sentence is 3; expected text"),
    ("a.jsonl", b'{"sentence": "a"}\n{}', "regression", r"line 2 has no 'sentence'"),
    ("a.jsonl", b'{"id": 1, "question": 1, "context": ""}', "squad", r"question is 1; exp"),
    ("a.jsonl", b"{}", "pretraining", r"A model of pretraining gives no answers"),
  ],
)
def test_invalid_examples_are_refused(tmp_path, tokenizer, name, content, task, message):
  (tmp_path / name).write_bytes(content)
  with pytest.raises(InputError, match=message):
    read(tmp_path / name, task, tokenizer, vocab_file=str(tokenizer.path))
