"""Documents that are read during training, with a position to resume from."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from packing import InputError
from packing.errors import short_repr
from packing.online.stream import is_hugging_face
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
    self._number, self._count = 0, 1  # of the part, if the records are not shared out
    features = getattr(records, "features", None) or {}  # of Hugging Face's datasets
    kinds = {column: getattr(kind, "names", None) for column, kind in features.items()}
    self._class_names = {column: names for column, names in kinds.items() if names}

  @property
  def num_shards(self) -> int | None:
    """How many shards the records have, such as files; None if they do not say."""
    return getattr(self._records, "num_shards", None)

  def part(self, number: int, count: int) -> DocumentStream:
    """One of `count` streams, from 0, which together have each document once.

    Records of Hugging Face's datasets are shared out by their shards, if there are enough.
    Otherwise, each stream reads all records and has every `count`-th of them.

    Raises:
      InputError: the records can be read only once.
    """
    if count == 1:
      return copy.copy(self)
    other = copy.copy(self)
    other._name = f"{self._name}, part {number} of {count}"
    if is_hugging_face(self._records):
      from datasets.distributed import split_dataset_by_node

      strategy = "shards" if self._records.num_shards >= count else "examples"
      other._records = split_dataset_by_node(
        self._records, rank=number, world_size=count, strategy=strategy
      )
    elif self._has_state or isinstance(self._records, Iterator):
      raise InputError(
        f"{self._name} is a {type(self._records).__name__}, which only one process can "
        "read. Give a datasets.IterableDataset, or a list or other iterable that starts "
        "again each time it is read."
      )
    else:
      other._number, other._count = number, count
    return other

  def read(self) -> Iterator[Document]:
    """The documents after the position.

    Raises:
      InputError: the records cannot be read, a document cannot be used, or fewer are left
        than were read before.
    """
    records = itertools.islice(self._records, self._number, None, self._count)
    for number in range(0 if self._has_state else self._read):
      if next(records, None) is None:
        raise InputError(
          f"{self._name} ended after {number} documents; {self._read} were read before."
        )
    while (values := self._next(records)) is not None:
      self._read += 1
      where = f"{self._name}, record {self._read}"
      yield select_fields(dict(values), self._fields, where, self._class_names)

  def _next(self, records: Iterator[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    try:
      return next(records, None)
    except OSError:  # the disk or the network fails now
      raise
    except Exception as error:  # of many kinds, from a library or a broken file
      message = " ".join(str(error).split())
      raise InputError(
        f"{self._name} cannot be read after record {self._read}: {message[:500]}"
      ) from error

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
