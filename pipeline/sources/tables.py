"""Documents from tables: CSV, TSV, Parquet and Arrow, including Hugging Face's."""

from __future__ import annotations

import csv
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet

from packing import InputError
from packing.arrow import open_arrow
from packing.errors import short_repr
from packing.files import parse_json
from pipeline.sources import textfiles
from pipeline.sources.compressed import plain_suffix
from pipeline.sources.document import (
  MAX_DOCUMENT_BYTES,
  Document,
  DocumentFields,
  missing,
  select_fields,
)

_RECORDS = 64  # converted to Python objects at a time
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
# Names of columns -> the place in the file and the values of each record.
_Read = Callable[[list[str]], Iterator[tuple[str, dict]]]


def check_columns(path: pathlib.Path, fields: DocumentFields):
  """Checks before any work that a file has the columns that a task reads.

  Raises:
    InputError: the file is damaged, lacks a column, or has one twice.
  """
  schema, _ = _open(path, fields)
  fields.check_unread(schema.names, str(path))
  for column in map(fields.column, fields.names):
    if schema.names.count(column) > 1:
      raise InputError(f"{path} has several columns {column!r}. Rename the others.")
  for field in fields.required:
    column = fields.column(field)
    if column not in schema.names:
      there = {f.name: f" ({f.type})" for f in schema}
      remedy = _remedy(path, schema.names) if plain_suffix(path) in _DELIMITERS else ""
      raise missing(f"{path} has no column", field, column, there, remedy=remedy)
    kind = schema.field(column).type
    if field == "text" and not _is_text(kind):
      raise InputError(
        f"Column {column!r} of {path} is {kind}; expected text, or the task tokens."
      )
    if field == "input_ids" and not _is_tokens(kind):
      raise InputError(f"Column {column!r} of {path} is {kind}; expected integer lists.")


def read_table(path: pathlib.Path, fields: DocumentFields) -> Iterator[Document]:
  """One document per record, with a few records in memory at a time.

  Raises:
    InputError: the file is damaged.
  """
  schema, read = _open(path, fields)
  names = dict.fromkeys(map(fields.column, fields.names))
  class_names = _class_names(schema)
  place = "its beginning"
  try:
    for place, values in read([name for name in names if name in schema.names]):
      yield select_fields(values, fields, f"{path}, {place}", class_names)
  except UnicodeDecodeError as error:
    raise InputError(f"{path} is not UTF-8 after {place}. Convert it.") from error
  except (pa.ArrowInvalid, OSError) as error:
    raise InputError(
      f"{path} is damaged after {place} ({str(error).splitlines()[0]}). Restore it."
    ) from error


def _remedy(path: pathlib.Path, names: list[str]) -> str:
  """What to do about a file whose first line does not name columns; "" if it may."""
  suffix = plain_suffix(path)
  if names[0].lower().startswith("sep="):
    return f"Remove the first line, {short_repr(','.join(names))}."
  if names[0].startswith("#"):
    return "Remove the comment in the first line, or name columns by number, from 0."
  kinds = {";": "semicolons", "|": "bars", ",": "commas", "\t": "tabs"}
  others = [mark for mark in kinds if mark in names[0] and mark != _DELIMITERS[suffix]]
  if len(names) > 1 or not others:
    return ""
  if others[0] == _DELIMITERS.get(".tsv"):
    return "Tabs separate its columns. Rename it to .tsv."
  if others[0] == _DELIMITERS.get(".csv"):
    return "Commas separate its columns. Rename it to .csv."
  return f"{kinds[others[0]].capitalize()} separate its columns. Write it with commas."


def declared_classes(path: pathlib.Path, fields: DocumentFields, field: str) -> list[str]:
  """The names of all classes that a file declares for a field; none if it does not."""
  return _class_names(_open(path, fields)[0]).get(fields.column(field), [])


def _class_names(schema: pa.Schema) -> dict[str, list[str]]:
  """By column, the names of its classes, from what Hugging Face's datasets write."""
  try:
    features = parse_json((schema.metadata or {})[b"huggingface"])["info"]["features"]
    # Of lists, the features are those of their items; older files write [FEATURE].
    items = {
      name: kind[0] if isinstance(kind, list) else kind.get("feature", kind)
      for name, kind in features.items()
    }
    kinds = {name: kind for name, kind in items.items() if isinstance(kind, dict)}
  except (ValueError, LookupError, TypeError, AttributeError):
    return {}
  return {
    name: [str(x) for x in kind["names"]]
    for name, kind in kinds.items()
    if kind.get("_type") == "ClassLabel" and isinstance(kind.get("names"), list)
  }


def _open(path: pathlib.Path, fields: DocumentFields) -> tuple[pa.Schema, _Read]:
  """The schema of a file, and a function from column names to records."""
  if plain_suffix(path) in _DELIMITERS:
    return _open_delimited(path, fields)
  try:
    if path.suffix.lower() == ".parquet":
      # Without a buffer, whole columns of a row group are in memory at once.
      parquet = pa.parquet.ParquetFile(str(path), buffer_size=1 << 20, pre_buffer=False)
      return parquet.schema_arrow, lambda names: _records_of(
        parquet.iter_batches(batch_size=1024, columns=names, use_threads=False)
      )
    schema, batches = open_arrow(path)
    return schema, lambda names: _records_of(batch.select(names) for batch in batches)
  except (pa.ArrowInvalid, OSError) as error:
    raise InputError(
      f"{path} is not valid {path.suffix} ({str(error).splitlines()[0]}). Replace it."
    ) from error


def _records_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, dict]]:
  """Records, counted from 1."""
  number = 0
  for batch in batches:
    for start in range(0, len(batch), _RECORDS):
      for values in batch.slice(start, _RECORDS).to_pylist():
        number += 1
        yield f"record {number}", values


def _open_delimited(path: pathlib.Path, fields: DocumentFields) -> tuple[pa.Schema, _Read]:
  """Does the same as `_open` for a .csv or .tsv, whose columns are all text.

  The first line names the columns. But if all required columns are given by number, they
  are counted from 0 and the first line is data, unless it has just these numbers.

  Raises:
    InputError: the file is empty, or begins with the numbers of all columns but the first.
  """
  quoted = plain_suffix(path) == ".csv" or _is_quoted(path)
  _, first = next(_cells(path, quoted=quoted), (None, None))
  if first is None:
    raise InputError(f"{path} is empty; expected a line for each record.")
  counted = all(fields.column(field).isdigit() for field in fields.required)
  names = [str(number) for number in range(len(first))] if counted else first
  skipped = 1 if names == first else 0  # 0,1,... is what pandas names columns without names
  if counted and len(first) > 1 and first == ["", *names[:-1]]:
    raise InputError(
      f"{path} begins with the line {','.join(first)!r}, as pandas writes columns without "
      "names beside their index. Write the names of the columns there, and give --columns "
      "these names."
    )

  def read(columns: list[str]) -> Iterator[tuple[str, dict]]:
    records = itertools.islice(_cells(path, quoted=quoted), skipped, None)
    for (line, _), cells in records:
      if len(cells) != len(names):
        raise InputError(
          f"{path}, line {line} has {len(cells)} columns; expected {len(names)}."
        )
      values = dict(zip(names, cells, strict=True))
      yield f"line {line}", {column: values[column] for column in columns}

  return pa.schema([(name, pa.string()) for name in names]), read


def _is_quoted(path: pathlib.Path) -> bool:
  """Whether quotes enclose fields of a .tsv: each that begins with one also ends with one.

  Quotes inside such a field are doubled. If any other field begins with a quote, all quotes
  of the file are text, as in GLUE's files. So they are if one seems to be closed on a later
  line, but each line alone has all columns.

  Raises:
    InputError: a field in quotes has several lines.
  """
  several: list[tuple[int, int]] = []  # first and last lines of records
  try:
    several += [lines for lines, _ in _cells(path, quoted=True) if lines[0] < lines[1]]
  except InputError as error:
    if isinstance(error.__cause__, csv.Error):
      return False
    raise
  if several:
    widths = {len(cells) for _, cells in _cells(path, quoted=False)}
    if len(widths) == 1 and widths != {1}:
      return False
    first, last = several[0]
    raise InputError(
      f"{path}: a field in quotes spans lines {first} to {last}. Write it as .jsonl."
    )
  return True


def _cells(
  path: pathlib.Path, *, quoted: bool
) -> Iterator[tuple[tuple[int, int], list[str]]]:
  """First and last line and the cells of each record of a .csv or .tsv, but of blank lines.

  Raises:
    InputError: quotes are wrong; the file is binary or not UTF-8, or a line is too long.
  """
  csv.field_size_limit(MAX_DOCUMENT_BYTES)
  records = csv.reader(
    (line for _, line in textfiles.lines_of(path)),
    delimiter=_DELIMITERS[plain_suffix(path)],
    quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
    strict=True,
  )
  last = 0  # last line of the previous record
  try:
    for cells in records:
      first, last = last + 1, records.line_num
      if cells:
        yield (first, last), cells
  except csv.Error as error:
    raise InputError(
      f"{path}: the record at line {last + 1} is not CSV ({error}). Write it as .jsonl."
    ) from error


def _is_text(kind: pa.DataType) -> bool:
  if pa.types.is_dictionary(kind):
    kind = kind.value_type
  return str(kind) in ("string", "large_string", "string_view")


def _is_tokens(kind: pa.DataType) -> bool:
  of = getattr(kind, "value_type", None)  # of lists of any kind
  return of is not None and pa.types.is_integer(of) and not pa.types.is_dictionary(kind)
