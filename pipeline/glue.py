"""The nine tasks of GLUE: a sentence or a pair, and a class or a number."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from packing import InputError
from packing.errors import shown
from pipeline import wordpiece
from pipeline.documents import DocumentShard
from pipeline.settings import Settings
from pipeline.sources import Document
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


def cut(
  shard: DocumentShard, settings: Settings, tokenizer: Tokenizer, tally
) -> Iterator[StoredSequence]:
  """[CLS] A [SEP] or [CLS] A [SEP] B [SEP], one sequence an example.

  What is too long loses tokens at the end, a pair at the end of the longer sentence, as
  BERT's run_classifier.py does.

  Raises:
    InputError: a sentence or a label that is none; or, where settings ask for it, a
      sequence that is too long.
  """
  fields, labels = TASKS[settings.task.removeprefix("glue/")]
  cls, sep = tokenizer.id_of(wordpiece.CLS), tokenizer.id_of(wordpiece.SEP)
  most = settings.max_sequence_length - 1 - len(fields)
  examples = shard.documents
  encoded = [tokenizer.encode([sentence(e, f) for e in examples]) for f in fields]
  for example, *parts in zip(examples, *encoded, strict=True):
    found = sum(map(len, parts))
    if found > most:
      tally["too_long"] += 1
      if settings.too_long == "error":
        raise InputError(
          f"{example['where']}: The example has {found + 1 + len(fields)} tokens; expected "
          f"at most {settings.max_sequence_length}. Raise --max-sequence-length, or choose "
          "--too-long truncate."
        )
      shorten(parts, most)
    tally["documents_used"] += 1
    input_ids = [cls, *parts[0], sep]
    first_type = len(input_ids)
    for part in parts[1:]:
      input_ids += [*part, sep]
    yield StoredSequence(input_ids, first_type, parse_label(example, labels))


def sentence(example: Document, field: str) -> str:
  """A sentence of an example.

  Raises:
    InputError: it is no text.
  """
  value = example[field]
  if not isinstance(value, str):
    raise InputError(f"{example['where']}: {field} is {shown(value)}; expected a sentence.")
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

  Raises:
    InputError: neither a class nor its number; or no number.
  """
  value = example["label"]
  if value in labels:
    return labels.index(value)
  try:
    number = float(value)
  except (TypeError, ValueError, OverflowError):
    number = float("nan")
  if not labels:
    if abs(number) <= _LARGEST:
      return number
    raise InputError(
      f"{example['where']}: label is {shown(value)}; expected a number that 32 bits hold."
    )
  if number not in range(len(labels)):
    hidden = " Test splits hide their labels; use another split." if number == -1 else ""
    raise InputError(
      f"{example['where']}: label is {shown(value)}; expected 0 to {len(labels) - 1} or "
      f"one of {', '.join(labels)}.{hidden}"
    )
  return int(number)
