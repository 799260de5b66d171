"""Examples to predict, without labels, read one by one from any source."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from packing import InputError
from packing.errors import short_repr
from pipeline.settings import DatasetSettings
from pipeline.sources import textfiles
from pipeline.sources.document import IDS, Document, DocumentFields
from pipeline.sources.partitions import open_source
from pipeline.tasks.encoder import Encoder
from pipeline.tasks.registry import Task, find_task
from pipeline.tokenizer import Tokenizer

STANDARD_INPUT = "-"
_LABELS = "label", "tags", "answers"  # fields that are not read


class Example(NamedTuple):
  """One example to predict.

  Attributes:
    id: from the source, or a number from 0 if the source has no ids.
    sequences: with the fields of the task's schema: one, or the windows of a question;
      none if a question's context is empty.
    where: its place in the source, for messages.
  """

  id: str
  sequences: list[Sequence]
  where: str


def read_examples(
  source: str,
  settings: DatasetSettings,
  tokenizer: Tokenizer,
  tally: collections.Counter[str] | None = None,
) -> Iterator[Example]:
  """Examples of a source, made as for training except for the labels.

  Args:
    source: a source for `open_source`; a text file with one example a line, where tabs
      separate the sentences of a pair and a blank line is an example too; or "-" for
      standard input: JSON lines if it begins with "{", otherwise lines of such text.
    settings: the settings of the dataset that the model was trained on. Their `columns`
      names fields of this source; `id=NAME` names the field with ids.
    tokenizer: the tokenizer of that dataset.
    tally: counts examples that were too long or truncated, as in a dataset's manifest.

  Raises:
    InputError: the task predicts nothing; there is no such source, or it lacks a field.
      While reading: an example is invalid, two questions have one id, or only some examples
      have an id.
  """
  task, settings = find_task(settings)
  if task.make_unlabelled is None:
    raise InputError(f"A model of {settings.task} gives no answers. Give another model.")
  fields = _fields(task, settings)
  if source == STANDARD_INPUT:
    documents = _standard_input(fields)
  else:
    partitions = open_source(source, fields)
    documents = itertools.chain.from_iterable(part.read() for part in partitions)
  tally = collections.Counter() if tally is None else tally
  return _examples(task, documents, Encoder(settings, tokenizer, tally))


def examples_of(
  sentences: Iterable[str], settings: DatasetSettings, tokenizer: Tokenizer
) -> Iterator[Example]:
  """Examples from texts in memory, each read like a line of a text file.

  Settings and errors are those of `read_examples`.
  """
  task, settings = find_task(settings)
  fields = _fields(task, settings)

  def document(sentence: str, where: str) -> Document:
    if not isinstance(sentence, str):  # refused later, with its field
      return Document({task.fields[0]: sentence}, where)
    return textfiles.split_line(sentence, where, fields)

  documents = (document(x, f"sentence {number}") for number, x in enumerate(sentences))
  return _examples(task, documents, Encoder(settings, tokenizer, collections.Counter()))


def _fields(task: Task, settings: DatasetSettings) -> DocumentFields:
  """The fields to read: ids, but no labels."""
  columns = [f"{f}={name}" for f, name in settings.column_names() if f not in _LABELS]
  fields = tuple(field for field in task.fields if field not in _LABELS)
  ids = tuple(field for field in IDS if field not in fields)
  visible = dataclasses.replace(task, fields=fields, optional=(*task.optional, *ids))
  return dataclasses.replace(
    visible.document_fields(dataclasses.replace(settings, columns=",".join(columns))),
    line_fields=task.line_fields,
  )


def _standard_input(fields: DocumentFields) -> Iterator[Document]:
  name = "standard input"
  lines = textfiles.numbered_lines(sys.stdin.buffer, name)
  head = []
  for entry in lines:
    head.append(entry)
    if entry[1].strip():
      break
  all_lines = itertools.chain(head, lines)
  if head and head[-1][1].lstrip().startswith("{"):
    return textfiles.split_json_lines(all_lines, name, fields)
  if head and _begins_array(head[-1][1]):
    raise InputError(
      f"{name} holds a JSON array; expected JSON lines. Convert it with jq -c '.[]'."
    )
  if head and not fields.line_fields:
    raise InputError(
      f"{name}, line {head[-1][0]}: expected JSON lines with {', '.join(fields.required)}."
    )
  return textfiles.split_sentences(all_lines, name, fields)


def _begins_array(line: str) -> bool:
  """Whether a line is a JSON array of objects or texts, or its beginning."""
  text = "".join(line.split())
  if text == "[" or text.startswith("[{"):
    return True
  with contextlib.suppress(ValueError, RecursionError):
    values = json.loads(line)
    return isinstance(values, list) and any(isinstance(x, str | list) for x in values)
  return text.startswith('["') and text.endswith('",')


def _examples(
  task: Task, documents: Iterator[Document], encoder: Encoder
) -> Iterator[Example]:
  assert task.make_unlabelled is not None
  seen, have_ids = set(), None
  made = task.make_unlabelled(documents, encoder)
  for number, (document, sequences) in enumerate(made):
    given = _id(document)
    if have_ids not in (None, given is not None):
      has = "has no id, but those before it have" if have_ids else "is the first with an id"
      raise InputError(f"{document.where} {has}. Give every example an id, or none.")
    have_ids = given is not None
    name = str(number) if given is None else given
    if "id" in task.fields:  # answers are stored by id
      if name in seen:
        raise InputError(f"{document.where}: the id {short_repr(name)} occurs twice.")
      seen.add(name)
    yield Example(name, sequences, document.where)


def _id(document: Document) -> str | None:
  for field in IDS:
    if (value := document.fields.get(field)) is not None:
      return str(value)
  return None
