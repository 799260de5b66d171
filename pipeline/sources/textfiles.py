"""Documents from text: plain, JSON lines, SQuAD's JSON.

Lines are read one at a time and no document may be longer than `MAX_DOCUMENT_BYTES`, so
memory is bounded whatever is in the file.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO

from packing import InputError
from packing.errors import short_repr

if TYPE_CHECKING:
  from pipeline.sources.partitions import Document, DocumentFields

MAX_DOCUMENT_BYTES = 16 * 2**20
MAX_JSON_BYTES = 2**30  # a file in SQuAD's layout is read at once


def read_text(path: pathlib.Path, wanted: DocumentFields) -> Iterator[Document]:
  """Splits a text file into documents.

  Args:
    path: UTF-8 text.
    wanted: its `documents` says where a document ends: "blank-line" at lines of white
      space, as in BERT's script; "line" after each line; "file" nowhere; "start:REGEX"
      before each line that the expression fits.

  Raises:
    InputError: not UTF-8, a binary file, or a document that is too long.
  """
  how = wanted.documents
  start = re.compile(how.removeprefix("start:")) if how.startswith("start:") else None
  lines: list[str] = []
  size, first = 0, 1
  for number, line in lines_of(path):
    blank = not line.strip()
    begins = start is not None and start.search(line.rstrip("\r\n"))
    if lines and (begins or (blank and how == "blank-line")):
      yield {"text": "".join(lines), "where": f"{path}, line {first}"}
      lines, size = [], 0
    if blank and how in ("blank-line", "line"):
      continue
    if not lines:
      first = number
    lines.append(line)
    size += len(line)
    if size > MAX_DOCUMENT_BYTES:
      raise InputError(_too_long(f"{path}, line {first}"))
    if how == "line":
      yield {"text": line, "where": f"{path}, line {number}"}
      lines, size = [], 0
  if lines:
    yield {"text": "".join(lines), "where": f"{path}, line {first}"}


def read_json_lines(path: pathlib.Path, wanted: DocumentFields) -> Iterator[Document]:
  """One JSON object a line; blank lines are skipped.

  Raises:
    InputError: a line is no JSON object, or lacks a field.
  """
  yield from parse_json_lines(lines_of(path), str(path), wanted)


def parse_json_lines(
  lines: Iterable[tuple[int, str]], name: str, wanted: DocumentFields
) -> Iterator[Document]:
  """As `read_json_lines`, of numbered lines of a file with a name."""
  for number, line in lines:
    if not line.strip():
      continue
    where = f"{name}, line {number}"
    try:
      found = json.loads(line)
    except (ValueError, RecursionError) as error:
      raise InputError(
        f"{where} is no JSON ({error}); expected one object a line, such as "
        '{"text": "..."}.'
      ) from error
    if not isinstance(found, dict):
      raise InputError(
        f"{where} holds a {type(found).__name__}; expected an object with "
        f"{', '.join(map(wanted.column, wanted.required))}."
      )
    yield select_fields(found, wanted, where)


def read_sentences(path: pathlib.Path, wanted: DocumentFields) -> Iterator[Document]:
  """The fields of `wanted.line_fields` on each line, with tabs between them.

  A blank line is a document with empty ones, so that line n is document n.

  Raises:
    InputError: a line has more fields or fewer.
  """
  yield from parse_sentences(lines_of(path), str(path), wanted)


def parse_sentences(
  lines: Iterable[tuple[int, str]], name: str, wanted: DocumentFields
) -> Iterator[Document]:
  """As `read_sentences`, of numbered lines of a file with a name."""
  fields = wanted.line_fields
  least = sum(field in wanted.required for field in fields)
  for number, line in lines:
    where = f"{name}, line {number}"
    cells = line.rstrip("\r\n").split("\t") if line.strip() else [""] * least
    if not least <= len(cells) <= len(fields):
      either = f"{least} or " if least < len(fields) else ""
      raise InputError(
        f"{where} has {len(cells)} texts with tabs between them; expected {either}"
        f"{len(fields)}: {', '.join(fields)}. Give other columns as .csv, .tsv or .jsonl."
      )
    document: Document = {"where": where} | dict(zip(fields, cells, strict=False))
    yield document


def read_squad(path: pathlib.Path, wanted: DocumentFields) -> Iterator[Document]:
  """Questions of a file in the layout of SQuAD 1.1: data, paragraphs, qas, answers.

  Raises:
    InputError: another layout.
  """
  size = path.stat().st_size
  if size > MAX_JSON_BYTES:
    raise InputError(
      f"{path} has {size:,} bytes; expected at most {MAX_JSON_BYTES:,} in SQuAD's layout. "
      "Write it as JSON lines with id, question, context and answers."
    )
  try:
    articles = json.loads(path.read_bytes())["data"]
    for article in articles:
      for paragraph in article["paragraphs"]:
        for question in paragraph["qas"]:
          document = {
            "id": str(question["id"]),
            "question": question["question"],
            "context": paragraph["context"],
            "where": f"{path}, question {question['id']}",
          }
          if "answers" in wanted.required:
            answers = question.get("answers", [])
            document["answers"] = {
              "text": [answer["text"] for answer in answers],
              "answer_start": [answer["answer_start"] for answer in answers],
            }
          yield document
  except (ValueError, LookupError, TypeError, AttributeError) as error:
    raise InputError(
      f"{path} is not in SQuAD's layout ({error!r}); expected "
      '{"data": [{"paragraphs": [{"context": ..., "qas": [...]}]}]}.'
    ) from error


def select_fields(values: dict, wanted: DocumentFields, where: str) -> Document:
  """The fields that are wanted, by the names of the task.

  Raises:
    InputError: one is missing; or a text is too long.
  """
  document: Document = {"where": where}
  for field in (*wanted.required, *wanted.optional):
    column = wanted.column(field)
    if column in values:
      value = values[column]
      if isinstance(value, str):
        _check_text(value, where)
      document[field] = value
    elif field in wanted.required:
      raise InputError(
        f"{where} has no {column!r}; found {', '.join(map(str, values)) or 'nothing'}. "
        f"Name the right one with --columns {field}=NAME."
      )
  return document


def _check_text(value: str, where: str):
  if len(value) > MAX_DOCUMENT_BYTES:
    raise InputError(_too_long(where))
  try:
    value.encode()
  except UnicodeEncodeError as error:  # JSON can say half of a character
    raise InputError(
      f"{where} holds {short_repr(value[error.start])}, half of a character. Expected "
      "text; "
      "write it again with a program that keeps characters whole."
    ) from error


def lines_of(path: pathlib.Path) -> Iterator[tuple[int, str]]:
  """The lines of a file; as `numbered_lines`."""
  try:
    with path.open("rb") as file:
      yield from numbered_lines(file, str(path))
  except OSError as error:
    raise InputError(f"Cannot read {path}: {error.strerror}.") from error


def numbered_lines(file: BinaryIO, name: str) -> Iterator[tuple[int, str]]:
  """Lines of text from 1, with their ends.

  Raises:
    InputError: not UTF-8, binary, or a line that is too long.
  """
  number = 0
  while line := file.readline(MAX_DOCUMENT_BYTES + 1):
    number += 1
    if b"\0" in line:
      raise InputError(
        f"{name} is a binary file: line {number} holds a zero byte. Expected text in "
        "UTF-8; leave the file out."
      )
    if len(line) > MAX_DOCUMENT_BYTES:
      raise InputError(_too_long(f"{name}, line {number}"))
    try:
      text = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
      raise InputError(
        f"{name}, line {number} is no UTF-8: byte {short_repr(line[error.start])} at "
        f"{error.start} of the line. Convert the file, such as with: iconv -f "
        "ISO-8859-1 -t UTF-8."
      ) from error
    yield number, text


def _too_long(where: str) -> str:
  return (
    f"{where}: a document is longer than {MAX_DOCUMENT_BYTES:,} bytes, which are read at "
    "once. Break it at blank lines, or say with --documents where documents end."
  )
