"""Streams of documents: each once, wherever reading stops."""

import importlib.util
import itertools
import json

import numpy as np
import pytest

import packing
from pipeline.batches.streamed import TOGETHER, StreamedSequences
from pipeline.preparation.prepare import prepare
from pipeline.settings import DatasetSettings
from pipeline.sources.document import DocumentFields
from pipeline.sources.streams import DocumentStream, check_stream, open_stream
from pipeline.tokenizer import SPECIAL_TOKENS, Tokenizer

FIELDS = DocumentFields(("text",))
TEXTS = [f"one {'two ' * (n % 7)}.\nthree {'four ' * (n % 11)}." for n in range(200)]
RECORDS = [{"text": text, "other": 1} for text in TEXTS]


class WithState:
  """Records that know their position, as a dataset of Hugging Face."""

  def __init__(self, records):
    self._records, self._next = records, 0

  def __iter__(self):
    while self._next < len(self._records):
      self._next += 1
      yield self._records[self._next - 1]

  def state_dict(self):
    return {"next": self._next}

  def load_state_dict(self, state):
    self._next = state["next"]


def iterate(records):
  return (record for record in records)


def texts_of(documents):
  return [document.fields["text"] for document in documents]


def assert_resumes_at_any_document(make):
  stream = make()
  reading, states = stream.read(), []
  for expected in TEXTS:
    states.append(json.dumps(stream.state()))
    assert next(reading).fields["text"] == expected
  for number in (0, 1, 69, 70, 131, 199):
    resumed = make()
    resumed.restore(json.loads(states[number]))
    assert texts_of(resumed.read()) == TEXTS[number:]


@pytest.mark.parametrize("kind", [list, iterate, WithState])
def test_a_stream_resumes_at_any_document(kind):
  assert_resumes_at_any_document(lambda: DocumentStream(kind(RECORDS), FIELDS))


@pytest.mark.extra("datasets")
def test_a_dataset_of_hugging_face_resumes(tmp_path, monkeypatch):
  monkeypatch.setenv("HF_HUB_OFFLINE", "1")
  for name, records in (("1", RECORDS[:70]), ("2", RECORDS[70:])):
    lines = [json.dumps(record) + "\n" for record in records]
    (tmp_path / f"{name}.jsonl").write_text("".join(lines))
  assert_resumes_at_any_document(
    lambda: DocumentStream(open_stream(f"hf:{tmp_path}"), FIELDS)
  )
  with pytest.raises(packing.InputError, match="cannot be opened"):
    open_stream(f"hf:{tmp_path / 'missing'}")


def test_documents_that_cannot_be_used_are_named():
  stream = DocumentStream([*RECORDS[:2], {"words": "a"}], FIELDS, name="hf:a")
  reading = stream.read()
  assert texts_of(itertools.islice(reading, 2)) == TEXTS[:2]
  with pytest.raises(
    packing.InputError, match="hf:a, record 3 has no 'text'; found 'words'"
  ):
    next(reading)


def test_positions_that_do_not_fit_are_refused():
  stream, other = DocumentStream(RECORDS, FIELDS), DocumentStream(WithState([]), FIELDS)
  assert texts_of(itertools.islice(stream.read(), 60)) == TEXTS[:60]
  fewer = DocumentStream(RECORDS[:20], FIELDS)
  fewer.restore(stream.state())
  with pytest.raises(packing.InputError, match="after 20 documents; 60 were read"):
    next(fewer.read())
  for one, state in ((stream, other.state()), (other, stream.state()), (stream, 7)):
    with pytest.raises(packing.InputError, match="needs another kind of stream"):
      one.restore(state)


def test_streams_that_cannot_be_opened_are_refused_before_any_work(monkeypatch):
  for name in ("-", "folder", "hf:"):
    with pytest.raises(packing.InputError, match="expected hf:NAME#SPLIT"):
      check_stream(name)
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(packing.InputError, match="hf:a needs the library datasets"):
    check_stream("hf:a")


# ---- sequences -------------------------------------------------------------------------


def sequences_of(records, task, tmp_path, **settings):
  vocabulary = [*SPECIAL_TOKENS, "one", "two", "three", "four", "."]
  (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
  made = DatasetSettings("", 32, task=task, vocab_file="unused", **settings)
  return StreamedSequences(records, made, Tokenizer(tmp_path / "vocab.txt"))


@pytest.mark.parametrize("task", ["pretraining", "sentences"])
def test_sequences_of_a_stream_resume_between_two_reads(task, tmp_path):
  reader = sequences_of(RECORDS, task, tmp_path)
  reads = reader.read()
  states, examples = [], []
  together = TOGETHER if task == "pretraining" else 1
  for _ in range(192 // together):
    states.append(json.dumps(reader.state()))
    examples.append(next(reads))
  numbers = [example["number"] for group in examples for example in group]
  assert numbers == list(range(len(numbers)))
  for number in (1, 4):
    resumed = sequences_of(RECORDS, task, tmp_path)
    resumed.restore(json.loads(states[number]))
    for expected, found in zip(examples[number:], resumed.read(), strict=False):
      for one, other in zip(expected, found, strict=True):
        assert one["number"] == other["number"]
        np.testing.assert_array_equal(one["input_ids"], other["input_ids"])
  gathered = reader.gather(examples[2])
  assert gathered.numbers.tolist() == [example["number"] for example in examples[2]]
  for place, example in zip(gathered.places, examples[2], strict=True):
    np.testing.assert_array_equal(
      gathered.store.gather(np.array([place])), example["input_ids"]
    )


@pytest.mark.parametrize("state", [7, {}, ["documents", "groups", "sequences"]])
def test_the_state_of_a_reader_without_a_stream_is_refused(tmp_path, state):
  reader = sequences_of(RECORDS, "sentences", tmp_path)
  with pytest.raises(packing.InputError, match=r"one of the same data\.stream"):
    reader.restore(state)


def test_sequences_continue_in_the_next_document_as_in_a_prepared_dataset(tmp_path):
  lines = [json.dumps(record) + "\n" for record in RECORDS[:6]]
  (tmp_path / "in.jsonl").write_text("".join(lines))
  fields = {"cross_documents": True, "min_sentences": 1}
  reader = sequences_of(RECORDS[:6], "sentences", tmp_path, **fields)
  streamed = [x["input_ids"].tolist() for group in reader.read() for x in group]
  source, vocabulary = (str(tmp_path / name) for name in ("in.jsonl", "vocab.txt"))
  chosen = DatasetSettings(source, 32, task="sentences", vocab_file=vocabulary, **fields)
  prepared = prepare(tmp_path / "d", chosen, num_workers=1).train
  assert streamed == [row["input_ids"] for row in prepared.records()]
  assert len(streamed) < 6


def test_documents_are_used_once(tmp_path):
  one, other = (
    next(sequences_of(RECORDS, "pretraining", tmp_path, dupe_factor=n).read())
    for n in (1, 2)
  )
  assert [len(x["input_ids"]) for x in one] == [len(x["input_ids"]) for x in other]
