"""Documents from TensorFlow Datasets, without TensorFlow."""

from __future__ import annotations

import collections
import dataclasses
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from packing import InputError
from pipeline.sources.document import Document, DocumentFields, missing, select_fields

PARTITION_EXAMPLES = 65_536
_EXAMPLES = 64  # decoded at a time

SHARE_NONE = "Name splits that share none, such as train[:90%] and train[90%:]."
Slice = tuple[str, int, int]  # a file, its first example, and the one after the last


def shared_file(these: Iterable[Slice], others: Iterable[Slice]) -> str | None:
  """The name of a file of which both have some example; None if there is none."""
  spans = collections.defaultdict[str, list[tuple[int, int]]](list)
  for path, start, stop in others:
    spans[path].append((start, stop))
  for path, start, stop in these:
    if any(first < stop and start < last for first, last in spans[path]):
      return pathlib.Path(path).name
  return None


@dataclasses.dataclass(frozen=True)
class TfdsPartition:
  """Examples `start` to `stop` in a split of a dataset, prepared in a folder."""

  name: str
  folder: str
  split: str
  start: int
  stop: int
  fields: DocumentFields

  def inputs(self) -> list[tuple[str, int, int]]:
    """The files of the split; only the first partition of a split reports them."""
    if self.start:
      return []
    paths = _builder(self.folder).info.splits[self.split].filepaths
    stats = [(path.name, os.stat(path)) for path in paths]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]

  def slices(self) -> list[Slice]:
    """One of each file of the split.

    Only the first partition of a split reports them.
    """
    if self.start:
      return []
    found = _builder(self.folder).info.splits[self.split].file_instructions
    return [(one.filename, one.skip, one.skip + one.take) for one in found]

  def read(self) -> Iterator[Document]:
    examples = _data_source(self.folder, self.split)
    features = _builder(self.folder).info.features
    kinds = {column: getattr(kind, "names", None) for column, kind in features.items()}
    class_names = {column: names for column, names in kinds.items() if names}
    for start in range(self.start, self.stop, _EXAMPLES):
      numbers = range(start, min(start + _EXAMPLES, self.stop))
      try:
        found = examples.__getitems__(numbers)
      except (RuntimeError, ValueError, LookupError) as error:
        raise InputError(
          f"tfds:{self.name}#{self.split} cannot be read from example {start} on "
          f"({' '.join(str(error).split())[:200]}). Prepare it again."
        ) from error
      for number, example in zip(numbers, found, strict=True):
        where = f"tfds:{self.name}#{self.split}, example {number}"
        yield select_fields(_plain(example, where), self.fields, where, class_names)


def partitions(name: str, split: str, fields: DocumentFields) -> Iterator[TfdsPartition]:
  """The partitions of a split of a dataset.

  Args:
    name: the name in TFDS, such as `glue/cola` or `wikipedia/20230601.en`; or a folder
      with a prepared dataset. TFDS looks in `TFDS_DATA_DIR`.
    split: a name, or a slice of one such as `train[:10%]`.
    fields: what to read from each example.

  Raises:
    InputError: there is no such dataset or split; it is not prepared, or its format needs
      TensorFlow (the message gives the command that prepares it); or a field is missing.
  """
  examples = _data_source(name, split)
  builder = _builder(name)
  folder = os.path.abspath(builder.data_path)  # workers may have another TFDS_DATA_DIR
  features = builder.info.features
  for field in fields.required:
    if (column := fields.column(field)) not in features:
      raise missing(f"tfds:{name} has no", field, column, dict.fromkeys(features, ""))
  for start in range(0, len(examples), PARTITION_EXAMPLES):
    stop = min(start + PARTITION_EXAMPLES, len(examples))
    yield TfdsPartition(name, folder, split, start, stop, fields)


def _builder(name: str):
  try:
    import tensorflow_datasets as tfds
    import tensorflow_datasets.text
  except ImportError as error:
    raise InputError(f"Cannot import TFDS ({error}). Install requirements.txt.") from error
  try:
    if (pathlib.Path(name) / "dataset_info.json").is_file():
      return tfds.builder_from_directory(name)
    return tfds.builder(name, data_dir=os.environ.get("TFDS_DATA_DIR"))
  except tfds.core.DatasetNotFoundError as error:
    raise InputError(f"TFDS has no dataset {name!r}. Name yours as tfds:FOLDER.") from error
  except (ValueError, RuntimeError) as error:
    text = " ".join(str(error).split())[:300]
    raise InputError(f"tfds:{name} cannot be opened: {text}") from error


def _data_source(name: str, split: str):
  builder = _builder(name)
  kind = builder.info.file_format.value if builder.data_path.exists() else "nothing"
  if kind not in ("array_record", "parquet"):
    data_dir = builder.data_path.parents[2 if builder.builder_config else 1]
    raise InputError(
      f"{builder.data_path} holds {kind}, not array_record. Set TFDS_DATA_DIR, or run with "
      f"TensorFlow: tfds build {name} --file_format=array_record --data_dir={data_dir}."
    )
  try:
    return builder.as_data_source(split)
  except (ValueError, KeyError) as error:
    raise InputError(
      f"tfds:{name} has no split {split!r}; found {', '.join(builder.info.splits)}."
    ) from error


def _plain(value: Any, where: str) -> Any:
  """Turns bytes into text and NumPy's numbers into Python's, at every level."""
  if isinstance(value, bytes):
    try:
      return value.decode("utf-8")
    except UnicodeDecodeError as error:
      raise InputError(f"{where} is not UTF-8 ({error}). Prepare it again.") from error
  if isinstance(value, dict):
    return {name: _plain(part, where) for name, part in value.items()}
  if isinstance(value, np.ndarray):
    return _plain(value.tolist(), where)
  if isinstance(value, list | tuple):
    return [_plain(part, where) for part in value]
  return value.item() if isinstance(value, np.generic) else value
