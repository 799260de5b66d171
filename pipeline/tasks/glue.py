"""A sentence or a pair, and a class or a number: GLUE's nine tasks, and one's own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from packing import InputError
from packing.errors import short_repr
from pipeline import wordpiece
from pipeline.settings import DatasetSettings
from pipeline.sources.document_shards import DocumentShard
from pipeline.sources.partitions import Document
from pipeline.store import StoredSequence
from pipeline.tokenizer import Tokenizer

_TWO = "sentence1", "sentence2"
_ENTAILMENT = "entailment", "not_entailment"
_LARGEST = float(np.finfo(np.float32).max)  # of the labels of a regression

# The fields of a document as in TensorFlow Datasets, and the classes in the order of their
# numbers; no classes for regression.
TASKS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
  "cola": (("sentence",), ("unacceptable", "acceptable")),
  "sst2": (("sentence",), ("negative", "positive")),
  "mrpc": (_TWO, ("not_equivalent", "equivalent")),
  "qqp": (("question1", "question2"), ("not_duplicate", "duplicate")),
  "stsb": (_TWO, ()),  # similarity from 0 to 5
  "mnli": (("premise", "hypothesis"), ("entailment", "neutral", "contradiction")),
  "qnli": (("question", "sentence"), _ENTAILMENT),
  "rte": (_TWO, _ENTAILMENT),
  "wnli": (_TWO, ("not_entailment", "entailment")),
}
# The benchmark's metrics of each; its score is their mean.
METRICS: dict[str, tuple[str, ...]] = {
  "cola": ("matthews",),
  "sst2": ("accuracy",),
  "mrpc": ("f1", "accuracy"),
  "qqp": ("f1", "accuracy"),
  "stsb": ("pearson", "spearman"),
  "mnli": ("accuracy",),
  "qnli": ("accuracy",),
  "rte": ("accuracy",),
  "wnli": ("accuracy",),
}
OWN = "sentence", "sentence2"  # fields of one's own tasks; the second may be missing


def fields_and_labels(settings: DatasetSettings) -> tuple[tuple[str, ...], tuple[str, ...]]:
  """The sentences of a document, and the names of the classes, () for a regression."""
  if settings.task.startswith("glue/"):
    return TASKS[settings.task.removeprefix("glue/")]
  return OWN, settings.label_names()


def cut(
  shard: DocumentShard, settings: DatasetSettings, tokenizer: Tokenizer, tally
) -> Iterator[StoredSequence]:
  """[CLS] A [SEP] or [CLS] A [SEP] B [SEP], one sequence an example.

  Raises:
    InputError: a sentence or a label that is none; or, where settings ask for it, a
      sequence that is too long.
  """
  _, labels = fields_and_labels(settings)
  examples = shard.documents
  encoded = encode(examples, settings, tokenizer, tally)
  for example, (input_ids, first_type) in zip(examples, encoded, strict=True):
    yield StoredSequence(input_ids, first_type, parse_label(example, labels))


def encode(
  examples: Sequence[Document], settings: DatasetSettings, tokenizer: Tokenizer, tally
) -> Iterator[tuple[list[int], int]]:
  """Tokens of each example, and how many have token type 0.

  What is too long loses tokens at the end, a pair at the end of the longer sentence, as
  BERT's run_classifier.py does.

  Raises:
    InputError: as of `cut`, but for labels.
  """
  cls, sep = tokenizer.id_of(wordpiece.CLS), tokenizer.id_of(wordpiece.SEP)
  texts = [sentences(example, settings) for example in examples]
  flat = iter(tokenizer.encode([text for found in texts for text in found]))
  for example, found in zip(examples, texts, strict=True):
    parts = [next(flat) for _ in found]
    most = settings.max_sequence_length - 1 - len(parts)
    length = sum(map(len, parts))
    if length > most:
      tally["too_long"] += 1
      if settings.too_long == "error":
        raise InputError(
          f"{example['where']}: The example has {length + 1 + len(parts)} tokens; expected "
          f"at most {settings.max_sequence_length}. Raise --max-sequence-length, or choose "
          "--too-long truncate."
        )
      shorten(parts, most)
    tally["documents_used"] += 1
    input_ids = [cls, *parts[0], sep]
    first_type = len(input_ids)
    for part in parts[1:]:
      input_ids += [*part, sep]
    yield input_ids, first_type


def sentences(example: Document, settings: DatasetSettings) -> list[str]:
  """One or two; of one's own tasks only one where the second is missing or empty.

  Raises:
    InputError: one is no text.
  """
  fields, _ = fields_and_labels(settings)
  if fields == OWN and not example.get(OWN[1]):
    fields = fields[:1]
  return [sentence(example, field) for field in fields]


def sentence(example: Document, field: str) -> str:
  """A sentence of an example.

  Raises:
    InputError: it is no text.
  """
  value = example[field]
  if not isinstance(value, str):
    raise InputError(
      f"{example['where']}: {field} is {short_repr(value)}; expected a sentence."
    )
  return value


def shorten(parts: list[list[int]], most: int):
  """Takes tokens off the end of the longest part until all have `most` together.

  Example:
    >>> parts = [[1, 2, 3, 4, 5], [6, 7]]
    >>> shorten(parts, 4)
    >>> parts
    [[1, 2], [6, 7]]
  """
  while sum(map(len, parts)) > most:
    longest = parts[0] if len(parts[0]) > len(parts[-1]) else parts[-1]
    longest.pop()


def parse_label(example: Document, labels: tuple[str, ...]) -> int | float:
  """The number of a class, or the value to predict where there are no classes.

  Example:
    >>> parse_label({"label": "entailment"}, ("entailment", "not_entailment"))
    0
    >>> parse_label({"label": "3.25"}, ())
    3.25
    >>> parse_label({"label": 5}, ("1", "5"))
    1

  Raises:
    InputError: neither a class nor its number; or no number.
  """
  value = example["label"]
  for place, name in enumerate(labels):
    if name == value or _number(name) == _number(value):
      return place
  number = _number(value)
  if not labels:
    if abs(number) <= _LARGEST:
      return number
    raise InputError(
      f"{example['where']}: label is {short_repr(value)}; expected a number that 32 bits "
      "hold."
    )
  # Where names are numbers, a number that is none of them names no class by its place.
  named = not all(math.isnan(_number(name)) for name in labels)
  if named or number not in range(len(labels)):
    hidden = " Test splits hide their labels; use another split." if number == -1 else ""
    numbers = "" if named else f"0 to {len(labels) - 1} or "
    raise InputError(
      f"{example['where']}: label is {short_repr(value)}; expected {numbers}one of "
      f"{', '.join(labels)}.{hidden}"
    )
  return int(number)


def _number(value) -> float:
  try:
    return float(value)
  except (TypeError, ValueError, OverflowError):
    return math.nan
