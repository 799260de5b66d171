"""Documents, and the fields that a task reads from them."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from packing import InputError
from packing.errors import short_repr

IDS = "id", "idx"  # fields that name a record, in a column of any other field
MAX_DOCUMENT_BYTES = 16 * 2**20
_OF_PAIRS = r"(?i)labels?|scores?"  # whether two texts belong together


class Document(NamedTuple):
  """One document of a source.

  Attributes:
    fields: values by the task's names for them.
    where: its place in the source, for error messages.
  """

  fields: dict[str, Any]
  where: str = ""

  @property
  def size(self) -> int:
    """Bytes of all texts in UTF-8, and 4 for each number.

    Example:
      >>> Document({"sentences": ["a b", "c"], "label": 1}).size
      8
    """
    return _size(self.fields)


def _size(value) -> int:
  if isinstance(value, str):
    return len(value) if value.isascii() else len(value.encode(errors="surrogatepass"))
  if isinstance(value, dict):
    return sum(map(_size, value.values()))
  if isinstance(value, list):
    if value and isinstance(value[0], int):
      return 4 * len(value)
    return sum(map(_size, value))
  return 4


@dataclasses.dataclass(frozen=True)
class DocumentFields:
  """The fields that a task reads from each document.

  Attributes:
    required: names of fields.
    optional: names of fields that a document may lack.
    columns: pairs of a field and its name in the source, where the names differ.
    documents: how a text file splits into documents; see `textfiles.split_text`.
    line_fields: fields that a line of a text file holds, separated by tabs; () if the
      file holds running text.
    classes: fields whose values are classes, or lists of classes. Where a source names its
      own classes, their numbers become names.
    similar: a pattern of names that are not fields, but probably mean one; "" for none.
  """

  required: tuple[str, ...]
  optional: tuple[str, ...] = ()
  columns: tuple[tuple[str, str], ...] = ()
  documents: str = "blank-line"
  line_fields: tuple[str, ...] = ()
  classes: tuple[str, ...] = ()
  similar: str = ""

  @property
  def names(self) -> tuple[str, ...]:
    return *self.required, *self.optional

  def column(self, field: str) -> str:
    """The name of a field in the source."""
    return dict(self.columns).get(field, field)

  def check_unread(self, found: Iterable[str], where: str):
    """Refuses names of a source that are not read, but probably mean a field.

    Raises:
      InputError: names the first of them, and how to read it.
    """
    if not self.similar:
      return
    found = list(found)
    read = set(map(self.column, self.names))
    for name in found:
      if name in read or not re.fullmatch(self.similar, name):
        continue
      if re.fullmatch(_OF_PAIRS, name):
        raise InputError(
          f"{where} has {name!r}, which is not read: the texts of each record count as "
          "belonging together. Keep the records where they do and remove it, or take the "
          "task scored_pairs."
        )
      unnamed = [field for field in self.optional if field not in IDS]
      if not unnamed:  # each has a column
        continue
      field = "positive" if name.lower().startswith("pos") else unnamed[0]
      flag = f"--columns {shlex.quote(f'{field}={name}')}"
      named = f"Name it with {flag} (config.data.columns in a run), or "
      if self.column(field) in found:  # the field is there already
        named = f"Write a record for each {field}, or "
      raise InputError(f"{where} has {name!r}, which is not read. {named}remove it.")


def select_fields(
  values: dict,
  fields: DocumentFields,
  where: str,
  class_names: Mapping[str, Sequence[str]] = {},
) -> Document:
  """A document with some of the values of a record.

  Args:
    values: the record.
    fields: what to select.
    where: the place of the record in its source, for messages.
    class_names: by column, the names of the classes in the order of their numbers, where
      the source has them.

  Raises:
    InputError: a required field is missing, a field has another name, or a text is too
      long or invalid.
  """
  selected = {}
  fields.check_unread(values, where)
  for field in fields.names:
    column = fields.column(field)
    if column in values:
      value = values[column]
      check_texts(value, where)
      names = class_names.get(column, ()) if field in fields.classes else ()
      selected[field] = _named(value, names)
    elif field in fields.required:
      raise missing(f"{where} has no", field, column, dict.fromkeys(values, ""))
  return Document(selected, where)


def _named(value: Any, names: Sequence[str]) -> Any:
  """A value, or a list of values, with names in place of the numbers of classes."""
  if names and isinstance(value, list):
    return [_named(part, names) for part in value]
  is_class = isinstance(value, int) and 0 <= value < len(names)
  return names[value] if is_class else value


def text_in(document: Document, field: str) -> str:
  """The text in a field of a document; raises InputError if it is not text."""
  if not isinstance(value := document.fields[field], str):
    raise InputError(f"{document.where}: {field} is {short_repr(value)}; expected text.")
  return value


def missing(
  begin: str, field: str, column: str, found: Mapping[str, str], *, remedy: str = ""
) -> InputError:
  """The error for a source or a record without a required field.

  Args:
    begin: the beginning of the message, such as "a.csv has no column".
    field: the task's name for the field.
    column: the source's name, which was looked for.
    found: the names that are there, each with a note, such as its type.
    remedy: what to do; by default, to name the right column.
  """
  there = ", ".join(f"{name!r}{note}" for name, note in found.items()) or "nothing"
  named = f"--columns {field}=NAME"
  remedy = remedy or f"Name the right one: {named} (config.data.columns in a run)."
  for name in found:
    if name.strip() == column:
      remedy = f"Remove the spaces from {name!r}."
  return InputError(f"{begin} {column!r}; found {there}. {remedy}")


def check_texts(value: Any, where: str):
  """Refuses texts, also inside lists and dicts, that are too long or not Unicode.

  Raises:
    InputError: a text is longer than `MAX_DOCUMENT_BYTES` or has an unpaired surrogate.
  """
  if isinstance(value, dict):
    value = list(value.values())
  if isinstance(value, list):
    for part in value:
      if not isinstance(part, int):  # tokens
        check_texts(part, where)
  if not isinstance(value, str):
    return
  if len(value) > MAX_DOCUMENT_BYTES:
    raise too_long_error(where)
  try:
    value.encode()
  except UnicodeEncodeError as error:  # JSON can spell one surrogate of a pair
    raise InputError(
      f"{where} holds the unpaired surrogate {value[error.start]!r}. Re-encode it."
    ) from error


def too_long_error(where: str) -> InputError:
  return InputError(
    f"{where}: a document has more than {MAX_DOCUMENT_BYTES:,} bytes. Say with `documents` "
    "where they end."
  )
