"""Arrow and Parquet files, and the lengths that a column of them gives; extra `arrow`."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

from packing.errors import InputError
from packing.row import check_no_padding, check_not_packed

_TELLING = "attention_mask", "position_ids"  # of padding, and of rows packed already
_COUNTS = "count", "counts", "frequency"  # beside a length, in a histogram
_NAMES = ("input_ids", "tokens", "token_ids", "length", "lengths", "num_tokens")


def open_arrow(
  file: str | os.PathLike | pa.Buffer,
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
  """The schema and the record batches of an Arrow file, memory-mapped.

  Args:
    file: a path, or the bytes, of a file in Arrow's file format, or in its stream format as
      Hugging Face writes. A path's file is read from the disk at once, in the background.

  Raises:
    OSError: the file cannot be read.
    pyarrow.ArrowInvalid: the file is not Arrow; or, from the iterator, it is damaged.
  """
  is_path = not isinstance(file, pa.Buffer)
  source = pa.memory_map(str(file)) if is_path else pa.BufferReader(file)
  if source.read(6) == b"ARROW1":
    reader = pa.ipc.open_file(source)
    return reader.schema, map(reader.get_batch, range(reader.num_record_batches))
  source.seek(0)
  stream = pa.ipc.open_stream(source)
  return stream.schema, iter(stream)


def read_lengths(path: pathlib.Path, column: str | None) -> tuple[np.ndarray, str]:
  """The lengths that a column of lists has, or a column of integers gives.

  Args:
    path: a .arrow, .parquet, .csv or .tsv file; the last two begin with a line of names.
    column: the column to read; None for the first of `_NAMES` that is there.

  Returns:
    int64[num_sequences], and the name of the column.

  Raises:
    InputError: the file is damaged, or has no such column.
  """
  try:
    if path.suffix == ".parquet":
      file = pa.parquet.ParquetFile(str(path))
      name = _choose_column(path, file.schema_arrow, column)
      names = {name, *{*_TELLING}.intersection(file.schema_arrow.names)}
      batches = file.iter_batches(columns=list(names))
    else:
      if path.suffix == ".arrow":
        schema, batches = open_arrow(path)
      else:
        separated = pa.csv.ParseOptions(delimiter="," if path.suffix == ".csv" else "\t")
        table = pa.csv.read_csv(str(path), parse_options=separated)
        schema, batches = table.schema, iter(table.to_batches())
      name = _choose_column(path, schema, column)
    lengths = [column_lengths(batch, name, str(path)) for batch in batches]
  except pa.ArrowInvalid as error:
    raise InputError(f"{path} is not valid ({str(error).splitlines()[0]}).") from error
  return np.concatenate([np.empty(0, np.int64), *lengths]), name


def _choose_column(path: pathlib.Path, schema: pa.Schema, column: str | None) -> str:
  for name in _NAMES if column is None else [column]:
    if schema.names.count(name) > 1:
      raise InputError(f"{path} has several columns {name!r}. Rename one of them.")
    if name in schema.names:
      counts = [x for x in _COUNTS if x in schema.names]
      if counts and column is None and pa.types.is_integer(schema.field(name).type):
        raise InputError(
          f"{path} has {name!r} and {counts[0]!r}, so it may be a histogram. If it is, "
          "write it as JSON for --histogram-file: "
          '{"max_sequence_length": S, "counts": [S whole numbers]}. If each line is a '
          f"sequence, name the column, with --column {name}."
        )
      return name
  wanted = f"no column {column!r}" if column else f"none of the columns {', '.join(_NAMES)}"
  described = ", ".join(f"{f.name} ({f.type})" for f in schema)
  raise InputError(f"{path} has {wanted}; found {described}. Name one with --column.")


def _is_list(kind: pa.DataType) -> bool:
  types = pa.types
  return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def column_lengths(table: pa.Table | pa.RecordBatch, name: str, where: str) -> np.ndarray:
  """The lengths in a column of an Arrow table: of its lists, or its integers.

  Args:
    table: it may also have a column `attention_mask` or `position_ids`.
    name: the column.
    where: the table's name, for messages.

  Returns:
    int64[number of records].

  Raises:
    InputError: the column holds something else, a value is missing, `attention_mask` has
      zeros in lists as long as these, so that the sequences are padded, or `position_ids`
      begin again in one of them, so that it is packed already.
  """
  column, what = table.column(name), f"Column {name!r} of {where}"
  is_list = _is_list(column.type)
  if not is_list and not pa.types.is_integer(column.type):
    raise InputError(
      f"{what} is {column.type}; expected tokens in lists, or lengths. Tokenize text first."
    )
  if is_list and not pa.types.is_integer(column.type.value_type):
    raise InputError(
      f"{what} is {column.type}; expected lists of token ids. Tokenize text first, and "
      "give each sequence a record of its own."
    )
  if column.null_count:
    raise InputError(f"{what} has {column.null_count} missing values. Drop these records.")
  lengths = pa.compute.list_value_length(column) if is_list else column
  for other in _TELLING if is_list else ():
    told = table.column(other) if other in table.schema.names else None
    if told is None or not _is_list(told.type):
      continue
    sizes = pa.compute.list_value_length(told)
    if pa.compute.all(pa.compute.equal(sizes, lengths)).as_py():  # it is of this column
      values = pa.compute.list_flatten(told)
      if other == "attention_mask":
        check_no_padding(what, values)
      else:
        given = np.asarray(sizes.drop_null())  # a missing list has no values
        check_not_packed(what, values, given[given > 0])
  lengths = np.asarray(lengths)
  if lengths.size and lengths.max() > np.iinfo(np.int64).max:
    raise InputError(f"{what} holds {lengths.max()}; expected lengths in tokens.")
  return lengths.astype(np.int64)
