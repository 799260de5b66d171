"""Streams of documents: each once, wherever reading stops."""

import contextlib
import itertools
import json
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import packing
from pipeline.batches.streamed import TOGETHER, StreamedSequences
from pipeline.preparation.prepare import prepare
from pipeline.settings import DatasetSettings
from pipeline.sources import streams
from pipeline.sources.document import DocumentFields
from pipeline.sources.streams import open_stream
from pipeline.tokenizer import SPECIAL_TOKENS, Tokenizer
from tests.house import ROOT

FIELDS = DocumentFields(("text",))
TEXTS = [f"one {'two ' * (n % 7)}.\nthree {'four ' * (n % 11)}." for n in range(200)]


def lines_of(texts):
  return "".join(
    json.dumps({"text": text, "other": 1}, ensure_ascii=False) + "\n" for text in texts
  )


def texts_of(documents):
  return [document.fields["text"] for document in documents]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
  monkeypatch.setattr(streams, "POLL", 0.01)


@pytest.fixture
def folder(tmp_path):
  folder = tmp_path / "stream"
  folder.mkdir()
  (folder / "1.jsonl").write_text(lines_of(TEXTS[:70]))
  (folder / "2.jsonl").write_text("\n" + lines_of(TEXTS[70:130]).rstrip("\n"))
  (folder / "3.ndjson").write_text(lines_of(TEXTS[130:]))
  (folder / "4.jsonl.tmp").write_text("not yet")
  return folder


def test_a_folder_is_read_in_order_of_name_and_resumes_at_any_document(folder):
  documents = open_stream(str(folder), FIELDS)
  reading, states = documents.read(), []
  for expected in TEXTS:
    states.append(json.dumps(documents.state()))
    assert next(reading).fields["text"] == expected
  for number in (0, 1, 69, 70, 71, 129, 130, 199):
    resumed = open_stream(str(folder), FIELDS)
    resumed.restore(json.loads(states[number]))
    rest = itertools.islice(resumed.read(), len(TEXTS) - number)
    assert texts_of(rest) == TEXTS[number:]


def test_a_folder_that_grows_gives_lines_when_they_end(tmp_path):
  def grow():
    for start in range(0, 200, 50):
      content = lines_of(TEXTS[start : start + 50]).encode()
      with (tmp_path / f"{start:03}.jsonl").open("wb", buffering=0) as file:
        for at in range(0, len(content), 701):  # in the middle of lines
          time.sleep(0.01)
          file.write(content[at : at + 701])

  threading.Thread(target=grow).start()
  reading = open_stream(str(tmp_path), FIELDS).read()
  assert texts_of(itertools.islice(reading, 200)) == TEXTS


def test_half_a_character_at_the_end_is_waited_for(tmp_path):
  line = lines_of(["café"]).encode()
  path = tmp_path / "0.jsonl"
  path.write_bytes(line + line[: line.index(b"\xc3") + 1])
  reading = open_stream(str(tmp_path), FIELDS).read()
  assert texts_of(itertools.islice(reading, 1)) == ["café"]
  threading.Timer(0.05, path.write_bytes, [2 * line]).start()
  assert next(reading).fields["text"] == "café"


def test_a_mistake_is_named_by_its_line_in_the_whole_file(tmp_path):
  path = tmp_path / "0.jsonl"
  path.write_text(lines_of(TEXTS[:3]))
  documents = open_stream(str(tmp_path), FIELDS)
  assert texts_of(itertools.islice(documents.read(), 3)) == TEXTS[:3]
  resumed = open_stream(str(tmp_path), FIELDS)
  resumed.restore(documents.state())
  with path.open("ab") as file:
    file.write(b"\xff\n")
  with pytest.raises(packing.InputError, match="line 4 is not UTF-8"):
    next(resumed.read())


def test_a_folder_that_shrinks_or_grows_in_the_middle_is_refused(folder):
  documents = open_stream(str(folder), FIELDS)
  reading = documents.read()
  for _ in range(100):
    next(reading)
  state = documents.state()
  (folder / "1a.jsonl").write_text(lines_of(TEXTS[:1]))
  resumed = open_stream(str(folder), FIELDS)
  resumed.restore(state)
  with pytest.raises(packing.InputError, match=r"2 files before 2\.jsonl, of which 1"):
    next(resumed.read())
  (folder / "1a.jsonl").unlink()
  (folder / "1.jsonl").unlink()  # read, and not needed any more
  resumed = open_stream(str(folder), FIELDS)
  resumed.restore(state)
  assert next(resumed.read()).fields["text"] == TEXTS[100]
  (folder / "2.jsonl").write_text("\n")
  with pytest.raises(packing.InputError, match="expected files that only grow"):
    resumed.restore(state)


def test_a_new_file_in_the_place_of_a_read_one_is_refused(folder):
  reading = open_stream(str(folder), FIELDS).read()
  assert texts_of(itertools.islice(reading, 100)) == TEXTS[:100]
  (folder / "1.jsonl").unlink()
  (folder / "1a.jsonl").write_text(lines_of(TEXTS[:1]))
  with pytest.raises(packing.InputError, match=r"2 files before 3\.ndjson, of which 1"):
    list(itertools.islice(reading, 100))


def test_a_folder_without_the_file_that_is_read_is_refused(folder):
  documents = open_stream(str(folder), FIELDS)
  reading = documents.read()
  assert texts_of(itertools.islice(reading, 200)) == TEXTS
  for path in folder.iterdir():
    path.unlink()
  with pytest.raises(packing.InputError, match=r"3\.ndjson was being read and is gone"):
    next(reading)


@pytest.fixture
def standard_input(monkeypatch, tmp_path):
  """Gives a text on standard input; again each time it is called."""
  opened = contextlib.ExitStack()

  def give(text):
    (tmp_path / "input").write_text(text)
    monkeypatch.setattr("sys.stdin", opened.enter_context((tmp_path / "input").open()))

  with opened:
    yield give


def test_a_program_can_end_while_it_waits_for_standard_input():
  program = """
    import threading, time
    from pipeline.sources.document import DocumentFields
    from pipeline.sources.streams import open_stream

    reading = open_stream("-", DocumentFields(("text",))).read()
    threading.Thread(target=lambda: next(reading), daemon=True).start()
    time.sleep(0.2)
  """
  command = [sys.executable, "-c", textwrap.dedent(program)]
  with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT) as process:
    assert process.wait(timeout=60) == 0


def test_standard_input_resumes_when_it_is_given_again(standard_input):
  standard_input(lines_of(TEXTS))
  documents = open_stream("-", FIELDS)
  reading = documents.read()
  assert texts_of(itertools.islice(reading, 60)) == TEXTS[:60]
  standard_input(lines_of(TEXTS))
  resumed = open_stream("-", FIELDS)
  resumed.restore(json.loads(json.dumps(documents.state())))
  assert texts_of(resumed.read()) == TEXTS[60:]
  standard_input(lines_of(TEXTS[60:80]))  # the new ones alone
  resumed.restore(documents.state())
  with pytest.raises(packing.InputError, match="ended at line 20, but 60 lines were read"):
    next(resumed.read())


@pytest.mark.parametrize(
  ("line", "message"),
  [("{", r"line 3 is not JSON"), ('{"words": "a"}', "line 3 has no 'text'; found words")],
)
def test_a_wrong_line_is_named(standard_input, line, message):
  standard_input(f"{lines_of(TEXTS[:2])}{line}\n")
  reading = open_stream("-", FIELDS).read()
  assert texts_of(itertools.islice(reading, 2)) == TEXTS[:2]
  with pytest.raises(packing.InputError, match=f"standard input, {message}"):
    next(reading)


def test_the_state_of_another_stream_is_refused(folder, standard_input):
  standard_input("")
  streams_of = [open_stream("-", FIELDS), open_stream(str(folder), FIELDS)]
  for one, other in itertools.permutations(streams_of):
    with pytest.raises(packing.InputError, match=r"stream|standard input"):
      one.restore(other.state())


def test_a_stream_that_is_not_there_is_refused(tmp_path):
  with pytest.raises(packing.InputError, match="expected - for standard input, a folder"):
    open_stream(str(tmp_path / "missing"), FIELDS)


@pytest.mark.extra("datasets")
def test_a_dataset_of_hugging_face_resumes(folder, tmp_path, monkeypatch):
  pytest.importorskip("datasets")
  monkeypatch.setenv("HF_HUB_OFFLINE", "1")
  (folder / "3.ndjson").rename(folder / "3.jsonl")
  (folder / "4.jsonl.tmp").unlink()
  (folder / "2.jsonl").write_text(lines_of(TEXTS[70:130]))
  documents = open_stream(f"hf:{folder}", FIELDS)
  reading, states = documents.read(), []
  for expected in TEXTS:
    states.append(json.dumps(documents.state()))
    assert next(reading).fields["text"] == expected
  for number in (0, 69, 70, 131):
    resumed = open_stream(f"hf:{folder}", FIELDS)
    resumed.restore(json.loads(states[number]))
    assert texts_of(resumed.read()) == TEXTS[number:]
  with pytest.raises(packing.InputError, match="cannot be opened"):
    open_stream(f"hf:{tmp_path / 'missing'}", FIELDS)


# ---- sequences -------------------------------------------------------------------------


def sequences_of(folder, task, tmp_path, **settings):
  vocabulary = [*SPECIAL_TOKENS, "one", "two", "three", "four", "."]
  (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
  made = DatasetSettings("", 32, task=task, vocab_file="unused", **settings)
  return StreamedSequences(str(folder), made, Tokenizer(tmp_path / "vocab.txt"))


@pytest.mark.parametrize("task", ["pretraining", "sentences"])
def test_sequences_of_a_stream_resume_between_two_reads(folder, task, tmp_path):
  reader = sequences_of(folder, task, tmp_path)
  reads = reader.read()
  states, examples = [], []
  together = TOGETHER if task == "pretraining" else 1
  for _ in range(192 // together):
    states.append(json.dumps(reader.state()))
    examples.append(next(reads))
  numbers = [example["number"] for group in examples for example in group]
  assert numbers == list(range(len(numbers)))
  for number in (1, 4):
    resumed = sequences_of(folder, task, tmp_path)
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
def test_the_state_of_a_reader_without_a_stream_is_refused(folder, tmp_path, state):
  reader = sequences_of(folder, "sentences", tmp_path)
  with pytest.raises(packing.InputError, match="expected one that was saved while reading"):
    reader.restore(state)


def test_sequences_continue_in_the_next_document_as_in_a_prepared_dataset(
  standard_input, tmp_path
):
  standard_input(lines_of(TEXTS[:6]))
  (tmp_path / "in.jsonl").write_text(lines_of(TEXTS[:6]))
  reader = sequences_of("-", "sentences", tmp_path, cross_documents=True)
  streamed = [x["input_ids"].tolist() for group in reader.read() for x in group]
  source, vocabulary = (str(tmp_path / name) for name in ("in.jsonl", "vocab.txt"))
  chosen = DatasetSettings(
    source, 32, task="sentences", vocab_file=vocabulary, cross_documents=True
  )
  prepared = prepare(tmp_path / "d", chosen, num_workers=1).train
  assert streamed == [row["input_ids"] for row in prepared.records()]
  assert len(streamed) < 6


def test_documents_are_used_once(folder, tmp_path):
  one, other = (
    next(sequences_of(folder, "pretraining", tmp_path, dupe_factor=n).read())
    for n in (1, 2)
  )
  assert [len(x["input_ids"]) for x in one] == [len(x["input_ids"]) for x in other]
