"""Sequences made from a stream of documents as they arrive."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from packing.errors import check
from pipeline.batches.online import Gathered
from pipeline.settings import DatasetSettings
from pipeline.sources.document_shards import TRAIN, DocumentShard
from pipeline.sources.streams import DocumentStream, open_stream
from pipeline.store import SequenceStore, StoredSequence
from pipeline.tasks.encoder import Encoder
from pipeline.tasks.registry import TASKS, Task, find_task
from pipeline.tokenizer import Tokenizer

TOGETHER = 32  # documents among which random next segments are drawn, or that are joined


def _streams(task: Task) -> bool:
  """Whether a task's sequences are `StoredSequence`s, as in a stream."""
  return task.schema.names == [*StoredSequence._fields]


class StreamedSequences:
  """A `Reader` of sequences made from documents as they arrive.

  Documents are read in groups if the task needs several at once, and are used once,
  whatever `dupe_factor` is. Random choices depend on the seed and on the document's number.

  Args:
    stream: `hf:NAME#SPLIT`, or documents as dicts; see `DocumentStream`.
    settings: how documents become sequences.
    tokenizer: the tokenizer of their texts.

  Raises:
    InputError: there is no such stream; or a sequence of the task is more than tokens and
      a label.
  """

  def __init__(
    self,
    stream: str | Iterable[Mapping[str, Any]],
    settings: DatasetSettings,
    tokenizer: Tokenizer,
  ):
    self._task, settings = find_task(dataclasses.replace(settings, dupe_factor=1))
    known = [name for name, task in TASKS.items() if _streams(task)]
    expected = f"one of {', '.join(known)} with a stream"
    check(_streams(self._task), "task", settings.task, expected)
    self._encoder = Encoder(settings, tokenizer)
    fields = self._task.document_fields(settings)
    if isinstance(stream, str):
      self._documents = DocumentStream(open_stream(stream), fields, name=stream)
    else:
      self._documents = DocumentStream(stream, fields)
    joins = self._task.min_documents > 1 or settings.cross_documents
    self._together = TOGETHER if joins else 1
    self._groups = self._sequences = 0
    self._number, self._count = 0, 1  # of the part

  @property
  def num_shards(self) -> int | None:
    """How many shards the stream has, such as files; None if it does not say."""
    return self._documents.num_shards

  def part(self, number: int, count: int) -> StreamedSequences:
    """One of `count` readers, from 0, which together read each document once.

    A stream of Hugging Face's datasets is shared out by its shards, if it has enough of
    them; otherwise, each part reads all documents and uses every `count`-th.

    Raises:
      InputError: the stream can be read only once.
    """
    other = copy.copy(self)
    other._documents = self._documents.part(number, count)
    other._number, other._count = number, count
    return other

  def read(self) -> Iterator[list[dict[str, Any]]]:
    documents = self._documents.read()
    while group := list(itertools.islice(documents, self._together)):
      # Numbers are those of no other part: random choices depend on them.
      shard = DocumentShard(TRAIN, 0, self._groups * self._count + self._number, group)
      self._groups += 1
      examples = []
      for sequence in self._task.make_sequences(shard, self._encoder):
        example = dict(zip(StoredSequence._fields, sequence, strict=True))
        example["input_ids"] = np.asarray(example["input_ids"], np.int32)
        number = self._sequences * self._count + self._number
        examples.append(example | {"number": number})
        self._sequences += 1
      yield examples

  def length(self, example: dict[str, Any]) -> int:
    return len(example["input_ids"])

  def gather(self, examples: list[dict[str, Any]]) -> Gathered:
    numbers = np.array([example["number"] for example in examples], np.int64)
    fields = StoredSequence._fields
    sequences = [StoredSequence(*(x[name] for name in fields)) for x in examples]
    store = SequenceStore.from_sequences(sequences, self._task.schema)
    return Gathered(store, np.arange(len(store)), numbers, np.zeros(len(store), np.int64))

  def state(self) -> dict[str, Any]:
    return {
      "documents": self._documents.state(),
      "groups": self._groups,
      "sequences": self._sequences,
    }

  def restore(self, state: Any):
    fits = isinstance(state, dict) and state.keys() == self.state().keys()
    check(fits, "The reader's state", state, "one of the same data.stream")
    self._documents.restore(state["documents"])
    self._groups, self._sequences = state["groups"], state["sequences"]
