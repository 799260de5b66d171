"""Documents that are read during training, with a position to resume from."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from packing import InputError
from packing.errors import short_repr
from pipeline.sources.document import Document, DocumentFields, select_fields


def check_stream(spec: str):
  """Checks that a stream can be opened, before any work.

  Raises:
    InputError: it is not `hf:NAME#SPLIT`, or the library datasets is not installed.
  """
  kind, _, name = spec.partition(":")
  if kind != "hf" or not name:
    raise InputError(f"There is no stream {short_repr(spec)}; expected hf:NAME#SPLIT.")
  if importlib.util.find_spec("datasets") is None:
    raise InputError(f"{spec} needs the library datasets: pip install datasets.")


def open_stream(spec: str) -> Iterable[Mapping[str, Any]]:
  """The records of `hf:NAME#SPLIT`, a Hugging Face dataset; NAME may be a folder.

  Raises:
    InputError: there is no such stream.
  """
  check_stream(spec)
  import datasets

  name, _, split = spec.removeprefix("hf:").partition("#")
  try:
    return datasets.load_dataset(name, split=split or "train", streaming=True)
  except Exception as error:  # of many kinds, from the hub or from files
    message = " ".join(str(error).split())
    raise InputError(f"hf:{name} cannot be opened: {message}") from error


class DocumentStream:
  """The documents of an iterable. Between two of them, `state` returns the position.

  Args:
    records: gives each document as a dict, in the same order each time. It resumes by its
      own `state_dict` and `load_state_dict`, as Hugging Face's datasets have them, or else
      by skipping the documents that were read.
    fields: what a task reads from them.
    name: for error messages.

  Example:
    >>> records = [{"text": "one"}, {"text": "two"}]
    >>> stream = DocumentStream(records, DocumentFields(("text",)))
    >>> next(stream.read()).fields
    {'text': 'one'}
    >>> resumed = DocumentStream(records, DocumentFields(("text",)))
    >>> resumed.restore(stream.state())
    >>> next(resumed.read()).fields
    {'text': 'two'}
  """

  def __init__(
    self,
    records: Iterable[Mapping[str, Any]],
    fields: DocumentFields,
    *,
    name: str = "the stream",
  ):
    self._records: Any = records
    self._fields, self._name, self._read = fields, name, 0
    self._has_state = hasattr(records, "state_dict")
    features = getattr(records, "features", None) or {}  # of Hugging Face's datasets
    kinds = {column: getattr(kind, "names", None) for column, kind in features.items()}
    self._class_names = {column: names for column, names in kinds.items() if names}

  def read(self) -> Iterator[Document]:
    """The documents after the position.

    Raises:
      InputError: a document cannot be used, or fewer are left than were read before.
    """
    records = iter(self._records)
    for number in range(0 if self._has_state else self._read):
      if next(records, None) is None:
        raise InputError(
          f"{self._name} ended after {number} documents; {self._read} were read before."
        )
    for values in records:
      self._read += 1
      where = f"{self._name}, record {self._read}"
      yield select_fields(dict(values), self._fields, where, self._class_names)

  def state(self) -> dict[str, Any]:
    """The position, as JSON values."""
    own = self._records.state_dict() if self._has_state else None
    return {"read": self._read, "stream": json.loads(json.dumps(own))}

  def restore(self, state: Any):
    """Continues from a position that `state` returned.

    Raises:
      InputError: it belongs to another kind of stream.
    """
    fits = isinstance(state, dict) and state.keys() == {"read", "stream"}
    if not fits or (state["stream"] is not None) != self._has_state:
      raise InputError(f"The state {short_repr(state)} needs another kind of stream.")
    self._read = state["read"]
    if self._has_state:
      self._records.load_state_dict(state["stream"])
