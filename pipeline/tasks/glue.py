"""Classes or numbers for one sentence or two: GLUE's nine tasks, and a user's own."""

from __future__ import annotations

import decimal
import fractions
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from packing import InputError
from packing.errors import short_repr
from pipeline.settings import DatasetSettings
from pipeline.sources.document import Document, text_in
from pipeline.sources.document_shards import DocumentShard
from pipeline.store import StoredSequence
from pipeline.tasks.encoder import Encoder

_TWO = "sentence1", "sentence2"
_ENTAILMENT = "entailment", "not_entailment"
_HIDDEN = " Test splits hide their labels; use another split."
_LARGEST = float(np.finfo(np.float32).max)  # the largest label of a regression
_EXAMPLES = 64  # tokenised at a time
_NUMBERS = int, float, decimal.Decimal, str
# Python's own numbers also have underscores, and any exponent, which takes memory.
_DECIMAL = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?"


class GlueTask(NamedTuple):
  """A task of the benchmark.

  Attributes:
    fields: the fields with its sentences, named as in TensorFlow Datasets.
    labels: its classes in the order of their numbers; () for a regression.
    metrics: the benchmark's metrics; the score is their mean.
  """

  fields: tuple[str, ...]
  labels: tuple[str, ...]
  metrics: tuple[str, ...] = ("accuracy",)


TASKS = {
  "cola": GlueTask(("sentence",), ("unacceptable", "acceptable"), ("matthews",)),
  "sst2": GlueTask(("sentence",), ("negative", "positive")),
  "mrpc": GlueTask(_TWO, ("not_equivalent", "equivalent"), ("f1", "accuracy")),
  "qqp": GlueTask(
    ("question1", "question2"), ("not_duplicate", "duplicate"), ("f1", "accuracy")
  ),
  "stsb": GlueTask(_TWO, (), ("pearson", "spearman")),  # similarity from 0 to 5
  "mnli": GlueTask(("premise", "hypothesis"), ("entailment", "neutral", "contradiction")),
  "qnli": GlueTask(("question", "sentence"), _ENTAILMENT),
  "rte": GlueTask(_TWO, _ENTAILMENT),
  "wnli": GlueTask(_TWO, ("not_entailment", "entailment")),
}
MULTI_LABEL = "multi_label"  # the task whose sentences have several classes, or none
OWN = "sentence", "sentence2"  # fields of a user's task; the second may be missing
# Columns of this name that are not read probably have the second sentence.
SIMILAR = r"(?i)(sentence|sent|text|question|document|doc)[ _-]?(2|b|two)"


def fields_and_labels(settings: DatasetSettings) -> tuple[tuple[str, ...], tuple[str, ...]]:
  """The sentence fields and the names of the classes; () for a regression."""
  if settings.task.startswith("glue/"):
    return TASKS[settings.task.removeprefix("glue/")][:2]
  return OWN, settings.label_names()


def labelled_sequences(shard: DocumentShard, encoder: Encoder) -> Iterator[StoredSequence]:
  """[CLS] A [SEP] or [CLS] A [SEP] B [SEP], one sequence for each document.

  Raises:
    InputError: a sentence or a label is invalid; or a sequence is too long, if the
      settings forbid it.
  """
  _, labels = fields_and_labels(encoder.settings)
  task_name, numbers = encoder.settings.task, dict[str, int]()
  for document, (sequence,) in unlabelled_sequences(shard.documents, encoder):
    check_listed(document, task_name)
    if task_name == MULTI_LABEL:
      listed, where = document.fields["label"], document.where
      found = parse_labels(listed, labels, numbers, field="label", where=where)
      _refuse_marks(listed, found, labels, where)
      label: float | list[bool] = [number in found for number in range(len(labels))]
    else:
      label = parse_label(document, labels)
      if task_name == "glue/stsb" and not 0 <= label <= 5:
        raise InputError(
          f"{document.where}: label is {short_repr(document.fields['label'])}; expected a "
          f"similarity from 0 to 5.{_HIDDEN if label == -1 else ''}"
        )
    yield sequence._replace(sequence_label=label)


def unlabelled_sequences(
  documents: Iterable[Document], encoder: Encoder
) -> Iterator[tuple[Document, list[StoredSequence]]]:
  """Each document and its sequence, with label 0, or without any of several classes.

  A sequence that is too long loses tokens at the end; a pair loses them at the end of the
  longer sentence, as in BERT's run_classifier.py.

  Raises:
    InputError: a sentence is invalid; or a sequence is too long, if the settings forbid it.
  """
  documents = iter(documents)
  _, labels = fields_and_labels(encoder.settings)
  label = [False] * len(labels) if encoder.settings.task == MULTI_LABEL else 0
  while batch := list(itertools.islice(documents, _EXAMPLES)):
    texts = [sentences(document, encoder.settings) for document in batch]
    flat = iter(encoder.encode([text for parts in texts for text in parts]))
    for document, parts in zip(batch, texts, strict=True):
      sequence = _sequence([next(flat) for _ in parts], document, encoder)
      yield document, [sequence._replace(sequence_label=label)]


def _sequence(
  parts: list[list[int]], document: Document, encoder: Encoder
) -> StoredSequence:
  limit = encoder.settings.max_sequence_length
  special = encoder.special_in_pair if len(parts) > 1 else encoder.special_in_text
  length = sum(map(len, parts)) + special
  if not all(parts):  # such as a missing cell of a table
    encoder.tally["empty_sentences"] += 1
  if length > limit:
    what = f"{document.where}: The example"
    encoder.count_too_long(what, length, limit, choices="truncate")
    shorten(parts, limit - special)
  encoder.tally["documents_used"] += 1
  if len(parts) == 1:
    input_ids = encoder.enclosed(parts[0])
    return StoredSequence(input_ids, len(input_ids), 0)
  first, second = parts
  first_type = [encoder.cls, *first, *encoder.separators]
  return StoredSequence([*first_type, *second, encoder.sep], len(first_type), 0)


def sentences(document: Document, settings: DatasetSettings) -> list[str]:
  """One or two sentences; one in a user's task if the second is missing or empty.

  Raises:
    InputError: a field is not text.
  """
  fields, _ = fields_and_labels(settings)
  if fields == OWN and not document.fields.get(OWN[1]):
    fields = fields[:1]
  return [text_in(document, field) for field in fields]


def shorten(parts: list[list[int]], most: int):
  """Takes tokens off the end of the longest part, the last of them, until `most` are left.

  Example:
    >>> parts = [[1, 2, 3, 4, 5], [6, 7]]
    >>> shorten(parts, 4)
    >>> parts
    [[1, 2], [6, 7]]
  """
  while sum(map(len, parts)) > most:
    max(reversed(parts), key=len).pop()


def check_listed(document: Document, task_name: str):
  """Refuses a list as the label of another task than `MULTI_LABEL`, or the reverse.

  Raises:
    InputError: says what the task takes.
  """
  label = document.fields["label"]
  takes = f"one label a record. For lists of classes, set the task {MULTI_LABEL}"
  if task_name == MULTI_LABEL:
    takes = "lists of classes. Write one in each record, as JSON lines, Parquet or Arrow"
  if isinstance(label, list) != (task_name == MULTI_LABEL):
    raise InputError(
      f"{document.where}: label is {short_repr(label)}; {task_name} takes {takes}."
    )


def _refuse_marks(listed: list, found: list[int], labels: tuple[str, ...], where: str):
  """Refuses 0 or 1 for each class where the classes of a sentence are expected.

  Raises:
    InputError: numbers repeat; or of two classes, both are listed as numbers, so that
      `[0, 1]` may mean both of them, or the second alone.
  """
  words = {str(value).lower() for value in listed}
  if words <= {"true", "false"} or all(number_of(value) is not None for value in listed):
    if len(set(found)) < len(found):
      raise InputError(
        f"{where}: label {short_repr(listed)} repeats a number. List those that apply."
      )
    if len(found) == len(labels) == 2 and not set(listed) <= set(labels):
      raise InputError(
        f"{where}: label {short_repr(listed)} may mean both classes or one. List those "
        f"that apply by name, as in {json.dumps(labels[1:])}."
      )


def parse_labels(
  values: Sequence,
  labels: tuple[str, ...],
  numbers: dict[str, int],
  *,
  field: str,
  where: str,
) -> list[int]:
  """The numbers of classes as in `parse_label`; `numbers` keeps those of known values."""
  for value in values:
    if repr(value) not in numbers:  # they repeat
      document = Document({field: value}, where)
      numbers[repr(value)] = int(parse_label(document, labels, field=field))
  return [numbers[repr(value)] for value in values]


def parse_label(
  document: Document, labels: tuple[str, ...], *, field: str = "label"
) -> int | float:
  """The number of a class; without classes, the value to predict.

  A text is the class of this very name, and true or false the class named so, in capitals
  or not. Otherwise a number is the class whose name is the same number. If no name is a
  number, whole numbers are the numbers of classes; unless these are true and false, in this
  order, where 1 would mean both.

  Example:
    >>> parse_label(Document({"label": "entailment"}), ("entailment", "not_entailment"))
    0
    >>> parse_label(Document({"label": "3.25"}), ())
    3.25
    >>> parse_label(Document({"label": 5}), ("1", "5"))
    1
    >>> parse_label(Document({"label": "1.10"}), ("1.1", "1.10"))
    1

  Raises:
    InputError: the label is not a class or its number, or names several classes; without
      classes, it is not a number.
  """
  value = document.fields[field]
  number = number_of(value)
  if not labels:
    if number is not None and abs(number) <= _LARGEST:
      return float(number)
    raise InputError(
      f"{document.where}: {field} is {short_repr(value)}; expected a 32-bit number."
    )
  if isinstance(value, str) and value in labels:
    return labels.index(value)
  numbers = [number_of(name) for name in labels]
  named = [number is not None and number == of_name for of_name in numbers]
  word = str(value).lower()
  if isinstance(value, bool) or word in ("true", "false"):
    named = [name.lower() == word for name in labels]
  if sum(named) == 1:
    return named.index(True)
  if any(named):
    same = ", ".join(name for name, found in zip(labels, named, strict=True) if found)
    raise InputError(f"{document.where}: {field} {short_repr(value)} may be any of {same}.")
  # If class names are numbers, labels match by value, never by index. If they are true and
  # false, 1 would mean both.
  indexed = not any(of_name is not None for of_name in numbers)
  indexed = indexed and [name.lower() for name in labels] != ["true", "false"]
  if indexed and number is not None and number in range(len(labels)):
    return int(number)
  hidden = _HIDDEN if number == -1 else ""
  indices = f"0 to {len(labels) - 1} or " if indexed else ""
  raise InputError(
    f"{document.where}: {field} is {short_repr(value)}; expected {indices}one of "
    f"{', '.join(labels)}.{hidden}"
  )


def number_of(value) -> fractions.Fraction | None:
  """The exact value of a number or of its text; None if it is neither.

  A float stands for the shortest decimal that it is written as: 0.1 is one tenth.
  """
  text = repr(value) if isinstance(value, float) else str(value).strip()
  if isinstance(value, bool) or not isinstance(value, _NUMBERS):
    return None
  if isinstance(value, str) and not re.fullmatch(_DECIMAL, text):
    return None
  try:
    return fractions.Fraction(text)
  except ValueError:  # infinite, or not a number
    return None
