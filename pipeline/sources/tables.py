"""Documents from tables: CSV, TSV, Parquet and Arrow, including Hugging Face's."""

from __future__ import annotations

import csv
import json
import pathlib
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from packing import InputError
from pipeline.sources import textfiles
from pipeline.sources.compressed import codec, plain_suffix
from pipeline.sources.document import (
  MAX_DOCUMENT_BYTES,
  Document,
  DocumentFields,
  select_fields,
)
from pipeline.store import open_arrow

_RECORDS = 64  # converted to Python objects at a time
_DELIMITERS = {".csv": ",", ".tsv": "\t"}


def check(path: pathlib.Path, fields: DocumentFields):
  """Checks before any work that a file has the columns that a task reads.

  Raises:
    InputError: the file is damaged, lacks a column, or has one twice.
  """
  schema, _ = _open(path, fields)
  for column in map(fields.column, fields.names):
    if schema.names.count(column) > 1:
      raise InputError(
        f"{path} has {schema.names.count(column)} columns {column!r}; expected one. Rename "
        "the others."
      )
  for field in fields.required:
    column = fields.column(field)
    if column not in schema.names:
      raise InputError(
        f"{path} has no column {column!r}; found "
        f"{', '.join(f'{f.name} ({f.type})' for f in schema) or 'none'}. Name the right "
        f'one with columns "{field}=NAME".'
      )
    kind = schema.field(column).type
    if field == "text" and not _is_text(kind):
      raise InputError(
        f"Column {column!r} of {path} is {kind}; expected text. For lists of tokens use "
        f'the task tokens with columns "input_ids={column}".'
      )
    if field == "input_ids" and not _is_tokens(kind):
      raise InputError(
        f"Column {column!r} of {path} is {kind}; expected lists of integers. For text use "
        "another task."
      )


def num_records(path: pathlib.Path) -> int:
  """Records of a Parquet or Arrow file, from its metadata; 0 if it is damaged.

  Reading a damaged file raises the error.
  """
  try:
    if path.suffix.lower() == ".parquet":
      return pa.parquet.read_metadata(path).num_rows
    return sum(map(len, open_arrow(path, columns=[0])[1]))
  except (pa.ArrowInvalid, OSError):
    return 0


def read_table(path: pathlib.Path, fields: DocumentFields) -> Iterator[Document]:
  """One document per record, with a few records in memory at a time.

  Raises:
    InputError: the file is damaged.
  """
  schema, read = _open(path, fields)
  names = dict.fromkeys(map(fields.column, fields.names))
  class_names = _class_names(schema)
  number = 0
  try:
    for batch in read([name for name in names if name in schema.names]):
      for start in range(0, len(batch), _RECORDS):
        for values in batch.slice(start, _RECORDS).to_pylist():
          yield select_fields(values, fields, f"{path}, record {number}", class_names)
          number += 1
  except UnicodeDecodeError as error:
    raise InputError(
      f"{path}: record {number} or one of the {_RECORDS} after it is not UTF-8 "
      f"({error.reason}). Expected text; re-encode the file."
    ) from error
  except (pa.ArrowInvalid, OSError) as error:
    raise InputError(
      f"{path} is damaged after record {number} ({str(error).splitlines()[0]}). "
      "Download or write it again."
    ) from error


def _class_names(schema: pa.Schema) -> dict[str, list[str]]:
  """By column, the names of its classes, from what Hugging Face's datasets write."""
  try:
    features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    kinds = {name: kind for name, kind in features.items() if isinstance(kind, dict)}
  except (ValueError, LookupError, TypeError, AttributeError):
    return {}
  return {
    name: [str(x) for x in kind["names"]]
    for name, kind in kinds.items()
    if kind.get("_type") == "ClassLabel" and isinstance(kind.get("names"), list)
  }


def _open(path: pathlib.Path, fields: DocumentFields):
  """The schema of a file, and a function from column names to record batches."""
  if plain_suffix(path) in _DELIMITERS:
    return _open_delimited(path, fields)
  try:
    if path.suffix.lower() == ".parquet":
      # Without a buffer, whole columns of a row group are in memory at once.
      parquet = pa.parquet.ParquetFile(str(path), buffer_size=1 << 20, pre_buffer=False)
      return parquet.schema_arrow, lambda names: parquet.iter_batches(
        batch_size=1024, columns=names, use_threads=False
      )
    schema, batches = open_arrow(path)
    return schema, lambda names: (batch.select(names) for batch in batches)
  except (pa.ArrowInvalid, OSError) as error:
    raise InputError(
      f"{path} is not a valid {path.suffix} file ({str(error).splitlines()[0]}). "
      "Download or write it again, or leave it out."
    ) from error


def _open_delimited(path: pathlib.Path, fields: DocumentFields):
  """Does the same as `_open` for a .csv or .tsv, whose columns are all text.

  The first line names the columns. But if all required columns are given by number, they
  are counted from 0 and the first line is data.

  Raises:
    InputError: the file is empty.
  """
  delimiter, quoted = _DELIMITERS[plain_suffix(path)], _is_quoted(path)
  records = csv.reader(
    _lines(path),
    delimiter=delimiter,
    quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
  )
  filled = filter(None, records)
  cells = next(filled, [])
  if not cells:
    raise InputError(f"{path} is empty; expected a line for each record.")
  counted = all(fields.column(field).isdigit() for field in fields.required)
  has_records = counted or next(filled, None) is not None
  names = [str(number) for number in range(len(cells))] if counted else cells
  mistakes: list[str] = []

  def invalid(record: pa.csv.InvalidRow) -> str:
    mistakes.append(
      f"{path}: record {record.number - (1 if counted else 2)} has "
      f"{record.actual_columns} columns; expected {record.expected_columns}, as in the "
      "first line."
    )
    return "error"

  def read(columns: list[str]) -> Iterator[pa.RecordBatch]:
    if not has_records:  # Arrow refuses a first line without a line end
      return
    try:
      with pa.input_stream(str(path), compression=codec(path)) as file:
        yield from pa.csv.open_csv(
          file,
          read_options=pa.csv.ReadOptions(
            use_threads=False,  # fewer blocks in memory, and numbered records
            block_size=MAX_DOCUMENT_BYTES,  # a record must fit
            column_names=names if counted else None,
          ),
          parse_options=pa.csv.ParseOptions(
            delimiter=delimiter,
            quote_char='"' if quoted else False,
            newlines_in_values=quoted,
            invalid_row_handler=invalid,
          ),
          convert_options=pa.csv.ConvertOptions(
            include_columns=columns, column_types=dict.fromkeys(columns, pa.string())
          ),
        )
    except pa.ArrowInvalid as error:
      if mistakes:
        raise InputError(mistakes[0]) from error
      raise

  return pa.schema([(name, pa.string()) for name in names]), read


def _lines(path: pathlib.Path) -> Iterator[str]:
  return (line for _, line in textfiles.lines_of(path))


def _is_quoted(path: pathlib.Path) -> bool:
  """Whether quotes enclose fields: each field that begins with a quote also ends with one.

  Quotes inside such a field are doubled. If any other field of a .tsv begins with a quote,
  all its quotes are text, as in GLUE's files. Arrow does not check this: it would read all
  records up to the next quote as one field.

  Raises:
    InputError: a .csv has other quotes; a field of a .tsv has several lines; the file is
      binary or not UTF-8, or a line is too long.
  """
  delimiter = _DELIMITERS[plain_suffix(path)]
  csv.field_size_limit(MAX_DOCUMENT_BYTES)
  records = csv.reader(_lines(path), delimiter=delimiter, strict=True)
  last = 0  # last line of the previous record
  several: list[tuple[int, int]] = []  # first and last line of longer records
  try:
    for _ in records:
      if records.line_num > last + 1:
        several.append((last + 1, records.line_num))
      last = records.line_num
  except csv.Error as error:
    if delimiter == "\t":
      return False
    raise InputError(
      f"{path}: the record at line {last + 1} is not valid CSV ({error}). Expected a "
      "quoted field to end with a quote, and quotes inside it doubled. Write it with csv "
      "or pandas in Python, or as .jsonl."
    ) from error
  if several and delimiter == "\t":
    first, last = several[0]
    raise InputError(
      f"{path}, line {first}: a field in quotes ends in line {last}; expected each record "
      "on one line. If the quotes are text, write the file as .jsonl or .csv."
    )
  return True


def _is_text(kind: pa.DataType) -> bool:
  if pa.types.is_dictionary(kind):
    kind = kind.value_type
  texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
  return any(is_text(kind) for is_text in texts)


def _is_tokens(kind: pa.DataType) -> bool:
  lists = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
    pa.types.is_fixed_size_list,
  )
  return any(is_list(kind) for is_list in lists) and pa.types.is_integer(kind.value_type)
