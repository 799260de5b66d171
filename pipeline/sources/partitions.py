"""Where documents come from: text files, tables, TensorFlow Datasets, this Python.

A source is named by a string:

| source                          | documents                                            |
|---------------------------------|------------------------------------------------------|
| `stdlib`, `stdlib:FOLDER`       | docstrings and help topics of a Python               |
| `tfds:NAME`, `tfds:FOLDER`      | a TensorFlow Dataset, prepared as array_record       |
| a file, a folder or a glob      | by suffix: .txt, .jsonl, .csv, .tsv, .parquet,       |
|                                 | .arrow, .json (the layout of SQuAD)                  |

`#SPLIT` at the end names a split, of TensorFlow Datasets and of Hugging Face folders with
several; without it that is `train`. A source is read in partitions, one after the other,
each a stream: memory does not grow with the input.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any, Protocol

from packing import InputError
from pipeline.sources import stdlib, tables, textfiles, tfds

PARTITION_BYTES = 64_000_000  # smaller files are read together
_SUFFIXES = {
  ".arrow": "table",
  ".parquet": "table",
  ".jsonl": "jsonl",
  ".ndjson": "jsonl",
  ".csv": "csv",
  ".tsv": "tsv",
  ".json": "squad",
  ".txt": "text",
  ".text": "text",
}
# Text where a file is named, and left out of folders: notes, and WikiText's own names.
_TEXT_IF_NAMED = (".md", ".raw", ".tokens", "")

# Field: value, as the task names its fields, and "where"; and "read", the bytes it took
# from the source, where that is not the size of what it holds.
Document = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class DocumentFields:
  """What a task wants to know of each document.

  Attributes:
    required: names of fields.
    optional: names of fields that are taken where they are there.
    columns: what a field is called in the source, where that is something else.
    documents: how a text file splits into documents; see `textfiles.read_text`.
    line_fields: what a line of a text file holds instead, with tabs between them.
  """

  required: tuple[str, ...]
  optional: tuple[str, ...] = ()
  columns: tuple[tuple[str, str], ...] = ()
  documents: str = "blank-line"
  line_fields: tuple[str, ...] = ()

  def column(self, field: str) -> str:
    return dict(self.columns).get(field, field)


class Partition(Protocol):
  """A part of a source that is read as one stream; can be pickled."""

  @property
  def size(self) -> int:
    """Bytes, or documents where `counts` is "documents"; for the progress bar."""

  @property
  def counts(self) -> str: ...

  def inputs(self) -> list[tuple[str, int, int]]:
    """Name, bytes and modification time of what it reads."""

  def read(self) -> Iterator[Document]: ...


@dataclasses.dataclass(frozen=True)
class FilePartition:
  """Files of one kind, one after the other."""

  kind: str
  paths: tuple[str, ...]
  wanted: DocumentFields

  @property
  def counts(self) -> str:
    return "documents" if self.kind == "table" else "bytes"

  @property
  def size(self) -> int:
    if self.kind == "table":
      return sum(tables.num_rows(path) for path in self.paths)
    return sum(size for _, size, _ in self.inputs())

  def inputs(self) -> list[tuple[str, int, int]]:
    return [_stat(pathlib.Path(path)) for path in self.paths]

  def read(self) -> Iterator[Document]:
    read = {
      "text": textfiles.read_sentences if self.wanted.line_fields else textfiles.read_text,
      "jsonl": textfiles.read_json_lines,
      "csv": tables.read_table,
      "tsv": tables.read_table,
      "squad": textfiles.read_squad,
      "table": tables.read_table,
    }[self.kind]
    for path in self.paths:
      yield from read(pathlib.Path(path), self.wanted)


@dataclasses.dataclass(frozen=True)
class LibraryPartition:
  """The standard library's text; one stream, since no sentence is given twice."""

  root: str

  counts = "bytes"

  @property
  def size(self) -> int:
    return sum(size for _, size, _ in self.inputs())

  def inputs(self) -> list[tuple[str, int, int]]:
    return [_stat(path) for path in stdlib.source_files(self.root or None)]

  def read(self) -> Iterator[Document]:
    read = 0

    def opened() -> Iterator[pathlib.Path]:
      nonlocal read
      for path in stdlib.source_files(self.root or None):
        read += path.stat().st_size
        yield path

    for number, sentences in enumerate(stdlib.standard_library_documents(opened())):
      yield {"sentences": sentences, "where": f"stdlib, document {number}", "read": read}
      read = 0


def open_source(spec: str, wanted: DocumentFields) -> list[Partition]:
  """Finds a source and splits it into partitions, without reading it.

  Args:
    spec: names the source; see the top of this file.
    wanted: the fields of a document.

  Raises:
    InputError: there is no such source, or it cannot have these fields.
  """
  kind, _, rest = spec.partition(":")
  if kind == "tfds" and rest:
    name, split = _split_of(rest)
    return list(tfds.partitions(name, split or "train", wanted))
  if kind == "stdlib":
    if wanted.required != ("text",):
      raise InputError(
        f"Source stdlib has text; the task needs {', '.join(wanted.required)}. Name a "
        "source which has these."
      )
    stdlib.source_files(rest or None)
    return [LibraryPartition(rest and os.path.abspath(rest))]
  files = _find_files(spec)
  kinds = sorted({_kind(path) for path in files})
  if len(kinds) > 1:
    raise InputError(
      f"{spec} holds files of several kinds ({', '.join(kinds)}); expected one. Name one "
      "with a glob, such as 'FOLDER/*.jsonl'."
    )
  if kinds == ["text"] and wanted.required != ("text",) and not wanted.line_fields:
    raise InputError(
      f"{files[0]} is read as text; the task needs {', '.join(wanted.required)}. Give a "
      ".jsonl, .csv, .tsv, .parquet or .arrow file, or tfds:NAME."
    )
  if kinds == ["squad"] and "context" not in wanted.required:
    raise InputError(
      f"{files[0]} is read as SQuAD's JSON, for --task squad. For others give .jsonl, one "
      "object a line."
    )
  if kinds[0] in ("table", "csv", "tsv"):
    for path in files:
      tables.check(path, wanted)
  return [  # workers may have another working directory
    FilePartition(kinds[0], tuple(map(os.path.abspath, group)), wanted)
    for group in _groups(files)
  ]


def fingerprint(partitions: list[Partition]) -> dict:
  """What a source consists of: number and bytes of its files, and two digests.

  `sha256` is of names and sizes, `version` of the times of modification too.
  """
  inputs = [entry for partition in partitions for entry in partition.inputs()]
  names = json.dumps([entry[:2] for entry in inputs]).encode()
  return {
    "files": len(inputs),
    "bytes": sum(size for _, size, _ in inputs),
    "sha256": hashlib.sha256(names).hexdigest(),
    "version": hashlib.sha256(json.dumps(inputs).encode()).hexdigest(),
  }


def _stat(path: pathlib.Path) -> tuple[str, int, int]:
  found = path.stat()
  return path.name, found.st_size, found.st_mtime_ns


def _kind(path: pathlib.Path) -> str:
  suffix = path.suffix.lower()
  if suffix in _TEXT_IF_NAMED:
    return "text"
  if suffix not in _SUFFIXES:
    raise InputError(
      f"{path} ends in {suffix!r}; expected {', '.join(sorted(_SUFFIXES))}. Rename it to "
      ".txt if it is plain text, or convert it."
    )
  return _SUFFIXES[suffix]


def _split_of(spec: str) -> tuple[str, str]:
  if pathlib.Path(spec).exists():  # a name may hold a #
    return spec, ""
  name, _, split = spec.rpartition("#") if "#" in spec else (spec, "", "")
  return name, split


def _find_files(spec: str) -> list[pathlib.Path]:
  name, split = _split_of(spec)
  path = pathlib.Path(name)
  try:
    if path.is_dir():
      return _files_of_folder(path, split)
    if path.is_file():
      found = [path]
    else:
      found = sorted(
        p for p in map(pathlib.Path, glob.glob(name, recursive=True)) if p.is_file()
      )
  except (OSError, ValueError) as error:
    raise InputError(f"The source {name[:200]!r} cannot be read: {error}.") from error
  if not found:
    raise InputError(
      f"There is no data source {name!r}; expected a file, a folder, a glob which fits at "
      "least one file, 'stdlib', 'stdlib:FOLDER' or 'tfds:NAME'."
    )
  if split:
    raise InputError(f"{name} has no splits; found #{split}. Leave it out.")
  return found


def _files_of_folder(folder: pathlib.Path, split: str) -> list[pathlib.Path]:
  if (folder / "dataset_dict.json").is_file():  # Hugging Face, several splits
    names = sorted(p.name for p in folder.iterdir() if (p / "state.json").is_file())
    split = split or "train"
    if split not in names:
      raise InputError(
        f"{folder} has no split {split!r}; found {', '.join(names) or 'none'}. Name one: "
        f"{folder}#SPLIT."
      )
    folder, split = folder / split, ""
  if split:
    raise InputError(f"{folder} has no splits; found #{split}. Leave it out.")
  found = sorted(
    path
    for path in folder.rglob("*")
    if path.is_file()
    and path.suffix.lower() in _SUFFIXES
    and not path.name.startswith((".", "cache-"))
  )
  # A folder of data holds JSON that is no data, such as dataset_info.json.
  data = [path for path in found if path.suffix.lower() != ".json"] or found
  if not data:
    raise InputError(
      f"{folder} holds no file ending in {', '.join(sorted(_SUFFIXES))}. Name other text "
      "files with a glob, such as 'FOLDER/*.md'."
    )
  return data


def _groups(files: list[pathlib.Path]) -> Iterator[list[pathlib.Path]]:
  """Files that follow each other, together until they have PARTITION_BYTES."""
  group: list[pathlib.Path] = []
  size = 0
  for path in files:
    group.append(path)
    size += path.stat().st_size
    if size >= PARTITION_BYTES:
      yield group
      group, size = [], 0
  if group:
    yield group
