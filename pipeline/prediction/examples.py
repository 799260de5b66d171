"""Examples without labels, to be answered: of any source, one by one, in its order."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from packing import InputError
from packing.errors import short_repr
from pipeline.settings import DatasetSettings
from pipeline.sources import textfiles
from pipeline.sources.partitions import Document, DocumentFields, open_source
from pipeline.store import StoredSequence
from pipeline.tasks import glue, squad
from pipeline.tasks.table import Task, find_task
from pipeline.tokenizer import Tokenizer

STANDARD_INPUT = "-"
_HIDDEN = "label", "answers"  # fields that are not looked at
_IDS = "id", "idx"
_EXAMPLES = 64  # tokenised at a time


class Example(NamedTuple):
  """What is to be answered.

  Attributes:
    id: what the source calls it; its number from 0 where the source has no names.
    rows: of the task's schema: one, or the windows of a question; none where a question's
      context is empty.
    where: it stands, for messages.
  """

  id: str
  rows: list[Sequence]
  where: str


def read_examples(
  source: str,
  settings: DatasetSettings,
  tokenizer: Tokenizer,
  tally: collections.Counter[str] | None = None,
) -> Iterator[Example]:
  """Examples of a source, as `settings.task` makes them for training but for the labels.

  Args:
    source: as `sources.open_source` takes it; a text file, an example a line, the
      sentences of a pair separated by a tab, a blank line an example too; or "-", standard
      input, JSON lines if it begins with "{" and such text otherwise.
    settings: of the dataset that the model was trained on. Their columns name those of
      this source, `id=NAME` what an example is called.
    tokenizer: of that dataset.
    tally: to count in, as in the manifest of a dataset, what was too long or truncated.

  Raises:
    InputError: the task asks nothing; no such source, or one without these fields. While
      it is read: an example that is none, two questions of one id.
  """
  tally = collections.Counter() if tally is None else tally
  task, settings = find_task(settings)
  if task.score is None:
    raise InputError(
      f"A model of {settings.task} answers nothing. Expected classification, regression, "
      "squad or a task of GLUE."
    )
  wanted = _wanted(task, settings)
  if source == STANDARD_INPUT:
    documents = _standard_input(wanted)
  else:
    partitions = open_source(source, wanted)
    documents = itertools.chain.from_iterable(part.read() for part in partitions)
  make = _questions if settings.task == "squad" else _sentences
  return make(documents, settings, tokenizer, tally)


def _wanted(task: Task, settings: DatasetSettings) -> DocumentFields:
  """What to read: no labels, and names of the examples."""
  columns = [f"{f}={name}" for f, name in settings.column_names() if f not in _HIDDEN]
  fields = tuple(field for field in task.fields if field not in _HIDDEN)
  ids = tuple(field for field in _IDS if field not in fields)
  visible = dataclasses.replace(task, fields=fields, optional=(*task.optional, *ids))
  wanted = visible.wanted(dataclasses.replace(settings, columns=",".join(columns)))
  if settings.task == "squad":
    return wanted
  return dataclasses.replace(wanted, line_fields=glue.fields_and_labels(settings)[0])


def _standard_input(wanted: DocumentFields) -> Iterator[Document]:
  name = "standard input"
  lines = textfiles.numbered_lines(sys.stdin.buffer, name)
  head = []
  for entry in lines:
    head.append(entry)
    if entry[1].strip():
      break
  every = itertools.chain(head, lines)
  if head and head[-1][1].lstrip().startswith("{"):
    return textfiles.parse_json_lines(every, name, wanted)
  if head and not wanted.line_fields:
    raise InputError(
      f"{name}, line {head[-1][0]} is {short_repr(head[-1][1])}; expected JSON lines with "
      f"{', '.join(wanted.required)}."
    )
  return textfiles.parse_sentences(every, name, wanted)


def _sentences(
  documents: Iterable[Document], settings: DatasetSettings, tokenizer: Tokenizer, tally
) -> Iterator[Example]:
  numbered = enumerate(documents)
  while some := list(itertools.islice(numbered, _EXAMPLES)):
    examples = [document for _, document in some]
    encoded = glue.encode(examples, settings, tokenizer, tally)
    for (number, document), (input_ids, first_type) in zip(some, encoded, strict=True):
      rows: list[Sequence] = [StoredSequence(input_ids, first_type, 0)]
      yield Example(_id(document, number), rows, document["where"])


def _questions(
  documents: Iterable[Document], settings: DatasetSettings, tokenizer: Tokenizer, tally
) -> Iterator[Example]:
  seen = set()
  for number, document in enumerate(documents):
    squad.check_texts(document)
    name, where = _id(document, number), document["where"]
    if name in seen:
      raise InputError(
        f"{where}: the id {short_repr(name)} is that of a question before; expected one "
        "of its "
        "own for each, since answers go by it."
      )
    seen.add(name)
    windows = squad.windows(document, [], None, settings, tokenizer, tally)
    yield Example(name, list(windows), where)


def _id(document: Document, number: int) -> str:
  for field in _IDS:
    value = document.get(field)
    if value is None:
      continue
    if not isinstance(value, str | int) or isinstance(value, bool):
      raise InputError(
        f"{document['where']}: {field} is {short_repr(value)}; expected a text or a number."
      )
    return str(value)
  return str(number)
