"""Documents that arrive while they are read, with a position to resume from.

| stream         | documents                                                            |
|----------------|----------------------------------------------------------------------|
| `-`            | JSON lines on standard input; to resume, send all from the start      |
| a folder       | lines of its .jsonl files in order of name; waits for more lines, and |
|                | for more files, whose names must sort after those already read        |
| `hf:NAME#SPLIT`| a Hugging Face dataset, streamed; NAME may be a folder                |
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any, Protocol

from packing import InputError
from packing.errors import check_integer, short_repr
from pipeline.sources.document import Document, DocumentFields, select_fields
from pipeline.sources.textfiles import numbered_lines, split_json_lines

SUFFIXES = (".jsonl", ".ndjson")
POLL = 0.2  # seconds between checks of a folder


class DocumentStream(Protocol):
  """Documents in order. Between two of them, `state` returns the position."""

  def read(self) -> Iterator[Document]: ...

  def state(self) -> Any: ...

  def restore(self, state: Any): ...


def check_stream(spec: str):
  """Checks that a stream exists, before any work.

  Raises:
    InputError: there is no such stream.
  """
  kind, _, name = spec.partition(":")
  if kind == "hf" and name:
    if importlib.util.find_spec("datasets") is None:
      raise InputError(
        f"{spec} needs the library datasets, which is not installed. Install it with: pip "
        "install datasets."
      )
  elif spec != "-" and not pathlib.Path(spec).is_dir():
    raise InputError(
      f"There is no stream {short_repr(spec)}; expected - for standard input, a folder of "
      ".jsonl files, or hf:NAME#SPLIT."
    )


def open_stream(spec: str, fields: DocumentFields) -> DocumentStream:
  """Finds a stream; see the top of this file.

  Raises:
    InputError: there is no such stream.
  """
  check_stream(spec)
  if spec == "-":
    return StandardInput(fields)
  if spec.startswith("hf:"):
    return HuggingFace(spec.removeprefix("hf:"), fields)
  return GrowingFolder(pathlib.Path(spec), fields)


class StandardInput:
  """One JSON object a line."""

  def __init__(self, fields: DocumentFields):
    self._fields, self._lines = fields, 0

  def read(self) -> Iterator[Document]:
    skipped, number = self._lines, 0
    # Python closes sys.stdin when it ends, and aborts if a thread is still reading from it.
    with open(sys.stdin.fileno(), "rb", closefd=False) as file:
      for number, line in numbered_lines(file, "standard input"):
        if number > skipped:
          self._lines = number
          yield from split_json_lines([(number, line)], "standard input", self._fields)
    if number < skipped:
      raise InputError(
        f"Standard input ended at line {number}, but {skipped} lines were read before. "
        "Send all of them again, and new ones after them."
      )

  def state(self) -> int:
    return self._lines

  def restore(self, state: Any):
    self._lines = check_integer("The position in standard input", state, at_least=0)


class GrowingFolder:
  """One JSON object a line, in files that are read in order of name.

  The last line of a file is read once it has a line end, or once a file with a later name
  exists. Lines that are added to a file after a later one is being read are ignored.
  """

  def __init__(self, folder: pathlib.Path, fields: DocumentFields):
    self._folder, self._fields = folder, fields
    self._name, self._offset, self._line, self._done = "", 0, 0, 0
    self._before: set[str] | None = set()  # the files already read; None if unknown

  def state(self) -> dict[str, Any]:
    return {
      "file": self._name,
      "offset": self._offset,
      "line": self._line,
      "files_done": self._done,
    }

  def restore(self, state: Any):
    if not isinstance(state, dict) or state.keys() != self.state().keys():
      raise InputError(
        "The state belongs to another kind of stream; expected that of a folder."
      )
    self._name, self._offset = state["file"], state["offset"]
    self._line, self._done = state["line"], state["files_done"]
    self._before = None
    if self._name:
      path = self._folder / self._name
      size = path.stat().st_size if path.is_file() else 0
      if size < self._offset:
        raise InputError(
          f"{path} has {size:,} bytes, fewer than the {self._offset:,} already read; "
          "expected files that only grow. Restore it."
        )

  def _names(self) -> list[str]:
    names = sorted(path.name for path in self._folder.iterdir() if path.suffix in SUFFIXES)
    if not self._name:
      return names
    if self._name not in names:
      raise InputError(
        f"{self._folder / self._name} was being read and is gone. Restore it, and keep the "
        "last file until a later one arrives."
      )
    before = {name for name in names if name < self._name}
    # Files already read may have been deleted, so a count alone would miss a new one.
    new = before - self._before if self._before is not None else set()
    if new or len(before) > self._done:
      raise InputError(
        f"{self._folder} has {len(before)} files before {self._name}, of which "
        f"{len(before - new) if new else self._done} were read; expected new files to sort "
        "after it. Rename them."
      )
    self._before = self._before or before
    return names

  def read(self) -> Iterator[Document]:
    while True:
      names = self._names()
      if not self._name:
        if not names:
          time.sleep(POLL)
          continue
        self._name = names[0]
      is_last = names[-1] <= self._name
      path = self._folder / self._name
      with path.open("rb") as file:
        file.seek(self._offset)
        for number, line in numbered_lines(
          file, str(path), after=self._line, is_growing=is_last
        ):
          self._offset, self._line = file.tell(), number
          yield from split_json_lines([(number, line)], str(path), self._fields)
      if is_last:
        time.sleep(POLL)
      else:
        if self._before is not None:
          self._before.add(self._name)
        self._name = next(name for name in names if name > self._name)
        self._offset, self._line, self._done = 0, 0, self._done + 1


class HuggingFace:
  """A dataset of the library `datasets`, streamed."""

  def __init__(self, name: str, fields: DocumentFields):
    import datasets

    name, _, split = name.partition("#")
    try:
      stream = datasets.load_dataset(name, split=split or "train", streaming=True)
    except Exception as error:  # of many kinds, from the hub or from files
      message = " ".join(str(error).split())
      raise InputError(f"hf:{name} cannot be opened: {message}") from error
    self._name, self._fields, self._stream, self._read = f"hf:{name}", fields, stream, 0

  def read(self) -> Iterator[Document]:
    for values in self._stream:
      self._read += 1
      yield select_fields(values, self._fields, f"{self._name}, record {self._read}")

  def state(self) -> dict[str, Any]:
    return {"read": self._read, "stream": json.loads(json.dumps(self._stream.state_dict()))}

  def restore(self, state: Any):
    if not isinstance(state, dict) or state.keys() != {"read", "stream"}:
      raise InputError(
        "The state belongs to another kind of stream; expected that of a dataset."
      )
    self._read = state["read"]
    self._stream.load_state_dict(state["stream"])
