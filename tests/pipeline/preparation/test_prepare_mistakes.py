"""Bad input to `python -m pipeline prepare`: one line, and nothing is left behind."""

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


def damaged_parquet(path):
  table = pa.table({"text": ["A b. C d."] * 5000})
  pa.parquet.write_table(table, path, compression="zstd", row_group_size=100)
  content = bytearray(path.read_bytes())
  content[len(content) // 3 : len(content) // 3 + 40] = b"\xff" * 40
  path.write_bytes(content)


# The name of a file; its content, a table's columns, or what writes it; the message.
BAD_TEXT = {
  "empty": ("a.txt", b" \n\n \n", "{path} had 0 usable documents"),
  "only marks": ("a.txt", b"?\n\n!\n", "Add more or set `documents`"),
  "one line": ("a.txt", one_gigabyte_line, "line 1: a document has more than 16,777,216"),
  "binary": ("a.txt", bytes(range(256)) * 9, "a.txt is binary: line 1 has a zero byte"),
  "utf-8": ("a.txt", b"a\n\nb\ncaf\xe9\n", "line 4 is not UTF-8 at byte 3"),
}
BAD_FILES = {
  "numbers for text": ("a.parquet", {"text": [1, 2]}, "is int64; expected text"),
  "tokens for text": ("a.parquet", {"text": [[1], [2]]}, "or the task tokens"),
  "no parquet": ("a.parquet", b"PAR1 no", "is not valid .parquet"),
  "damaged": ("a.parquet", damaged_parquet, "is damaged after record"),
  "no arrow": ("a.arrow", b"no arrow", "is not valid .arrow"),
  "a list": ("a.jsonl", b"[1]\n", "line 1 holds a list; expected an object. Convert an"),
  "an array": ("a.jsonl", b'[\n{"text": "a"}\n]', "Convert an array with jq -c '.[]'"),
  "no field": (
    "a.jsonl",
    b'{"txt": "a"}\n',
    "found 'txt'. Name the right one: --columns text=N",
  ),
  "a number": ("a.jsonl", b'{"text": 3}\n', "text is 3; expected text"),
  "squad": ("a.json", b'{"data": 3}', "is read as SQuAD's JSON. Give JSON lines"),
}


@pytest.mark.parametrize(
  ("case", "workers"),
  [*((case, n) for case in BAD_TEXT for n in (1, 2)), *((case, 1) for case in BAD_FILES)],
)
def test_bad_files_are_refused_and_nothing_is_left(corpus, tmp_path, capsys, case, workers):
  name, content, message = (BAD_TEXT | BAD_FILES)[case]
  (tmp_path / "in").mkdir()
  path = tmp_path / "in" / name
  if callable(content):
    content(path)
  elif isinstance(content, dict):
    pa.parquet.write_table(pa.table(content), path)
  else:
    path.write_bytes(content)
  options = [f"--source={path.parent}", f"--workers={workers}"]
  assert main(arguments(corpus, tmp_path / "out" / "d", *options)) == 2
  error = capsys.readouterr().err.splitlines()[-1]
  assert error.startswith("error: ")
  assert message.format(path=path.parent) in error
  assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize(
  ("least", "others"),
  [(1, "`documents` or held_out_fraction"), (9, "held_out_fraction or min_sentences")],
)
def test_a_filter_is_only_named_if_it_left_documents_out(
  corpus, tmp_path, capsys, least, others
):
  (tmp_path / "a.txt").write_text("A b. C d.")
  options = f"--source={tmp_path / 'a.txt'}", f"--min-sentences={least}"
  assert main(arguments(corpus, tmp_path / "d", *options)) == 2
  assert capsys.readouterr().err.endswith(f" {others}.\n")


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (["--out=/proc/here/d"], "The dataset cannot be written"),
    (["--out={corpus}"], "is not a prepared dataset"),
    (["--source=stdlib", "--task=glue/cola"], "stdlib is text; the task needs sentence"),
    (["--source="], "There is no ''; expected stdlib, a file, folder"),
    (["--source=", "--task=classification"], "There is no ''; expected stdlib"),
    (["--task=glue/nope"], "task is 'glue/nope'; expected one of pretraining"),
    (["--columns=label=x"], "A field in columns is 'label'; expected one of text"),
    (["--columns=x"], "expected FIELD=NAME"),
    (["--documents=start:("], "not a regex"),
    (["--max-sequence-length=4"], "max_sequence_length is 4; expected at least 5"),
    (["--task=text", "--vocab-file=", "--vocab-size=256"], "at least 257 for text"),
    (["--min-words=4"], "min_words is 4; expected 0 for pretraining"),
    (["--cross-documents"], "cross_documents is True; expected False for pretraining"),
    (["--held-out-source=stdlib"], "a fraction; leave out --held-out-fraction"),
    (["--held-out-fraction=1"], "expected a fraction in [0, 1)"),
    (["--task=tokens", "--vocab-file="], "needs the vocabulary that the tokens"),
  ],
)
def test_mistakes_are_reported_before_any_work(corpus, tmp_path, capsys, options, message):
  before = contents(corpus)
  given = [option.format(corpus=corpus) for option in options]
  assert main(arguments(corpus, tmp_path / "d", *given)) == 2
  error = capsys.readouterr().err
  assert message in error
  assert len(error.splitlines()) == 1
  assert contents(corpus) == before
  assert not list(tmp_path.iterdir())
