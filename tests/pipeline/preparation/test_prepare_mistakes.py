"""Bad input to `python -m pipeline prepare`: one line, and nothing is left behind."""

import os

import pyarrow as pa
import pyarrow.parquet
import pytest

from pipeline.__main__ import main
from pipeline.sources import document
from tests.prepared import arguments, contents


def one_gigabyte_line(path):
  """A long line; reading stops at the limit."""
  with path.open("wb") as file:
    file.write(b"word " * (document.MAX_DOCUMENT_BYTES // 5 + 1))
    file.truncate(10**9)  # a hole, which takes no space


BAD_TEXT = {
  "empty": (
    lambda path: path.write_text(" \n\n \n"),
    "gave 0 and 0 that can be used, of 0",
  ),
  "only marks": (lambda path: path.write_text("?\n\n!\n"), "of 2 in all"),
  "one line": (one_gigabyte_line, r"line 1: a document is longer than 16,777,216 bytes"),
  "binary": (lambda path: path.write_bytes(bytes(range(256)) * 9), "is a binary file"),
  "utf-8": (
    lambda path: path.write_bytes(b"a\n\nb\ncaf\xe9\n"),
    r"line 4 is not UTF-8: byte 233 at 3",
  ),
}


@pytest.mark.parametrize("case", BAD_TEXT)
@pytest.mark.parametrize("workers", [1, 2])
def test_bad_text_is_refused_and_nothing_is_left(corpus, tmp_path, capsys, case, workers):
  write, message = BAD_TEXT[case]
  (tmp_path / "in").mkdir()
  write(tmp_path / "in" / "bad.txt")
  args = arguments(corpus, tmp_path / "out" / "d", f"--workers={workers}")
  args.append(f"--source={tmp_path / 'in'}")
  assert main(args) == 2
  error = capsys.readouterr().err.splitlines()[-1]
  assert error.startswith("error: ")
  assert message in error
  assert list((tmp_path / "out").iterdir()) == []


BAD_FILES = {
  "no column": ("a.parquet", {"content": ["A b."]}, "has no column 'text'; found content"),
  "numbers for text": ("a.parquet", {"text": [1, 2]}, "is int64; expected text"),
  "tokens for text": ("a.parquet", {"text": [[1], [2]]}, "use --task tokens"),
  "no parquet": ("a.parquet", b"PAR1 no", "is not a valid .parquet file"),
  "no arrow": ("a.arrow", b"no arrow", "is not a valid .arrow file"),
  "no json": ("a.jsonl", b'{"text": "a"}\n{"text"\n', "line 2 is not JSON"),
  "a list": ("a.jsonl", b"[1]\n", "line 1 holds a list"),
  "no field": ("a.jsonl", b'{"txt": "a"}\n', "line 1 has no 'text'; found txt"),
  "half a character": ("a.jsonl", b'{"text": "a\\ud800"}\n', "half of a character"),
  "a number": ("a.jsonl", b'{"text": 3}\n', "text is 3; expected a string"),
  "squad": ("a.json", b'{"data": 3}', "for --task squad"),
  "nothing known": ("a.xyz", b"", "holds no file ending in .arrow"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_refused_and_nothing_is_left(corpus, tmp_path, capsys, case):
  name, content, message = BAD_FILES[case]
  (tmp_path / "in").mkdir()
  if isinstance(content, dict):
    pa.parquet.write_table(pa.table(content), tmp_path / "in" / name)
  else:
    (tmp_path / "in" / name).write_bytes(content)
  args = [*arguments(corpus, tmp_path / "out" / "d"), f"--source={tmp_path / 'in'}"]
  assert main(args) == 2
  assert message in capsys.readouterr().err.splitlines()[-1]
  assert not list(tmp_path.glob("out/*"))


def test_the_error_for_a_damaged_parquet_file_names_the_record(corpus, tmp_path, capsys):
  path = tmp_path / "a.parquet"
  pa.parquet.write_table(
    pa.table({"text": ["A b. C d."] * 5000}), path, compression="zstd", row_group_size=100
  )
  content = bytearray(path.read_bytes())
  content[len(content) // 3 : len(content) // 3 + 40] = b"\xff" * 40
  path.write_bytes(content)
  assert main([*arguments(corpus, tmp_path / "d"), f"--source={path}"]) == 2
  assert "is damaged after record" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (["--out=/proc/here/d"], "The dataset cannot be written"),
    (["--out={corpus}/0.txt"], "is not a prepared dataset"),
    (["--out={corpus}"], "is not a prepared dataset"),
    (["--source={corpus}/none.txt"], "There is no data source"),
    (["--source={corpus}#dev"], "has no splits"),
    (["--source=stdlib", "--task=glue/cola"], "Source stdlib has text; the task needs"),
    (["--task=glue/nope"], "There is no task 'glue/nope'; expected one of pretraining"),
    (["--columns=label=x"], "columns names 'label'; the task pretraining has the fields"),
    (["--columns=x"], "expected FIELD=NAME"),
    (["--documents=page"], "expected blank-line, line, file or start:REGEX"),
    (["--documents=start:("], "is not a regular expression"),
    (["--max-sequence-length=4"], "max_sequence_length is 4; expected at least 5"),
    (["--dupe-factor=0"], "dupe_factor is 0"),
    (["--held-out-fraction=1"], "expected a fraction in [0, 1)"),
    (["--vocab-file=/none"], "Expected a vocabulary file"),
    (["--task=tokens", "--vocab-file="], "expected the vocabulary they belong to"),
    (["--workers=0"], "--workers is 0"),
  ],
)
def test_mistakes_are_reported_in_one_line_before_any_work(
  corpus, tmp_path, capsys, options, message
):
  before = contents(corpus)
  given = [option.format(corpus=corpus) for option in options]
  assert main([*arguments(corpus, tmp_path / "d"), *given]) == 2
  error = capsys.readouterr().err
  assert message in error
  assert len(error.splitlines()) == 1
  assert contents(corpus) == before
  assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_not_writable_is_reported(corpus, tmp_path, capsys):
  (tmp_path / "out").mkdir(mode=0o555)
  assert main(arguments(corpus, tmp_path / "out" / "d")) == 2
  assert "cannot be written" in capsys.readouterr().err
