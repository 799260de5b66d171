"""Records of finished work: JSON files, or rows of one Parquet file a study.

Work that ends writes its record as a JSON file in the study's folder, such as
`runs/packed,seed=1.json`: at most the work in progress is lost. `python -m
experiments.publish` packs all records of a folder into its `records.parquet`, with the
columns `name`, the path of the JSON file in that folder, and `record`, its text. `read`
looks at both, so a copy of a published folder counts as finished. A JSON file replaces a
row of its name; to repeat work whose record is packed, delete `records.parquet`.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

PACKED = "records.parquet"
# The JSON files of a study's folder that are records.
PATTERNS = (
  *("runs/*.json", "measured/*.json", "ranks/*.json"),
  *("minutes.json", "seconds.json"),
)


def read(path: str | os.PathLike[str]) -> Any:
  """The record in a JSON file, or packed in its folder or in the one above; None if none.

  Raises:
    ValueError: the JSON file is damaged.
  """
  path = pathlib.Path(path)
  if path.exists():
    return json.loads(path.read_text())
  for folder in path.parents[:2]:
    if text := _rows(folder).get(path.relative_to(folder).as_posix()):
      return json.loads(text)
  return None


def read_all(folder: str | os.PathLike[str]) -> dict[str, Any]:
  """All records of a study's folder, by name.

  Raises:
    ValueError: a JSON file is damaged.
  """
  folder = pathlib.Path(folder)
  records = {name: json.loads(text) for name, text in _rows(folder).items()}
  for pattern in PATTERNS:
    for path in folder.glob(pattern):
      records[path.relative_to(folder).as_posix()] = json.loads(path.read_text())
  return dict(sorted(records.items()))


def pack(source: pathlib.Path, target: pathlib.Path):
  """Adds the records of `source` to the packed ones of `target`.

  Of two records with one name, that of `source` stays. The file of `target` is written
  whole or not at all, and only if a record changes.
  """
  before = read_all(target)
  records = dict(sorted((before | read_all(source)).items()))
  if records == before:
    return
  target.mkdir(parents=True, exist_ok=True)
  texts = [json.dumps(record, allow_nan=False) for record in records.values()]
  partial = target / f".{PACKED}.partial"
  table = pa.table({"name": list(records), "record": texts})
  # Statistics would repeat the longest texts, uncompressed.
  pq.write_table(
    table, partial, compression="zstd", use_dictionary=False, write_statistics=False
  )
  os.replace(partial, target / PACKED)


def _rows(folder: pathlib.Path) -> dict[str, str]:
  """The texts of packed records, by name."""
  path = folder / PACKED
  if not path.exists():
    return {}
  stat = path.stat()
  return _read_rows(path, stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=32)
def _read_rows(path: pathlib.Path, *_: int) -> dict[str, str]:
  """As `_rows`; the file's size and time of change are for the cache."""
  table = pq.read_table(path)
  return dict(zip(table["name"].to_pylist(), table["record"].to_pylist(), strict=True))
