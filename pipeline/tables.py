"""Documents from Arrow and Parquet files, Hugging Face's among them."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from packing import InputError
from pipeline import textfiles

if TYPE_CHECKING:
  from pipeline.sources import Document, Wanted

_ROWS = 64  # turned into Python objects at a time


def check(path: pathlib.Path, wanted: Wanted):
  """Finds out before any work whether a file has what is wanted.

  Raises:
    InputError: it is no such file, or lacks a column.
  """
  schema, _ = _open(path)
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


def read_table(path: pathlib.Path, wanted: Wanted) -> Iterator[Document]:
  """Rows of a file, a few at a time.

  Raises:
    InputError: the file is damaged.
  """
  schema, read = _open(path)
  fields = (*wanted.required, *wanted.optional)
  names = [wanted.column(field) for field in fields]
  names = [name for name in dict.fromkeys(names) if name in schema.names]
  row = 0
  try:
    for batch in read(names):
      for start in range(0, len(batch), _ROWS):
        for values in batch.slice(start, _ROWS).to_pylist():
          yield textfiles.pick(values, wanted, f"{path}, row {row}")
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


def _open(path: pathlib.Path):
  """The schema of a file, and a function from column names to record batches."""
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
