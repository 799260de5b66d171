"""Sources of documents, by name.

| source                          | documents                                            |
|---------------------------------|------------------------------------------------------|
| `stdlib`, `stdlib:FOLDER`       | docstrings and help topics of a Python installation  |
| `tfds:NAME`, `tfds:FOLDER`      | a TensorFlow Dataset, prepared as array_record       |
| a file, a folder or a glob      | by suffix: .txt, .jsonl, .csv, .tsv, .parquet,       |
|                                 | .arrow, .json (the layout of SQuAD), .conll; text    |
|                                 | formats may be compressed: .gz, .bz2, .zst           |

`#SPLIT` at the end names a split of a TensorFlow Dataset, or of a Hugging Face folder with
several; the default is `train`. Several sources are separated by commas, or a list in JSON
if a name has a comma, and are read in this order. A source is read in partitions, one after
the other, each as a stream: memory does not grow with the input.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import glob
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import Protocol

from packing import InputError
from pipeline.sources import compressed, stdlib, tables, textfiles, tfds
from pipeline.sources.document import Document, DocumentFields

LIBRARIES = "stdlib", "tfds"  # whose sources have no files to name
PARTITION_BYTES = 64_000_000  # smaller files are read together
_SUFFIXES = {
  ".arrow": "table",
  ".parquet": "table",
  ".jsonl": "jsonl",
  ".ndjson": "jsonl",
  ".csv": "csv",
  ".tsv": "tsv",
  ".json": "squad",
  ".conll": "columns",
  ".txt": "text",
  ".text": "text",
}
# Read as text if the file is named, but not in a folder: notes, and WikiText's files.
_TEXT_IF_NAMED = (".md", ".raw", ".tokens", "")
_SPLIT = "(train(?:ing)?|test|val(?:id(?:ation)?)?|dev|eval)"
_BEGINS_WITH_SPLIT = re.compile(rf"{_SPLIT}(?=[-_.]|$)", re.IGNORECASE)
# As Hugging Face names them: squad-train.arrow, c4-train.00000-of-01024.json.gz.
_ENDS_WITH_SPLIT = re.compile(
  rf".*[-_.]{_SPLIT}(?=(?:[-_.]\d+(?:-of-\d+)?)*(?:\.[a-z]\w*)*$)", re.IGNORECASE
)


class Partition(Protocol):
  """A part of a source that is read as one stream; can be pickled."""

  def inputs(self) -> list[tuple[str, int, int]]:
    """Name, bytes and modification time of each file that it reads."""

  def read(self) -> Iterator[Document]: ...


@dataclasses.dataclass(frozen=True)
class FilePartition:
  """Files of one kind, one after the other."""

  kind: str
  paths: tuple[pathlib.Path, ...]
  fields: DocumentFields

  def inputs(self) -> list[tuple[str, int, int]]:
    return list(map(_file_entry, self.paths))

  def declared_classes(self, field: str) -> set[tuple[str, ...]]:
    """The names of classes that its files declare for a field."""
    if self.kind != "table":
      return set()
    found = (tables.declared_classes(path, self.fields, field) for path in self.paths)
    return {tuple(names) for names in found if names}

  def read(self) -> Iterator[Document]:
    for path in self.paths:
      if self.kind == "squad":
        yield from textfiles.read_squad(path, self.fields)
      elif self.kind in ("text", "jsonl", "columns"):
        split = textfiles.split_json_lines
        if self.kind == "text":
          by_line = self.fields.line_fields
          split = textfiles.split_sentences if by_line else textfiles.split_text
        elif self.kind == "columns":
          split = textfiles.split_columns
        yield from split(textfiles.lines_of(path), str(path), self.fields)
      else:
        yield from tables.read_table(path, self.fields)


@dataclasses.dataclass(frozen=True)
class LibraryPartition:
  """The standard library's text; one stream, so that repeated sentences are dropped."""

  root: str

  def inputs(self) -> list[tuple[str, int, int]]:
    return list(map(_file_entry, stdlib.source_files(self.root or None)))

  def read(self) -> Iterator[Document]:
    paths = stdlib.source_files(self.root or None)
    for number, sentences in enumerate(stdlib.standard_library_documents(paths)):
      yield Document({"sentences": sentences}, f"stdlib, document {number}")


def open_source(spec: str, fields: DocumentFields) -> list[Partition]:
  """Finds a source and splits it into partitions, without reading it.

  Args:
    spec: names the source; see the top of this file.
    fields: to read from each document.

  Raises:
    InputError: there is no such source, or it cannot have these fields.
  """
  names = source_names(spec)
  if len(names) > 1:
    parts = [part for name in names for part in open_source(name, fields)]
    times = collections.Counter(
      path for part in parts if isinstance(part, FilePartition) for path in part.paths
    )
    if twice := [path for path, number in times.items() if number > 1]:
      raise InputError(f"{twice[0]} is in several of the sources. Name it once.")
    if len(set(names)) < len(names):
      raise InputError(f"{spec} names a source twice. Name it once.")
    slices: list[tfds.Slice] = []
    for part in parts:
      if isinstance(part, tfds.TfdsPartition):
        these = part.slices()
        if shared := tfds.shared_file(these, slices):
          raise InputError(
            f"Examples of {shared} are in several of the sources. {tfds.SHARE_NONE}"
          )
        slices += these
    return parts
  spec = names[0]
  kind, _, rest = spec.partition(":")
  if kind == "tfds" and rest:
    name, split = _split_of(rest)
    return list(tfds.partitions(name, split or "train", fields))
  if kind == "stdlib":
    if fields.required != ("text",):
      raise InputError(f"stdlib is text; the task needs {', '.join(fields.required)}.")
    stdlib.source_files(rest or None)
    return [LibraryPartition(rest and os.path.abspath(rest))]
  files = _find_files(spec)
  kinds = sorted({_kind(path) for path in files})
  if len(kinds) > 1:
    raise InputError(
      f"{spec} mixes {' and '.join(kinds)} files. Name each kind by a glob, as several "
      "sources: 'FOLDER/*.txt,FOLDER/*.jsonl'."
    )
  if kinds == ["text"] and "tags" in fields.required:
    raise InputError(f"{files[0]} is text. Rename it to .conll if its lines end in tags.")
  if kinds == ["columns"] and fields.required[0] != "tokens":
    raise InputError(f"{files[0]} holds words with tags, for the task tagging. Give text.")
  if kinds == ["text"] and fields.required != ("text",) and not fields.line_fields:
    raise InputError(f"{files[0]} is text. Give a table with {', '.join(fields.required)}.")
  if kinds == ["squad"] and "context" not in fields.required:
    raise InputError(
      f"{files[0]} is read as SQuAD's JSON. Give JSON lines as .jsonl; jq -c '.[]' makes "
      "them of an array."
    )
  if kinds[0] in ("table", "csv", "tsv"):
    for path in files:
      tables.check_columns(path, fields)
  return [  # workers may have another working directory
    FilePartition(
      kinds[0], tuple(pathlib.Path(os.path.abspath(path)) for path in group), fields
    )
    for group in _groups(files)
  ]


def source_names(spec: str) -> list[str]:
  """The sources in a specification: one, several with commas, or a list in JSON.

  Example:
    >>> source_names("a.txt, b/*.jsonl"), source_names('["a,b.txt", "c.txt"]')
    (['a.txt', 'b/*.jsonl'], ['a,b.txt', 'c.txt'])
  """
  if os.path.exists(spec) or "," not in spec:
    return [spec]
  with contextlib.suppress(ValueError):
    if isinstance(listed := json.loads(spec), list) and listed:
      return list(map(str, listed))
  if glob.glob(spec, recursive=True):  # whose names have a comma
    return [spec]
  return [name for name in map(str.strip, spec.split(",")) if name] or [spec]


def source_files(spec: str) -> list[pathlib.Path]:
  """The files that a source reads, in order, without those of libraries.

  Raises:
    InputError: there is no such file, folder or glob.
  """
  names = source_names(spec)
  named = [x for x in names if x.partition(":")[0] not in LIBRARIES]
  return [path for name in named for path in _find_files(name)]


def check_splits(spec: str, *, trained: bool):
  """Refuses a folder that has files or folders of several splits, by their names.

  A glob that finds the same files is taken at its word.

  Args:
    spec: the source.
    trained: whether it is the source to train on.

  Raises:
    InputError: names two of the files or folders, one split alone, and all files.
  """
  for name in source_names(spec):
    if not os.path.isdir(name):
      continue
    firsts = collections.defaultdict[pathlib.Path, dict[str, pathlib.Path]](dict)
    files = _files_of(name)
    for path in files:
      for entry in (path, *path.parents):
        if entry == pathlib.Path(name):
          break
        if found := _split_in(entry):
          split = found[1].lower()
          split = next((x for x in ("train", "val") if split.startswith(x)), split)
          firsts[entry.parent].setdefault(split, entry)
    for folder, splits in firsts.items():
      if len(splits) < 2:
        continue
      one, other = [splits[x] for x in sorted(splits, key=lambda x: x != "train")][:2]
      chosen = other if "train" in splits and not trained else one
      if chosen.is_file() and (found := _split_in(chosen)):
        chosen = folder / f"{found[0]}*"
      suffixes = files[0].suffixes[-2 if compressed.codec(files[0]) else -1 :]
      everything = pathlib.Path(name, "**", f"*{''.join(suffixes)}")
      raise InputError(
        f"{name} holds several splits, such as {one.name} and {other.name}. Name one: "
        f"'{chosen}'. If they are not splits, name all files: '{everything}'."
      )


def _split_in(path: pathlib.Path) -> re.Match[str] | None:
  """What a file or a folder is called up to its split. A text may be about a test."""
  found = _BEGINS_WITH_SPLIT.match(path.name)
  kind = _SUFFIXES.get(compressed.plain_suffix(path), "text")
  return found or (_ENDS_WITH_SPLIT.match(path.name) if kind != "text" else None)


def source_inputs(spec: str) -> list[tuple[str, int, int]]:
  """Name, bytes and modification time of each file of a source, without opening it.

  They are those of the partitions of `open_source`, also where that refuses the files.

  Raises:
    InputError: there is no such file, folder or glob; or one of `LIBRARIES` has no such
      source.
  """
  entries: list[tuple[str, int, int]] = []
  for name in source_names(spec):
    kind, _, rest = name.partition(":")
    if kind == "tfds":
      for part in open_source(name, DocumentFields(())):
        entries += part.inputs()
    elif kind == "stdlib":
      entries += LibraryPartition(rest).inputs()
    else:
      entries += map(_file_entry, _files_of(name))
  return entries


def fingerprint(inputs: Iterable[tuple[str, int, int]]) -> dict:
  """The number and bytes of a source's files, and two digests.

  `sha256` covers names and sizes; `version` covers modification times too.

  Args:
    inputs: name, bytes and modification time of each file.
  """
  entries = list(inputs)
  names = json.dumps([entry[:2] for entry in entries]).encode()
  return {
    "files": len(entries),
    "bytes": sum(size for _, size, _ in entries),
    "sha256": hashlib.sha256(names).hexdigest(),
    "version": hashlib.sha256(json.dumps(entries).encode()).hexdigest(),
  }


def _file_entry(path: pathlib.Path) -> tuple[str, int, int]:
  stat = path.stat()
  return path.name, stat.st_size, stat.st_mtime_ns


def _kind(path: pathlib.Path) -> str:
  suffix = compressed.plain_suffix(path)
  if suffix in _TEXT_IF_NAMED:
    return "text"
  if suffix not in _SUFFIXES:
    raise InputError(f"{path} ends in {suffix!r}; expected {', '.join(sorted(_SUFFIXES))}.")
  if _SUFFIXES[suffix] == "table" and suffix != path.suffix.lower():
    raise InputError(f"{path} is a compressed {suffix} file. Expand it.")
  return _SUFFIXES[suffix]


def _split_of(spec: str) -> tuple[str, str]:
  if os.path.exists(spec):  # a name may have a #
    return spec, ""
  name, _, split = spec.rpartition("#") if "#" in spec else (spec, "", "")
  return name, split


def _find_files(spec: str) -> list[pathlib.Path]:
  files = _files_of(spec)
  names = set(files)
  for path in files:
    if compressed.codec(path) and path.with_suffix("") in names:
      raise InputError(f"{path} is there uncompressed, too. Remove one of them.")
  return files


def _files_of(spec: str) -> list[pathlib.Path]:
  name, split = _split_of(spec)
  path = pathlib.Path(name)
  if name and path.is_dir():  # "" would be the working directory
    return _files_of_folder(path, split)
  # A pattern such as **/**/*.txt finds a file several times.
  found = [name] if path.is_file() else set(glob.glob(name, recursive=True))
  files = sorted(path for path in map(pathlib.Path, found) if path.is_file())
  if not files:
    hint = ""
    if name.startswith("hf:"):
      hint = " A stream hf:NAME goes to data.stream of a run (docs/batches.md)."
    raise InputError(
      f"There is no {name!r}; expected stdlib, a file, folder, glob or tfds:NAME.{hint}"
    )
  if split:
    raise InputError(f"{name} has no splits; found #{split}. Leave it out.")
  return files


def _files_of_folder(folder: pathlib.Path, split: str) -> list[pathlib.Path]:
  if (folder / "dataset_dict.json").is_file():  # Hugging Face, several splits
    names = sorted(p.name for p in folder.iterdir() if (p / "state.json").is_file())
    split = split or "train"
    if split not in names:
      raise InputError(
        f"{folder} has no split {split!r}; found {', '.join(names) or 'none'}. Name one."
      )
    folder, split = folder / split, ""
  if split:
    raise InputError(f"{folder} has no splits; found #{split}. Leave it out.")
  files = sorted(
    path
    for path in folder.rglob("*")
    if path.is_file()
    and compressed.plain_suffix(path) in _SUFFIXES
    # No results that Hugging Face caches beside its data,
    and not (path.suffix == ".arrow" and path.name.startswith("cache-"))
    # nor files in hidden folders, such as .ipynb_checkpoints.
    and not any(part.startswith(".") for part in path.relative_to(folder).parts)
  )
  # JSON files beside other data are metadata, such as dataset_info.json.
  data = [path for path in files if compressed.plain_suffix(path) != ".json"] or files
  if not data:
    raise InputError(f"{folder} has no {', '.join(sorted(_SUFFIXES))} file. Use a glob.")
  return data


def _groups(files: list[pathlib.Path]) -> Iterator[list[pathlib.Path]]:
  """Groups of consecutive files, each of about PARTITION_BYTES."""
  group: list[pathlib.Path] = []
  size = 0
  for path in files:
    group.append(path)
    size += compressed.size(path)
    if size >= PARTITION_BYTES:
      yield group
      group, size = [], 0
  if group:
    yield group
