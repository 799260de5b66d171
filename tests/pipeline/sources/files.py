"""Files of every format, and what a source reads from them."""

import csv
import json

import pyarrow as pa
import pyarrow.parquet

from pipeline.sources.document import DocumentFields
from pipeline.sources.partitions import open_source

TEXTS = ["One. Two.", "Drei änderbar.\nVier.", "五.", "x" * 3000]
FIELDS = DocumentFields(("text",))
DELIMITERS = {".csv": ",", ".tsv": "\t"}


def read(spec, fields=FIELDS):
  return [document for part in open_source(str(spec), fields) for document in part.read()]


def texts(spec, fields=FIELDS):
  return [document.fields["text"] for document in read(spec, fields)]


def write_arrow(path, table, kind="file"):
  new = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
  with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
    writer.write_table(table, max_chunksize=3)


def write_delimited(path, rows, quoting=csv.QUOTE_MINIMAL):
  with path.open("w", encoding="utf-8", newline="") as file:
    csv.writer(file, delimiter=DELIMITERS[path.suffix], quoting=quoting).writerows(rows)


def write(path, values=TEXTS, column="text"):
  """The texts in the format that the suffix names."""
  table = pa.table({"other": list(range(len(values))), column: values})
  if path.suffix == ".jsonl":
    rows = [json.dumps({"other": 1, column: value}) for value in values]
    path.write_text("\n".join(rows) + "\n\n")
  elif path.suffix.lower() == ".parquet":
    pa.parquet.write_table(table, path, row_group_size=2)
  elif path.suffix == ".arrow":
    write_arrow(path, table)
  elif path.suffix in DELIMITERS:
    if path.suffix == ".tsv":  # whose records have one line each
      values = [value.replace("\n", " ") for value in values]
    write_delimited(path, [["other", column], *([1, value] for value in values)])
  else:
    path.write_text("\n\n".join(values))
