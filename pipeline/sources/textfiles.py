"""Documents from text files: plain text, JSON lines, SQuAD's JSON.

Lines are read one at a time and no document may be longer than `MAX_DOCUMENT_BYTES`, so
memory is bounded whatever the file holds. SQuAD's JSON is read at once.
"""

from __future__ import annotations

import codecs
import contextlib
import itertools
import json
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from packing import InputError
from packing.errors import short_repr
from pipeline.sources.compressed import open_binary
from pipeline.sources.document import (
  MAX_DOCUMENT_BYTES,
  Document,
  DocumentFields,
  check_texts,
  select_fields,
  too_long_error,
)

MOST_EXPANDED = 100  # bytes of JSON for each byte of a compressed file, which are read
_COLUMNS = {"tokens": 0, "tags": -1}  # first and last
# In CoNLL-U, of several words and of words that only the syntax has: 1-2 and 1.1.
_NO_WORD = re.compile(r"\d+[-.]\d+")
_FIRST_NUMBER = re.compile(r"[01]([-.]\d+)?")
_CONVERT = "Convert it, such as by iconv -f WINDOWS-1252 -t UTF-8"
_COMMENT = re.compile(r"#\s+(\S+\s+=(\s|$)|new(doc|par)\b)")
Lines = Iterable[tuple[int, str]]  # with their numbers, from 1


def split_text(lines: Lines, name: str, fields: DocumentFields) -> Iterator[Document]:
  """Splits a text file into documents.

  Args:
    lines: the lines of the file.
    name: the file's name, for messages.
    fields: its `documents` says where a document ends: "blank-line" at lines of white
      space, as in BERT's script; "line" after each line; "file" at the end of the file;
      "start:REGEX" before each line that matches; "wikiextractor" at that program's tags,
      `<doc ...>` and `</doc>`, which are left out.

  Raises:
    InputError: a document is too long.
  """
  how = fields.documents
  start = re.compile(how.removeprefix("start:")) if how.startswith("start:") else None
  held: list[str] = []
  size, first = 0, 1
  for number, line in lines:
    blank = not line.strip()
    begins = start is not None and start.search(line.rstrip("\r\n"))
    is_tag = how == "wikiextractor" and line.startswith(("<doc ", "</doc>"))
    if held and (begins or is_tag or (blank and how == "blank-line")):
      yield Document({"text": "".join(held)}, f"{name}, line {first}")
      held, size = [], 0
    between = how == "wikiextractor" and not held
    if is_tag or (blank and (between or how in ("blank-line", "line"))):
      continue
    if not held:
      first = number
    held.append(line)
    size += len(line)
    if size > MAX_DOCUMENT_BYTES:
      raise too_long_error(f"{name}, line {first}")
    if how == "line":
      yield Document({"text": line}, f"{name}, line {number}")
      held, size = [], 0
  if held:
    yield Document({"text": "".join(held)}, f"{name}, line {first}")


def split_json_lines(lines: Lines, name: str, fields: DocumentFields) -> Iterator[Document]:
  """One JSON object a line; skips blank lines.

  Raises:
    InputError: a line is not a JSON object, or lacks a field.
  """
  for number, line in lines:
    if not line.strip():
      continue
    where = f"{name}, line {number}"
    try:
      values = json.loads(line)
    except (ValueError, RecursionError) as error:
      raise InputError(
        f"{where} is not JSON ({error}); expected an object.{_of_array(line)}"
      ) from error
    if not isinstance(values, dict):
      kind = type(values).__name__
      raise InputError(f"{where} holds a {kind}; expected an object.{_of_array(line)}")
    yield select_fields(values, fields, where)


def _of_array(line: str) -> str:
  """What to do if a line begins a JSON array."""
  return " Convert an array with jq -c '.[]'." if line.lstrip()[:1] == "[" else ""


def split_sentences(lines: Lines, name: str, fields: DocumentFields) -> Iterator[Document]:
  """One document a line: the texts of `fields.line_fields`, separated by tabs.

  A blank line gives a document with empty texts, so line n is always document n.

  Raises:
    InputError: a line has too many or too few texts.
  """
  for number, line in lines:
    yield split_line(line, f"{name}, line {number}", fields)


def split_line(line: str, where: str, fields: DocumentFields) -> Document:
  """The document of one line; see `split_sentences`."""
  names = fields.line_fields
  least = sum(field in fields.required for field in names)
  cells = line.rstrip("\r\n").split("\t") if line.strip() else [""] * least
  if not least <= len(cells) <= len(names):
    either = f"{least} or " if least < len(names) else ""
    raise InputError(
      f"{where} has {len(cells)} texts separated by tabs; expected {either}{len(names)}."
    )
  return Document(dict(zip(names, cells, strict=False)), where)


def split_columns(lines: Lines, name: str, fields: DocumentFields) -> Iterator[Document]:
  """Sentences in CoNLL's columns: a word and its tag a line, a blank line after each.

  Tabs separate columns, or spaces if a line has no tab. Lines of -DOCSTART- are left out;
  so are CoNLL-U's comments and, if the words are in a later column than the first, its
  ranges (1-2) and empty nodes (1.1). If the last column is read, all lines have the same
  number of columns.

  Args:
    lines: the lines of the file.
    name: the file's name, for messages.
    fields: `tokens` are in the first column and `tags` in the last, unless its `columns`
      have their numbers, from 0.

  Raises:
    InputError: a line lacks a column or has others than the first, a sentence is too long,
      a column has no number, or the first column numbers the words or names their text.

  References:
    https://universaldependencies.org/format.html
  """
  places = {field: _COLUMNS[field] for field in _COLUMNS if field in fields.names}
  for field in places:
    column = fields.column(field)
    if column != field and not column.isdecimal():
      raise InputError(f"columns has {field}={short_repr(column)}; expected a number.")
    places[field] = places[field] if column == field else int(column)
  least = max(len(places), *(place + 1 for place in places.values()))
  lines, before = iter(lines), list[tuple[int, str]]()
  width, is_numbered = 0, False
  for number, line in lines:  # up to the first word
    before.append((number, line))
    cells = _columns(line)
    if cells and not line.startswith(("#", "-DOCSTART-")):
      width = len(cells)
      is_numbered = places["tokens"] > 0 and bool(_FIRST_NUMBER.fullmatch(cells[0]))
      break
  held: dict[str, list[str]] = {field: [] for field in places}
  size = first = 0
  unsure = fields.column("tokens") == "tokens"  # whether the first column has words
  for number, line in itertools.chain(before, lines, [(0, "")]):
    cells = _columns(line)
    if not cells:
      if size:
        if unsure and len(held["tokens"]) > 1:
          _check_words(held["tokens"], width, f"{name}, line {first}")
          unsure = False
        yield Document(held, f"{name}, line {first}")
      held, size = {field: [] for field in places}, 0
      continue
    # A word may be #, too, but a line of a word has as many columns as others.
    starts_comment = not size and cells[0].split(" ")[0] == "#" and len(cells) != width
    is_left_out = is_numbered and _NO_WORD.fullmatch(cells[0])
    if starts_comment or _COMMENT.match(line) or is_left_out or cells[0] == "-DOCSTART-":
      continue
    if len(cells) < least:
      text = short_repr(line.rstrip("\r\n"))
      raise InputError(f"{name}, line {number} lacks a word or tag: {text}.")
    width = width or len(cells)
    if len(cells) != width and min(places.values()) < 0:
      raise InputError(
        f"{name}, line {number} has {len(cells)} columns; expected {width}, as before. "
        "Mend it, or name a column for tags by its number."
      )
    first = first if size else number
    for field, place in places.items():
      held[field].append(cells[place])
    size += len(line)
    if size > MAX_DOCUMENT_BYTES:
      raise too_long_error(f"{name}, line {first}")


def _columns(line: str) -> list[str]:
  """The columns of a line; none if it is blank."""
  text = line.rstrip("\r\n")
  if not text.strip():
    return []
  cells = text.split("\t") if "\t" in text else [cell for cell in text.split(" ") if cell]
  return [cell.strip(" ") for cell in cells]


def _check_words(words: list[str], width: int, where: str):
  """Refuses what is not the words of a sentence: their numbers, or the text's name."""
  if width > 2 and len(words) > 2 and len(set(words)) == 1:  # CoNLL-2012's first column
    raise InputError(
      f"{where}: the first column has {short_repr(words[0])} for each word. Name those of "
      "words and tags, counted from 0, such as --columns tokens=3,tags=4."
    )
  numbers = [word for word in words if not _NO_WORD.fullmatch(word)]
  for start in (0, 1):
    if numbers == [str(n) for n in range(start, start + len(numbers))]:
      tags = 3 if width == 10 else max(width - 1, 2)  # of CoNLL-U, the parts of speech
      raise InputError(
        f"{where}: the first column numbers the words. Name those of words and tags, "
        f"counted from 0, such as --columns tokens=1,tags={tags}."
      )


def read_squad(path: pathlib.Path, fields: DocumentFields) -> Iterator[Document]:
  """The questions of a file in the layout of SQuAD 1.1: data, paragraphs, qas, answers.

  Raises:
    InputError: the file has another layout, or no answers where they are required.
  """
  most = MOST_EXPANDED * max(path.stat().st_size, 2**20)
  with _reading(path) as file:
    content = file.read(most + 1)
  if len(content) > most:
    raise InputError(
      f"{path} holds more than {most:,} bytes, which is too much for its size. Its JSON is "
      "read at once: decompress it, or give JSON lines."
    )
  try:
    articles = json.loads(content.decode("utf-8-sig"))["data"]
    for article in articles:
      for paragraph in article["paragraphs"]:
        for question in paragraph["qas"]:
          values = {
            "id": str(question["id"]),
            "question": question["question"],
            "context": paragraph["context"],
          }
          where = f"{path}, question {values['id']}"
          if "answers" in fields.required:
            if "answers" not in question:
              raise InputError(
                f"{where} has no answers. Test files hide theirs; use another file."
              )
            answers = question["answers"]
            values["answers"] = {
              "text": [answer["text"] for answer in answers],
              "answer_start": [answer["answer_start"] for answer in answers],
            }
          check_texts(values, where)
          yield Document(values, where)
  except InputError:  # which is a ValueError
    raise
  except UnicodeDecodeError as error:
    raise InputError(f"{path} is not UTF-8 at byte {error.start}. {_CONVERT}.") from error
  except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
    raise InputError(f"{path} is not SQuAD's JSON ({error!r}). Use JSON lines.") from error


def lines_of(path: pathlib.Path) -> Iterator[tuple[int, str]]:
  """The numbered lines of a file; see `numbered_lines`."""
  with _reading(path) as file:
    yield from numbered_lines(file, str(path))


@contextlib.contextmanager
def _reading(path: pathlib.Path) -> Iterator[BinaryIO]:
  try:
    with open_binary(path) as file:
      yield file
  except OSError as error:
    why = error.strerror or str(error).rstrip(".")
    raise InputError(f"Cannot read {path}: {why}.") from error


def numbered_lines(file: BinaryIO, name: str) -> Iterator[tuple[int, str]]:
  """Lines of text, numbered from 1, with their line ends.

  Args:
    file: read from its current position.
    name: the file's name, for messages.

  Raises:
    InputError: the file is binary or not UTF-8, or a line is too long.
  """
  for number, line in enumerate(_split_lines(file), start=1):
    if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
      raise InputError(f"{name} is UTF-16. Convert it with iconv -f UTF-16 -t UTF-8.")
    if b"\0" in line:
      raise InputError(f"{name} is binary: line {number} has a zero byte. Leave it out.")
    if len(line) > MAX_DOCUMENT_BYTES:
      raise too_long_error(f"{name}, line {number}")
    try:
      text = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
      raise InputError(
        f"{name}, line {number} is not UTF-8 at byte {error.start}. {_CONVERT}."
      ) from error
    yield number, text


def _split_lines(file: BinaryIO) -> Iterator[bytes]:
  """Lines with their ends: line feeds, carriage returns, or a line feed after these.

  A line longer than `MAX_DOCUMENT_BYTES` may be cut after that.
  """
  held = b""
  while part := file.readline(MAX_DOCUMENT_BYTES + 1):
    if part.endswith(b"\r"):  # perhaps before a line feed
      part += file.read(1)
    *lines, held = re.split(rb"(?<=\r)(?!\r?\r?\n)", held + part)
    yield from lines
    if held.endswith(b"\n") or len(held) > MAX_DOCUMENT_BYTES:
      yield held
      held = b""
  if held:
    yield held
