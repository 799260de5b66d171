"""Every kind of source gives the same documents, in order, by the fields of the task."""

import csv
import json
import os
import pickle

import hypothesis
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import strategies as st

from packing import InputError
from pipeline.settings import DatasetSettings
from pipeline.sources import tfds
from pipeline.sources.document import DocumentFields
from pipeline.sources.partitions import PARTITION_BYTES, fingerprint, open_source
from pipeline.tasks.table import find_task
from tests import shared_data, tfds_data
from tests.stdlib_corpus import make_library

TEXTS = ["One. Two.", "Drei änderbar.\nVier.", "五.", "x" * 3000]
WANTED = DocumentFields(("text",))
DELIMITERS = {".csv": ",", ".tsv": "\t"}


def read(spec, wanted=WANTED):
  return [document for part in open_source(str(spec), wanted) for document in part.read()]


def texts(spec, wanted=WANTED):
  return [document.fields["text"] for document in read(spec, wanted)]


def arrow_stream(path, table):
  with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
    writer.write_table(table, max_chunksize=2)


def arrow_file(path, table):
  with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
    writer.write_table(table, max_chunksize=3)


def write_delimited(path, rows, quoting=csv.QUOTE_MINIMAL):
  with path.open("w", encoding="utf-8", newline="") as file:
    csv.writer(file, delimiter=DELIMITERS[path.suffix], quoting=quoting).writerows(rows)


def write(path, values=TEXTS, column="text"):
  """The texts in the format that the suffix names."""
  table = pa.table({"other": list(range(len(values))), column: values})
  if path.suffix == ".jsonl":
    rows = [json.dumps({"other": 1, column: value}) for value in values]
    path.write_text("\n".join(rows) + "\n\n")
  elif path.suffix == ".parquet":
    pa.parquet.write_table(table, path, row_group_size=2)
  elif path.suffix == ".arrow":
    arrow_file(path, table)
  elif path.suffix in DELIMITERS:
    write_delimited(path, [["other", column], *([1, value] for value in values)])
  else:
    path.write_text("\n\n".join(values))


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "arrow", "csv", "tsv", "txt"])
def test_each_format_gives_the_documents(tmp_path, suffix):
  write(tmp_path / f"a.{suffix}")
  found = [text.strip() for text in texts(tmp_path / f"a.{suffix}")]
  assert found == TEXTS
  assert all(str(tmp_path) in d.where for d in read(tmp_path / f"a.{suffix}"))


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "arrow", "csv", "tsv"])
def test_a_column_is_named_or_the_error_says_what_there_is(tmp_path, suffix):
  write(tmp_path / f"a.{suffix}", ["One.", "Two."], column="content")
  with pytest.raises(
    InputError, match=r"no .*'text'.*found other.*content.*--columns text="
  ):
    texts(tmp_path / f"a.{suffix}")
  named = DocumentFields(("text",), columns=(("text", "content"),))
  assert texts(tmp_path / f"a.{suffix}", named) == ["One.", "Two."]


def test_tsv_columns_are_counted_and_quotes_are_text(tmp_path):
  path = tmp_path / "in_domain_train.tsv"
  path.write_text('gj04\t1\t\t"Our friends won\'t.\nbc01\t0\t*\tHe said "no".\n')
  wanted = DocumentFields(
    ("sentence", "label"), columns=(("sentence", "3"), ("label", "1"))
  )
  found = [(d.fields["sentence"], d.fields["label"]) for d in read(path, wanted)]
  assert found == [("\"Our friends won't.", "1"), ('He said "no".', "0")]
  path.write_text("a\tb\nx\ty\tz\n")
  with pytest.raises(InputError, match=r"record 0 has 3 columns; expected 2, as in the fi"):
    read(path, DocumentFields(("a",)))


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_table_with_only_names_has_no_documents(tmp_path, end):
  (tmp_path / "a.csv").write_text("text,a" + end)
  assert read(tmp_path / "a.csv") == []


@pytest.mark.parametrize("suffix", DELIMITERS)
def test_a_table_that_python_wrote_is_read_as_it_was(tmp_path, suffix):
  """Delimiters, quotes and line breaks in a field; what looks like a number or no value."""
  path = tmp_path / f"a{suffix}"
  cell = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
  tricky = ['a,b\t"c"\n\nd', '"', '""', "", "NA", "null", "007", "\ufeff", "\r", ' "x"']

  @hypothesis.settings(max_examples=20, deadline=None, database=None)
  @hypothesis.seed(0)
  @hypothesis.given(
    rows=st.lists(st.tuples(cell, cell), max_size=5),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    counted=st.booleans(),
  )
  @hypothesis.example([*zip(tricky, tricky[::-1], strict=True)], csv.QUOTE_MINIMAL, False)
  def check(rows, quoting, counted):
    names = ("1", "0") if counted else ("text", "a,b")
    write_delimited(path, rows if counted else [("a,b", "text"), *rows], quoting)
    fields = "text", "other"
    wanted = DocumentFields(fields, columns=tuple(zip(fields, names, strict=True)))
    if counted and not rows:
      with pytest.raises(InputError, match="is empty; expected a line for each record"):
        read(path, wanted)
      return
    found = read(path, wanted)
    assert [(d.fields["other"], d.fields["text"]) for d in found] == rows
    assert [d.where for d in found] == [f"{path}, record {n}" for n in range(len(rows))]

  check()


@pytest.mark.extra
@pytest.mark.parametrize("task", ["CoLA", "SST-2", "MRPC", "STS-B", "RTE"])
def test_quotes_in_the_files_of_glue_are_text(task):
  for path in sorted(shared_data.needed(f"glue/{task}").glob("*.tsv")):
    lines = path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    cells = [line.split("\t") for line in lines]
    names = [str(n) for n in range(len(cells[0]))]
    if task != "CoLA":
      names, *cells = cells
    found = read(path, DocumentFields(tuple(names)))
    assert [[document.fields[name] for name in names] for document in found] == cells


def test_a_row_of_a_table_may_be_long(tmp_path):
  text = "word " * 400_000  # beyond the block that Arrow reads by default
  for suffix in DELIMITERS:
    write_delimited(tmp_path / f"a{suffix}", [["text"], [text], [text + "\nb"]])
    assert texts(tmp_path / f"a{suffix}") == [text, text + "\nb"]


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    (
      "a.csv",
      'a,text\n1,b\n2,"b" c\n',
      r"the record at line 3 is not valid CSV .*Write it with csv or pandas",
    ),
    (
      "a.csv",
      'text\n"a\nb\nc\n',
      r"the record at line 2 is not valid CSV \(unexpected end",
    ),
    ("a.csv", "a,text\n1,b\n\n2,b,c\n", r"record 1 has 3 columns; expected 2"),
    ("a.tsv", 'a\ttext\n1\t"b\n2\n', r"record 1 has 1 columns; expected 2"),
    ("a.csv", "text,a,text\nb,1,c\n", r"has 2 columns 'text'; expected one"),
    ("a.tsv", "", r"a\.tsv is empty; expected a line for each record"),
    ("a.csv", "\n\n", r"a\.csv is empty; expected a line for each record"),
    ("a.csv", "text\na\nb\0\n", r"binary file: line 3 holds a zero byte"),
    ("a.csv", "text\na\n\udce9\n", r"line 3 is not UTF-8: byte 233"),
    (
      "a.xls",
      "text\n",
      r"a.xls ends in '.xls'; expected .arrow, .csv, .*Rename it to .txt",
    ),
  ],
)
def test_a_table_that_cannot_be_read_says_where(tmp_path, name, content, message):
  (tmp_path / name).write_text(content, encoding="utf-8", errors="surrogateescape")
  with pytest.raises(InputError, match=message):
    read(tmp_path / name)


@pytest.mark.parametrize(
  ("documents", "expected"),
  [
    ("blank-line", ["= A =\nOne.\n", "Two.\n", "= B =\nThree.\n"]),
    ("line", ["= A =\n", "One.\n", "Two.\n", "= B =\n", "Three.\n"]),
    ("file", ["= A =\nOne.\n \t\nTwo.\n\n= B =\nThree.\n"]),
    ("start:^= .* =$", ["= A =\nOne.\n \t\nTwo.\n\n", "= B =\nThree.\n"]),
  ],
)
def test_text_files_split_as_asked(tmp_path, documents, expected):
  (tmp_path / "a.txt").write_text("\ufeff= A =\nOne.\n \t\nTwo.\n\n= B =\nThree.\n")
  assert (
    texts(tmp_path / "a.txt", DocumentFields(("text",), documents=documents)) == expected
  )


def test_folders_and_globs_are_read_in_the_order_of_names(tmp_path):
  (tmp_path / "sub").mkdir()
  for name in ("b.txt", "a.txt", "sub/c.txt", "notes.md", ".hidden.txt"):
    (tmp_path / name).write_text(name)
  assert texts(tmp_path) == ["a.txt", "b.txt", "sub/c.txt"]
  assert texts(tmp_path / "*.md") == ["notes.md"]
  assert texts(tmp_path / "[ab].*") == ["a.txt", "b.txt"]
  assert texts(tmp_path / "**" / "*.txt") == ["a.txt", "b.txt", "sub/c.txt"]
  (tmp_path / "d.jsonl").write_text('{"text": "d"}')
  with pytest.raises(InputError, match=r"several kinds \(jsonl, text\)"):
    texts(tmp_path)


def test_small_files_share_a_partition_and_large_ones_do_not(tmp_path):
  for number in range(7):
    with (tmp_path / f"{number}.txt").open("wb") as file:
      file.truncate(PARTITION_BYTES // 3)
  parts = open_source(str(tmp_path), WANTED)
  assert [len(part.inputs()) for part in parts] == [4, 3]
  before = fingerprint(parts)
  (tmp_path / "3.txt").write_text("other")
  after = fingerprint(open_source(str(tmp_path), WANTED))
  assert before["sha256"] != after["sha256"]


def test_a_file_of_the_same_size_that_was_written_again_is_another_version(tmp_path):
  (tmp_path / "a.txt").write_text("One.")
  before = fingerprint(open_source(str(tmp_path), WANTED))
  (tmp_path / "a.txt").write_text("Two.")
  os.utime(tmp_path / "a.txt", ns=(0, 10**18))
  after = fingerprint(open_source(str(tmp_path), WANTED))
  assert before.pop("version") != after.pop("version")
  assert before == after


def test_a_partition_can_be_read_from_another_working_directory(tmp_path, monkeypatch):
  (tmp_path / "in").mkdir()
  (tmp_path / "elsewhere").mkdir()
  write(tmp_path / "in" / "a.txt")
  monkeypatch.chdir(tmp_path)
  parts = [*open_source("in", WANTED), *open_source("in/*.txt", WANTED)]
  parts += open_source(
    f"stdlib:{make_library(tmp_path / 'in').relative_to(tmp_path)}", WANTED
  )
  monkeypatch.chdir(tmp_path / "elsewhere")
  for part in pickle.loads(pickle.dumps(parts)):
    assert list(part.read())
    assert part.inputs()


@pytest.mark.parametrize("name", ["a.arrow", "a.stream.ARROW", "a.PARQUET", "b.parquet"])
def test_the_rows_of_a_table_are_known_before_they_are_read(tmp_path, name):
  path = tmp_path / name
  table = pa.table({"text": TEXTS, "n": list(range(len(TEXTS)))})
  if path.suffix.lower() == ".parquet":
    pa.parquet.write_table(table, path)
  else:
    (arrow_stream if "stream" in name else arrow_file)(path, table)
  (part,) = open_source(str(path), WANTED)
  assert (part.size, part.counts) == (len(TEXTS), "documents")
  assert len(list(part.read())) == len(TEXTS)


def test_text_may_be_of_any_of_arrows_types(tmp_path):
  for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
    arrow_file(tmp_path / "a.arrow", pa.table({"text": pa.array(TEXTS).cast(kind)}))
    assert texts(tmp_path / "a.arrow") == TEXTS
  tokens = [[1, 2], [3], [], [4]]
  wanted = DocumentFields(("input_ids",))
  for of in (pa.large_list, pa.list_view, pa.large_list_view):
    table = pa.table({"input_ids": pa.array(tokens, of(pa.int16()))})
    arrow_file(tmp_path / "a.arrow", table)
    assert [d.fields["input_ids"] for d in read(tmp_path / "a.arrow", wanted)] == tokens


def test_the_files_of_the_library_are_read_by_and_by(tmp_path):
  """Which tells the time left, though nobody knows how many documents there will be."""
  (part,) = open_source(f"stdlib:{make_library(tmp_path)}", WANTED)
  sizes = [size for _, size, _ in part.inputs()]
  read = [document.bytes_read for document in part.read()]
  assert part.size == sum(sizes)
  assert read[0] == sizes[0]
  assert sum(read) + sizes[-1] >= part.size >= sum(read)
  assert sum(n > 0 for n in read) > len(sizes) / 2


def test_columns_are_found_by_name_wherever_they_stand(tmp_path):
  tokens = [[1, 2], [3]]
  one = pa.table({"n": [1, 2], "input_ids": pa.array(tokens, pa.list_(pa.int64()))})
  two = pa.table({"input_ids": pa.array(tokens, pa.list_(pa.int32())), "n": ["a", "b"]})
  pa.parquet.write_table(one, tmp_path / "a.parquet")
  pa.parquet.write_table(two, tmp_path / "b.parquet")
  found = [d.fields["input_ids"] for d in read(tmp_path, DocumentFields(("input_ids",)))]
  assert found == tokens + tokens


def hugging_face(folder, values):
  """The layout of `save_to_disk`: data in Arrow streams beside JSON files."""
  folder.mkdir()
  half = len(values) // 2
  for number, part in enumerate((values[:half], values[half:])):
    arrow_stream(folder / f"data-{number:05d}-of-00002.arrow", pa.table({"text": part}))
  arrow_stream(folder / "cache-0123.arrow", pa.table({"text": ["stale"]}))
  files = [{"filename": f"data-{i:05d}-of-00002.arrow"} for i in range(2)]
  (folder / "state.json").write_text(json.dumps({"_data_files": files}))
  (folder / "dataset_info.json").write_text("{}")


def test_a_hugging_face_folder_works_as_it_is(tmp_path):
  hugging_face(tmp_path / "one", TEXTS)
  assert texts(tmp_path / "one") == TEXTS
  (tmp_path / "several").mkdir()
  (tmp_path / "several" / "dataset_dict.json").write_text('{"splits": ["test", "train"]}')
  hugging_face(tmp_path / "several" / "train", TEXTS)
  hugging_face(tmp_path / "several" / "test", ["Only.", "These."])
  assert texts(tmp_path / "several") == TEXTS
  assert texts(f"{tmp_path}/several#test") == ["Only.", "These."]
  with pytest.raises(InputError, match=r"no split 'dev'; found test, train"):
    texts(f"{tmp_path}/several#dev")


@pytest.mark.extra("datasets")
def test_what_hugging_face_itself_writes(tmp_path):
  import datasets

  whole = datasets.Dataset.from_dict({"text": TEXTS, "n": list(range(len(TEXTS)))})
  chosen = whole.select([2, 0, 3])
  datasets.DatasetDict(train=whole, test=chosen).save_to_disk(str(tmp_path / "d"))
  assert texts(tmp_path / "d") == TEXTS
  assert texts(f"{tmp_path}/d#test") == [TEXTS[i] for i in (2, 0, 3)]


@pytest.fixture(scope="module")
def prepared_data(tmp_path_factory):
  folder = tmp_path_factory.mktemp("tfds")
  tfds_data.build_all(folder)
  return folder


@pytest.fixture
def data_dir(prepared_data, monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", str(prepared_data))
  return prepared_data


def of_task(spec, task):
  task, settings = find_task(
    DatasetSettings(source=spec, max_sequence_length=256, task=task)
  )
  return read(spec, task.document_fields(settings))


def test_tfds_by_name_without_tensorflow(data_dir):
  import sys

  cola = of_task("tfds:glue/cola", "glue/cola")
  assert len(cola) == 61
  assert isinstance(cola[0].fields["sentence"], str)
  assert {document.fields["label"] for document in cola} == {0, 1}
  assert len(of_task("tfds:glue/cola#validation", "glue/cola")) == 13
  assert len(of_task("tfds:glue/cola#train[:10]", "glue/cola")) == 10
  mrpc = of_task("tfds:glue/mrpc", "glue/mrpc")
  assert mrpc[0].fields["sentence1"] != mrpc[0].fields["sentence2"]
  squad = of_task("tfds:squad", "squad")
  assert {document.fields["id"] for document in squad} == {f"q{i}" for i in range(11)}
  assert squad[0].fields["answers"]["text"][0] in squad[0].fields["context"]
  wikipedia = of_task("tfds:wikipedia/20230601.en", "pretraining")
  assert len(wikipedia) == 29
  folder = data_dir / "wikipedia" / "20230601.en" / "1.0.0"
  assert of_task(f"tfds:{folder}", "text")[3].fields == wikipedia[3].fields
  assert "tensorflow" not in sys.modules


def test_parts_of_a_tfds_split_are_the_split(data_dir, tmp_path, monkeypatch):
  wanted = DocumentFields(("sentence", "label"))
  (whole,) = open_source("tfds:glue/cola", wanted)
  monkeypatch.setattr(tfds, "PARTITION_EXAMPLES", 20)
  parts = open_source("tfds:glue/cola", wanted)
  assert [part.size for part in parts] == [20, 20, 20, 1]
  assert fingerprint(parts) == fingerprint([whole])
  (record,) = (data_dir / "glue" / "cola").glob("*/glue-train.array_record*")
  assert fingerprint(parts)["bytes"] == record.stat().st_size
  two = open_source("tfds:glue/cola#train+validation", wanted)
  assert fingerprint(two)["files"] == 2
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))  # a worker elsewhere
  assert [d for part in pickle.loads(pickle.dumps(parts)) for d in part.read()] == list(
    whole.read()
  )


@pytest.mark.parametrize(
  ("spec", "task", "message"),
  [
    ("tfds:glue/qqp", "glue/qqp", r"found nothing\..*tfds build glue/qqp --file_format="),
    (
      "tfds:wiki40b/en",
      "text",
      r"pip install tensorflow-datasets tensorflow apache-beam &&",
    ),
    ("tfds:no_such", "text", r"has no dataset 'no_such'"),
    ("tfds:glue/zzz", "glue/cola", r"BuilderConfig zzz not found"),
    ("tfds:glue/cola#dev", "glue/cola", r"no split 'dev'; found .*train"),
    ("tfds:glue/cola", "squad", r"no 'id'; found .*sentence"),
  ],
)
def test_tfds_that_cannot_be_read_says_what_to_do(data_dir, spec, task, message):
  with pytest.raises(InputError, match=message):
    of_task(spec, task)


def test_tfds_in_another_format_is_refused_with_the_command(data_dir, tmp_path):
  import shutil

  folder = tmp_path / "squad" / "v1.1" / "3.0.0"
  shutil.copytree(data_dir / "squad" / "v1.1" / "3.0.0", folder)
  info = json.loads((folder / "dataset_info.json").read_text())
  (folder / "dataset_info.json").write_text(json.dumps(info | {"fileFormat": "tfrecord"}))
  with pytest.raises(InputError, match=r"found tfrecord\. Prepare it once.*tfds build"):
    of_task(f"tfds:{folder}", "squad")


def test_a_stream_of_documents_is_not_held(tmp_path):
  """Reading keeps a document, not the file."""
  import tracemalloc

  line = "word " * 2000 + "\n\n"
  (tmp_path / "a.txt").write_text(line * 2000)
  write(tmp_path / "a.parquet", [line] * 2000)
  for name in ("a.txt", "a.parquet"):
    tracemalloc.start()
    assert (
      sum(
        len(d.fields["text"])
        for p in open_source(str(tmp_path / name), WANTED)
        for d in p.read()
      )
      > 2e7
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4e6, name


def test_a_row_group_is_not_held(tmp_path):
  """Arrow's own memory, which tracemalloc does not see."""
  rng = np.random.default_rng(0)
  table = pa.table({"text": [rng.bytes(1000).hex() for _ in range(10_000)]})
  path = tmp_path / "a.parquet"
  pa.parquet.write_table(table, path, row_group_size=10_000, use_dictionary=False)
  assert pa.parquet.read_metadata(path).num_row_groups == 1
  del table
  before, held, rows = pa.total_allocated_bytes(), [], 0
  for part in open_source(str(path), WANTED):
    for _ in part.read():
      if rows % 100 == 0:
        held.append(pa.total_allocated_bytes() - before)
      rows += 1
  assert rows == 10_000
  assert max(held) < path.stat().st_size / 2


def test_numbers_and_lists_come_as_pythons_own(data_dir):
  document = of_task("tfds:squad", "squad")[0]
  assert all(type(n) is int for n in document.fields["answers"]["answer_start"])
  assert np.isscalar(of_task("tfds:glue/cola", "glue/cola")[0].fields["label"])
