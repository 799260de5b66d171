"""Every kind of source gives the same documents, in order, with the task's fields."""

import bz2
import dataclasses
import gzip
import json
import pickle
import re
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from packing import InputError
from pipeline.sources.document import MAX_DOCUMENT_BYTES, DocumentFields
from pipeline.sources.partitions import PARTITION_BYTES, open_source
from tests.pipeline.sources.files import FIELDS, TEXTS, read, texts, write, write_arrow
from tests.stdlib_corpus import make_library


@pytest.mark.parametrize("suffix", ["jsonl", "PARQUET", "arrow", "csv", "tsv", "txt"])
def test_each_format_gives_the_documents(tmp_path, suffix):
  path = tmp_path / f"a.{suffix}"
  write(path)
  found = read(path)
  expected = [x.replace("\n", " ") if suffix == "tsv" else x for x in TEXTS]
  assert [document.fields["text"].strip() for document in found] == expected
  assert all(str(tmp_path) in document.where for document in found)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "arrow", "csv", "tsv"])
def test_a_column_is_named_or_the_error_says_what_there_is(tmp_path, suffix):
  write(tmp_path / f"a.{suffix}", ["One.", "Two."], column="content")
  message = r"no .*'text'.*found 'other'.*'content'.*--columns text=NAME"
  with pytest.raises(InputError, match=message):
    texts(tmp_path / f"a.{suffix}")
  named = DocumentFields(("text",), columns=(("text", "content"),))
  assert texts(tmp_path / f"a.{suffix}", named) == ["One.", "Two."]


def test_spaces_around_the_name_of_a_column_are_seen(tmp_path):
  (tmp_path / "a.csv").write_text("id, text \n1,One.\n")
  with pytest.raises(
    InputError, match=r"found 'id' .*, ' text ' .* Remove the spaces from"
  ):
    texts(tmp_path / "a.csv")


@pytest.mark.parametrize(
  ("documents", "expected"),
  [
    ("blank-line", ["= A =\nOne.\n", "Two.\n", "= B =\nThree.\n"]),
    ("line", ["= A =\n", "One.\n", "Two.\n", "= B =\n", "Three.\n"]),
    ("file", ["= A =\nOne.\n \t\nTwo.\n\n= B =\nThree.\n"]),
    ("start:^= .* =$", ["= A =\nOne.\n \t\nTwo.\n\n", "= B =\nThree.\n"]),
    ("wikiextractor", ["= A =\nOne.\n \t\nTwo.\n\n= B =\nThree.\n"]),
  ],
)
def test_text_files_split_as_the_settings_say(tmp_path, documents, expected):
  (tmp_path / "a.txt").write_text("\ufeff= A =\nOne.\n \t\nTwo.\n\n= B =\nThree.\n")
  fields = DocumentFields(("text",), documents=documents)
  assert texts(tmp_path / "a.txt", fields) == expected


PACK = {
  "gz": gzip.compress,
  "bz2": bz2.compress,
  "zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("suffix", ["jsonl", "csv", "tsv", "txt"])
@pytest.mark.parametrize("case", [str, str.upper])
def test_compressed_files_are_read_as_they_are(tmp_path, suffix, packing, case):
  plain = tmp_path / f"a.{suffix}"
  write(plain)
  packed = tmp_path / "in" / f"a.{suffix}.{case(packing)}"
  packed.parent.mkdir()
  packed.write_bytes(PACK[packing](plain.read_bytes()))
  assert texts(packed.parent) == texts(packed) == texts(plain)
  packed.write_bytes(packed.read_bytes()[:-9])
  with pytest.raises(InputError, match=f"a.{suffix}"):
    texts(packed)


@pytest.mark.parametrize(
  ("field", "text", "message"),
  [
    *((f, "a\ud800", "unpaired surro") for f in ("id", "question", "context", "text")),
    ("context", "c" * (MAX_DOCUMENT_BYTES + 1), "has more than 16,777,216 bytes"),
  ],
)
def test_texts_of_questions_are_checked_as_all_others(tmp_path, field, text, message):
  values = {"id": "1", "question": "q?", "context": "c", "text": "c"} | {field: text}
  answer = {"text": values["text"], "answer_start": 0}
  asked = {"id": values["id"], "question": values["question"], "answers": [answer]}
  paragraph = {"context": values["context"], "qas": [asked]}
  path = tmp_path / "a.json"
  path.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
  with pytest.raises(InputError, match=f"question .*{message}"):
    read(path, DocumentFields(("id", "question", "context", "answers")))


def test_questions_in_another_encoding_are_no_json_but_say_so(tmp_path):
  path = tmp_path / "a.json"
  path.write_bytes('{"data": [{"paragraphs": [{"context": "caf\xe9"'.encode("latin-1"))
  with pytest.raises(
    InputError, match=r"a.json is not UTF-8 at byte 42. Convert it, such as by"
  ):
    read(path, DocumentFields(("id", "question", "context", "answers")))


def test_several_members_of_a_gzip_file_are_one_text(tmp_path):
  (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"One.\n\n") + gzip.compress(b"Two."))
  assert texts(tmp_path / "a.txt.gz") == ["One.\n", "Two."]


def test_articles_of_wikiextractor_are_documents(tmp_path):
  article = '<doc id="{0}" url="u" title="T{0}">\nT{0}\n\nText of {0}.\nMore.\n\n</doc>\n'
  (tmp_path / "AA").mkdir()
  for name, numbers in (("wiki_00", (1, 2)), ("wiki_01", (3,))):
    (tmp_path / "AA" / name).write_text("".join(map(article.format, numbers)))
  fields = DocumentFields(("text",), documents="wikiextractor")
  found = texts(tmp_path / "AA" / "wiki_*", fields)
  assert found == [f"T{n}\n\nText of {n}.\nMore.\n\n" for n in (1, 2, 3)]


def test_a_table_that_is_compressed_as_a_whole_is_refused(tmp_path):
  (tmp_path / "a.parquet.gz").touch()
  with pytest.raises(InputError, match=r"a\.parquet\.gz is a compressed \.parquet file"):
    texts(tmp_path / "a.parquet.gz")


def test_folders_and_globs_are_read_in_the_order_of_names(tmp_path):
  (tmp_path / "sub").mkdir()
  for name in ("b.txt", "a.txt", "sub/c.txt", "notes.md", ".hidden.txt"):
    (tmp_path / name).write_text(name)
  assert texts(tmp_path) == ["a.txt", "b.txt", "sub/c.txt"]
  assert texts(tmp_path / "*.md") == ["notes.md"]
  assert texts(tmp_path / "[ab].*") == ["a.txt", "b.txt"]
  for pattern in ("**/*.txt", "**/**/*.txt"):  # the second finds some files twice
    assert texts(tmp_path / pattern) == ["a.txt", "b.txt", "sub/c.txt"]
  (tmp_path / "d.jsonl").write_text('{"text": "d"}')
  with pytest.raises(InputError, match=r"mixes jsonl and text files"):
    texts(tmp_path)


def test_only_tables_that_hugging_face_caches_are_left_out(tmp_path):
  for name in ("cache-lines.txt", "last.txt"):
    (tmp_path / name).write_text(name)
  assert texts(tmp_path) == ["cache-lines.txt", "last.txt"]


def test_a_source_that_cannot_be_read_says_why_once(tmp_path):
  folder = re.escape(str(tmp_path))
  for spec, message in (
    (tmp_path, f"^{folder} has no .arrow, .* file. Use a glob.$"),
    (f"{tmp_path}#dev", f"^{folder} has no splits; found #dev. Leave it out.$"),
  ):
    with pytest.raises(InputError, match=message):
      texts(spec)
  (tmp_path / "a.json").write_text("[" * 100_000)
  with pytest.raises(InputError, match=r"a\.json is not SQuAD's JSON \(Recursion"):
    read(tmp_path / "a.json", DocumentFields(("id", "question", "context")))


def test_hidden_folders_are_left_out_unless_they_are_named(tmp_path):
  for name in ("a.txt", ".ipynb_checkpoints/a.txt", "sub/.cache/deep/b.txt"):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(name)
  assert texts(tmp_path) == ["a.txt"]
  assert texts(tmp_path / ".ipynb_checkpoints") == [".ipynb_checkpoints/a.txt"]


def test_small_files_share_a_partition_and_large_ones_do_not(tmp_path):
  for number in range(7):
    with (tmp_path / f"{number}.txt").open("wb") as file:
      file.truncate(PARTITION_BYTES // 3)
  parts = open_source(str(tmp_path), FIELDS)
  assert [len(part.inputs()) for part in parts] == [4, 3]


def test_a_partition_can_be_read_from_another_working_directory(tmp_path, monkeypatch):
  make_library(tmp_path / "library")
  write(tmp_path / "a.txt")
  monkeypatch.chdir(tmp_path)
  parts = [open_source(spec, FIELDS)[0] for spec in ("a.txt", "*.txt", "stdlib:library")]
  monkeypatch.chdir("library")
  for part in pickle.loads(pickle.dumps(parts)):
    assert list(part.read())
    assert part.inputs()


@pytest.mark.extra("datasets")
def test_what_hugging_face_writes_works_as_it_is(tmp_path):
  import datasets

  whole = datasets.Dataset.from_dict({"text": TEXTS, "n": list(range(len(TEXTS)))})
  chosen = whole.select([2, 0, 3])
  splits = datasets.DatasetDict(train=whole, test=chosen)
  splits.save_to_disk(str(tmp_path), num_shards={"train": 2, "test": 1})
  stale = pa.table({"text": ["stale"], "n": [0]})
  write_arrow(tmp_path / "train" / "cache-0123.arrow", stale, "stream")
  assert texts(tmp_path) == texts(tmp_path / "train") == TEXTS
  assert texts(f"{tmp_path}#test") == [TEXTS[i] for i in (2, 0, 3)]
  with pytest.raises(InputError, match=r"no split 'dev'; found t.*"):
    texts(f"{tmp_path}#dev")


@pytest.mark.parametrize("name", ["a.txt", "a.parquet"])
def test_documents_are_not_held_in_memory(tmp_path, name):
  """A file of 20 MB; in Parquet one row group. Arrow's memory is its own."""
  rng = np.random.default_rng(0)
  rows = [rng.bytes(1000).hex() + "\n\n" for _ in range(10_000)]
  if name == "a.txt":
    (tmp_path / name).write_text("".join(rows))
  else:
    table = pa.table({"text": rows})
    pa.parquet.write_table(table, tmp_path / name, row_group_size=10_000)
    del table
  before = pa.total_allocated_bytes()
  tracemalloc.start()
  (part,) = open_source(str(tmp_path / name), FIELDS)
  held = [pa.total_allocated_bytes() - before for _ in part.read()]
  of_python = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert len(held) == 10_000
  assert max(held) < 1e7
  assert of_python < 4e6


def test_lines_end_with_carriage_returns_too(tmp_path):
  (tmp_path / "a.txt").write_bytes(b"one\rtwo\r\nthree\r\r\nfour\rfive\r\rsix\n\rseven")
  found = texts(tmp_path / "a.txt", dataclasses.replace(FIELDS, documents="line"))
  words = ["one", "two", "three", "four", "five", "six", "seven"]
  assert [x.strip() for x in found] == words
  (tmp_path / "b.txt").write_bytes(b"a\rb\r\rc\r")
  assert [x.split() for x in texts(tmp_path / "b.txt")] == [["a", "b"], ["c"]]


def test_lines_that_carriage_returns_end_may_fill_more_than_a_document(tmp_path):
  line = b"a" * 99 + b"\r"
  (tmp_path / "a.txt").write_bytes(line * (MAX_DOCUMENT_BYTES // 100 + 9))
  found = read(tmp_path / "a.txt", dataclasses.replace(FIELDS, documents="line"))
  assert {document.fields["text"] for document in found} == {line.decode()}


def test_several_sources_are_read_in_order(tmp_path):
  for name, text in (("a,b.txt", "one"), ("c.txt", "two")):
    (tmp_path / name).write_text(text)
  (tmp_path / "d.jsonl").write_text('{"text": "three"}')
  files = [str(tmp_path / name) for name in ("d.jsonl", "c.txt", "a,b.txt")]
  assert texts(",".join(files[:2])) == ["three", "two"]
  assert texts(json.dumps(files)) == ["three", "two", "one"]
  assert texts(f"{tmp_path}/*,b.txt") == texts(files[2]) == ["one"]
  with pytest.raises(InputError, match=r"c\.txt is in several of the sources"):
    texts(f"{tmp_path}/*.txt,{files[1]}")
  with pytest.raises(InputError, match=r"There is no '.*gone.txt'"):
    texts(f"{files[1]},{tmp_path}/gone.txt")
  with pytest.raises(InputError, match=r"mixes jsonl and text files\. Name each kind by a"):
    texts(tmp_path)
  assert texts(f"{tmp_path}/*.jsonl,{tmp_path}/*.txt") == ["three", "one", "two"]
