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


def assert_resumes_at_any_document(make, expected=TEXTS):
  stream = make()
  reading, states = stream.read(), []
  for text in expected:
    states.append(json.dumps(stream.state()))
    assert next(reading).fields["text"] == text
  assert next(reading, None) is None
  for number in (0, 1, 69, 70, 131, 199):
    number = min(number, len(states) - 1)
    resumed = make()
    resumed.restore(json.loads(states[number]))
    assert texts_of(resumed.read()) == expected[number:]


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


def test_parts_of_a_stream_have_each_document_once():
  for count in (1, 3, 7):
    for part in range(count):
      assert_resumes_at_any_document(
        lambda part=part, count=count: DocumentStream(RECORDS, FIELDS).part(part, count),
        TEXTS[part::count],
      )


@pytest.mark.extra("datasets")
@pytest.mark.parametrize("count", [2, 3, 5])
def test_parts_of_a_dataset_of_hugging_face(tmp_path, monkeypatch, count):
  """Of three files: each part has its own ones, or every n-th record of all."""
  monkeypatch.setenv("HF_HUB_OFFLINE", "1")
  for number in range(3):
    lines = [json.dumps(record) + "\n" for record in RECORDS[number::3]]
    (tmp_path / f"{number}.jsonl").write_text("".join(lines))

  def make(part):
    stream = DocumentStream(open_stream(f"hf:{tmp_path}"), FIELDS)
    assert stream.num_shards == 3
    return stream.part(part, count)

  parts = [texts_of(make(part).read()) for part in range(count)]
  assert sorted(itertools.chain(*parts)) == sorted(TEXTS)
  if count <= 3:  # whole files
    files = [TEXTS[number::3] for number in range(3)]
    assert parts == [[*itertools.chain(*files[part::count])] for part in range(count)]
  for part in range(count):
    assert_resumes_at_any_document(lambda part=part: make(part), parts[part])


@pytest.mark.parametrize("kind", [iterate, WithState])
def test_a_stream_that_can_be_read_once_has_no_parts(kind):
  stream = DocumentStream(kind(RECORDS), FIELDS, name="it")
  with pytest.raises(packing.InputError, match="which only one process can read"):
    stream.part(1, 2)


def test_documents_that_cannot_be_used_are_named():
  stream = DocumentStream([*RECORDS[:2], {"words": "a"}], FIELDS, name="hf:a")
  reading = stream.read()
  assert texts_of(itertools.islice(reading, 2)) == TEXTS[:2]
  with pytest.raises(
    packing.InputError, match="hf:a, record 3 has no 'text'; found 'words'"
  ):
    next(reading)


def test_what_fails_while_records_are_read_is_told():
  def records():
    yield RECORDS[0]
    raise ValueError("another\nschema")

  reading = DocumentStream(records(), FIELDS, name="hf:a").read()
  assert texts_of(itertools.islice(reading, 1)) == TEXTS[:1]
  with pytest.raises(packing.InputError, match=r"hf:a cannot .* record 1: another schema"):
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
  settings = {"min_sentences": 1, "vocab_file": "unused"} | settings
  made = DatasetSettings("", 32, task=task, **settings)
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
  assert len(numbers) > 100
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


@pytest.mark.parametrize("task", ["pretraining", "sentences"])
def test_parts_of_a_reader_number_their_sequences_apart(task, tmp_path):
  reader, numbers = sequences_of(RECORDS, task, tmp_path), []
  for part in range(3):
    examples = [x for group in reader.part(part, 3).read() for x in group]
    assert {x["number"] % 3 for x in examples} == {part}
    numbers += [x["number"] for x in examples]
  assert len(set(numbers)) == len(numbers) > 100


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


@pytest.mark.parametrize("task", ["squad", "tagging", "pairs", "scored_pairs"])
def test_a_task_whose_sequences_are_more_than_tokens_has_no_stream(task, tmp_path):
  with pytest.raises(packing.InputError, match=f"task is '{task}'; expected one of pretra"):
    sequences_of(RECORDS, task, tmp_path)


def test_documents_are_used_once(tmp_path):
  one, other = (
    next(sequences_of(RECORDS, "pretraining", tmp_path, dupe_factor=n).read())
    for n in (1, 2)
  )
  assert [len(x["input_ids"]) for x in one] == [len(x["input_ids"]) for x in other]
  assert one
