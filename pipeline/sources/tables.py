"""Documents from tables: CSV, TSV, Parquet and Arrow, Hugging Face's among them."""

from __future__ import annotations

import csv
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

from packing import InputError
from pipeline.sources import textfiles

if TYPE_CHECKING:
  from pipeline.sources.partitions import Document, DocumentFields

_ROWS = 64  # turned into Python objects at a time
_DELIMITERS = {".csv": ",", ".tsv": "\t"}


def check(path: pathlib.Path, wanted: DocumentFields):
  """Finds out before any work whether a file has what is wanted.

  Raises:
    InputError: it is no such file, lacks a column, or has one twice.
  """
  schema, _ = _open(path, wanted)
  for field in (*wanted.required, *wanted.optional):
    column = wanted.column(field)
    if schema.names.count(column) > 1:
      raise InputError(
        f"{path} has {schema.names.count(column)} columns {column!r}; expected one. Rename "
        "the others."
      )
  for field in wanted.required:
    column = wanted.column(field)
    if column not in schema.names:
      raise InputError(
        f"{path} has no column {column!r}; found "
        f"{', '.join(f'{f.name} ({f.type})' for f in schema) or 'none'}. Name the right "
        f"one with --columns {field}=NAME."
      )
    kind = schema.field(column).type
    if field == "text" and not _is_text(kind):
      raise InputError(
        f"Column {column!r} of {path} is {kind}; expected text. For lists of tokens use "
        f"--task tokens --columns input_ids={column}."
      )
    if field == "input_ids" and not _is_tokens(kind):
      raise InputError(
        f"Column {column!r} of {path} is {kind}; expected lists of integers. For text use "
        "another task."
      )


def num_rows(path: str | pathlib.Path) -> int:
  """Rows of a file, from its metadata; 0 where it is damaged, which reading tells."""
  try:
    if pathlib.Path(path).suffix.lower() == ".parquet":
      return pa.parquet.read_metadata(path).num_rows
    with pa.memory_map(str(path)) as source:
      return sum(map(len, _arrow_batches(source, columns=[0])[1]))
  except (pa.ArrowInvalid, OSError):
    return 0


def read_table(path: pathlib.Path, wanted: DocumentFields) -> Iterator[Document]:
  """Rows of a file, a few at a time.

  Raises:
    InputError: the file is damaged.
  """
  schema, read = _open(path, wanted)
  fields = (*wanted.required, *wanted.optional)
  names = [wanted.column(field) for field in fields]
  names = [name for name in dict.fromkeys(names) if name in schema.names]
  row = 0
  try:
    for batch in read(names):
      for start in range(0, len(batch), _ROWS):
        for values in batch.slice(start, _ROWS).to_pylist():
          yield textfiles.select_fields(values, wanted, f"{path}, row {row}")
          row += 1
  except UnicodeDecodeError as error:
    raise InputError(
      f"{path}, row {row} or one of the {_ROWS} after it is no UTF-8 ({error.reason}). "
      "Expected text; write the file again."
    ) from error
  except (pa.ArrowInvalid, OSError) as error:
    raise InputError(
      f"{path} is damaged after row {row} ({str(error).splitlines()[0]}). Get it again."
    ) from error


def _open(path: pathlib.Path, wanted: DocumentFields):
  """The schema of a file, and a function from column names to record batches."""
  if path.suffix.lower() in _DELIMITERS:
    return _open_delimited(path, wanted)
  try:
    if path.suffix.lower() == ".parquet":
      # Without a buffer, whole columns of a row group are in memory at once.
      parquet = pa.parquet.ParquetFile(str(path), buffer_size=1 << 20, pre_buffer=False)
      return parquet.schema_arrow, lambda names: parquet.iter_batches(
        batch_size=1024, columns=names, use_threads=False
      )
    schema, batches = _arrow_batches(pa.memory_map(str(path)))
    return schema, lambda names: (b.select(names) for b in batches)
  except (pa.ArrowInvalid, OSError) as error:
    raise InputError(
      f"{path} is no {path.suffix[1:]} file ({str(error).splitlines()[0]}). Get it again, "
      "or leave it out."
    ) from error


def _open_delimited(path: pathlib.Path, wanted: DocumentFields):
  """As `_open`, of a .csv or .tsv, whose columns are all text.

  Columns are named by the first line; or, where the columns wanted are numbers, counted
  from 0 and the first line is data.
  """
  delimiter, quoted = _DELIMITERS[path.suffix.lower()], _is_quoted(path)
  rows = csv.reader(
    _lines(path),
    delimiter=delimiter,
    quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
  )
  cells = next(filter(None, rows), [])
  counted = all(wanted.column(field).isdigit() for field in wanted.required)
  names = [str(number) for number in range(len(cells))] if counted else cells

  def invalid(row: pa.csv.InvalidRow) -> str:
    found.append(
      f"{path}, row {row.number - (1 if counted else 2)} has {row.actual_columns} columns; "
      f"expected {row.expected_columns}, as the first line."
    )
    return "error"

  found: list[str] = []

  def read(chosen: list[str]) -> Iterator[pa.RecordBatch]:
    try:
      yield from pa.csv.open_csv(
        path,
        read_options=pa.csv.ReadOptions(
          use_threads=False,  # which holds fewer blocks, and counts rows
          block_size=textfiles.MAX_DOCUMENT_BYTES,  # a row has to fit
          column_names=names if counted else None,
        ),
        parse_options=pa.csv.ParseOptions(
          delimiter=delimiter,
          quote_char='"' if quoted else False,
          newlines_in_values=quoted,
          invalid_row_handler=invalid,
        ),
        convert_options=pa.csv.ConvertOptions(
          include_columns=chosen, column_types=dict.fromkeys(chosen, pa.string())
        ),
      )
    except pa.ArrowInvalid as error:
      if found:
        raise InputError(found[0]) from error
      raise

  return pa.schema([(name, pa.string()) for name in names]), read


def _lines(path: pathlib.Path) -> Iterator[str]:
  return (line for _, line in textfiles.lines_of(path))


def _is_quoted(path: pathlib.Path) -> bool:
  """Whether quotes enclose fields: each field that begins with one ends with one.

  Quotes inside such a field are doubled. A .tsv with any other field that begins with a
  quote has no enclosed fields: its quotes are text, as in GLUE's files. Arrow does not
  check this; it would swallow the rows up to the next quote.

  Raises:
    InputError: a .csv with other quotes; not UTF-8, binary, or a line that is too long.
  """
  delimiter = _DELIMITERS[path.suffix.lower()]
  csv.field_size_limit(textfiles.MAX_DOCUMENT_BYTES)
  rows = csv.reader(_lines(path), delimiter=delimiter, strict=True)
  last = 0  # line of the row before
  try:
    for _ in rows:
      last = rows.line_num
  except csv.Error as error:
    if delimiter == "\t":
      return False
    raise InputError(
      f"{path}: the row at line {last + 1} is not valid CSV ({error}). Expected a quoted "
      "field to end with a quote, and quotes inside it doubled. Write it with csv or "
      "pandas in Python, or as .jsonl."
    ) from error
  return True


def _arrow_batches(source: pa.NativeFile, columns: list[int] | None = None):
  """The schema of a mapped file, and its record batches, of all columns or of some."""
  options = pa.ipc.IpcReadOptions(included_fields=columns)
  if source.read(6) == b"ARROW1":
    reader = pa.ipc.open_file(source, options=options)
    return reader.schema, map(reader.get_batch, range(reader.num_record_batches))
  source.seek(0)  # the stream format that Hugging Face writes
  stream = pa.ipc.open_stream(source, options=options)
  return stream.schema, iter(stream)


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
