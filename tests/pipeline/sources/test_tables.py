"""CSV, TSV, Parquet and Arrow: columns, quotes, types and damage."""

import csv
import re

import hypothesis
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import strategies as st

from packing import InputError
from pipeline.sources.document import DocumentFields
from tests.pipeline.sources.files import (
  DELIMITERS,
  TEXTS,
  read,
  texts,
  write_arrow,
  write_delimited,
)


def test_tsv_columns_are_counted_and_quotes_are_text(tmp_path):
  path = tmp_path / "in_domain_train.tsv"
  path.write_text('gj04\t1\t\t"Our friends won\'t.\nbc01\t0\t*\tHe said "no".\n')
  columns = ("sentence", "3"), ("label", "1")
  fields = DocumentFields(("sentence", "label"), columns=columns)
  found = [(d.fields["sentence"], d.fields["label"]) for d in read(path, fields)]
  assert found == [("\"Our friends won't.", "1"), ('He said "no".', "0")]


def test_a_header_of_counted_columns_is_no_record(tmp_path):
  """As pandas writes it for columns without names."""
  columns = ("text", "0"), ("label", "1")
  fields = DocumentFields(("text", "label"), columns=columns)
  for header, found in (
    ("0,1\n", ["a", "b"]),
    ("", ["a", "b"]),
    ("1,0\n", ["1", "a", "b"]),
  ):
    (tmp_path / "a.csv").write_text(f"{header}a,1\nb,0\n")
    assert texts(tmp_path / "a.csv", fields) == found
  (tmp_path / "a.csv").write_text(",0,1\n0,a,1\n1,b,0\n")  # with its index
  with pytest.raises(InputError, match=r"a\.csv begins with the line ',0,1', as pandas"):
    texts(tmp_path / "a.csv", fields)


@pytest.mark.parametrize("suffix", DELIMITERS)
def test_a_table_that_python_wrote_is_read_unchanged(tmp_path, suffix):
  """Fields with delimiters, quotes and line breaks, or that look like numbers or nulls."""
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
    if suffix == ".tsv":  # whose records have one line each
      rows = [tuple(re.sub(r"[\r\n]", " ", x) for x in row) for row in rows]
    names = ("1", "0") if counted else ("text", "a,b")
    write_delimited(path, rows if counted else [("a,b", "text"), *rows], quoting)
    columns = ("text", names[0]), ("other", names[1])
    fields = DocumentFields(("text", "other"), columns=columns)
    if counted and not rows:
      with pytest.raises(InputError, match="is empty; expected a line for each record"):
        read(path, fields)
      return
    found = read(path, fields)
    assert [(d.fields["other"], d.fields["text"]) for d in found] == rows
    line, expected = 1 + (not counted), []
    for row in rows:
      expected.append(f"{path}, line {line}")
      write_delimited(path, [row], quoting)
      line += len(re.findall("\r\n|\r|\n", path.read_bytes().decode()))
    assert [d.where for d in found] == expected

  check()


def test_a_record_of_a_table_may_be_long(tmp_path):
  text = "word " * 400_000  # beyond the block that Arrow reads by default
  for suffix, more in ((".csv", text + "\nb"), (".tsv", text + "b")):
    write_delimited(tmp_path / f"a{suffix}", [["text"], [text], [more]])
    assert texts(tmp_path / f"a{suffix}") == [text, more]


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("a.csv", 'a,text\n1,b\n2,"b" c\n', r"line 3 is not CSV .*Write it as .jsonl"),
    ("a.csv", "a,text\n1,b\n\n2,b,c\n", r"a.csv, line 4 has 3 columns; expected 2"),
    ("a.csv", "text,a,text\nb,1,c\n", r"has several columns 'text'"),
    ("a.tsv", "", r"a\.tsv is empty; expected a line for each record"),
    ("a.csv", "text\na\nb\0\n", r"is binary: line 3 has a zero byte"),
    (
      "a.csv",
      "text\na\n\udce9\n",
      r"line 3 is not UTF-8 at byte 0. .* iconv -f WINDOWS-1252 -t",
    ),
    ("a.tsv", 'text\na\n"b\nc"\n', r"a field in quotes spans lines 3 to 4"),
    ("a.tsv", 'n\ttext\n1\t"b\nc"\n', r"spans lines 2 to 3. Write it as .jsonl"),
    ("a.tsv", "a\ttext\n1\tb\rc\n", r"a.tsv, line 3 has 1 columns; expected 2"),
    ("a.csv", "text;label\na;b\n", r"Semicolons separate its columns. Write it with comm"),
    ("a.csv", "n\ttext\na\tb\n", r"Tabs separate its columns. Rename it to .tsv"),
    ("a.tsv", "n,text\na,b\n", r"Commas separate its columns. Rename it to .csv"),
    ("a.csv", "sep=;\ntext;label\na;b\n", r"Remove the first line, 'sep=;'"),
    ("a.csv", "# made in May\ntext,label\na,b\n", r"Remove the comment in the first line"),
    ("a.xls", "text\n", r"ends in '.xls'; expected .arrow, .conll, .csv"),
  ],
)
def test_a_table_that_cannot_be_read_says_where(tmp_path, name, content, message):
  (tmp_path / name).write_text(content, encoding="utf-8", errors="surrogateescape")
  with pytest.raises(InputError, match=message):
    read(tmp_path / name)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_utf_16_is_named(tmp_path, encoding):
  content = "text,label\na,b\n" if encoding == "utf-16" else "\ufefftext,label\na,b\n"
  (tmp_path / "a.csv").write_text(content, encoding=encoding)
  with pytest.raises(InputError, match=r"a\.csv is UTF-16. Convert it with iconv"):
    read(tmp_path / "a.csv")


def test_text_may_have_any_string_type_of_arrow(tmp_path):
  for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
    write_arrow(tmp_path / "a.arrow", pa.table({"text": pa.array(TEXTS).cast(kind)}))
    assert texts(tmp_path / "a.arrow") == TEXTS
  tokens = [[1, 2], [3], [], [4]]
  fields = DocumentFields(("input_ids",))
  for of in (pa.large_list, pa.list_view, pa.large_list_view):
    table = pa.table({"input_ids": pa.array(tokens, of(pa.int16()))})
    write_arrow(tmp_path / "a.arrow", table)
    assert [d.fields["input_ids"] for d in read(tmp_path / "a.arrow", fields)] == tokens


def test_columns_are_found_by_name_wherever_they_stand(tmp_path):
  tokens = [[1, 2], [3]]
  one = pa.table({"n": [1, 2], "input_ids": pa.array(tokens, pa.list_(pa.int64()))})
  two = pa.table({"input_ids": pa.array(tokens, pa.list_(pa.int32())), "n": ["a", "b"]})
  pa.parquet.write_table(one, tmp_path / "a.parquet")
  pa.parquet.write_table(two, tmp_path / "b.parquet")
  found = read(tmp_path, DocumentFields(("input_ids",)))
  assert [document.fields["input_ids"] for document in found] == tokens + tokens
  assert [document.where[-8:] for document in found] == ["record 1", "record 2"] * 2


def test_carriage_returns_end_records(tmp_path):
  for name, content in (("a.csv", "text,n\ra,1\rb,2"), ("a.tsv", "n\ttext\r1\ta\r2\tb\r")):
    (tmp_path / name).write_text(content, newline="")
    assert texts(tmp_path / name) == ["a", "b"]


def test_quotes_of_a_tsv_that_do_not_pair_are_text(tmp_path):
  """Even if a few of them, taken alone, would enclose several lines."""
  write = (tmp_path / "a.tsv").write_text
  write('n\ttext\n1\t"a\n2\t"\n3\t"b" c\n')
  assert texts(tmp_path / "a.tsv") == ['"a', '"', '"b" c']
  write('text\tn\n"abc\t1\nx"\t0\n')
  assert texts(tmp_path / "a.tsv") == ['"abc', 'x"']
