"""The settings of a prepared dataset, checked before any work."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from typing import Any

from packing import InputError
from packing.errors import check, check_integer, short_repr

TOO_LONG = "error", "truncate", "split"


def _field(meaning: str, *, default: Any = dataclasses.MISSING) -> Any:
  """A field, with what it means for the reference of configs."""
  return dataclasses.field(default=default, metadata={"meaning": meaning})


@dataclasses.dataclass(frozen=True)
class DatasetSettings:
  """Everything that a prepared dataset depends on.

  What each of the fields means stands in its metadata, and in docs/config.md under `data`.

  Attributes:
    shard_bytes: bytes of documents in a shard; random next segments come from the same
      shard.

  Raises:
    InputError: a value is invalid.
  """

  source: str = _field(
    "stdlib: the standard library's text; prepared: the data in data.directory; "
    "files, tfds:NAME, ...: docs/data.md"
  )
  max_sequence_length: int = _field(
    "the longest sequence in tokens, with special tokens; by default also the row length"
  )
  vocab_size: int = _field(
    "size of the vocabulary learned from the corpus; word pieces have more if the "
    "characters of the text alone are more",
    default=30_522,
  )
  vocab_file: str = _field(
    "A vocabulary to use instead: BERT's vocab.txt or a tokenizer.json.", default=""
  )
  min_sentences: int = _field(
    "pretraining, sentences: documents with fewer sentences are left out", default=2
  )
  held_out_fraction: float = _field("fraction of the documents to hold out", default=0.0)
  seed: int = _field("seed of the held-out split and of how documents are cut", default=0)
  task: str = _field(
    "pretraining, sentences, documents, text, glue/NAME, squad, tagging, "
    "classification, multi_label, regression, pairs, scored_pairs",
    default="pretraining",
  )
  held_out_source: str = _field(
    "a separate source to hold out, instead of a fraction", default=""
  )
  columns: str = _field("names of fields in the source, such as text=content", default="")
  documents: str = _field(
    "Where documents in text files end: blank-line, line, file, wikiextractor, "
    "start:REGEX.",
    default="blank-line",
  )
  dupe_factor: int = _field(
    "pretraining: how often each document is cut, each time differently", default=1
  )
  too_long: str = _field(
    "What to do with documents, sentences or contexts that are too long: truncate, "
    'split or error; "": the default of the task.',
    default="",
  )
  shard_bytes: int = 4_000_000
  labels: str = _field(
    'classification, multi_label, tagging: names of the classes, such as "ham,spam", '
    'or a list in JSON if names have commas; "": those in the data',
    default="",
  )
  mismatched_source: str = _field(
    "a second source to hold out, of another kind than the training data; MNLI has one",
    default="",
  )
  min_words: int = _field(
    "text, documents: those with fewer words are left out; white space separates words",
    default=0,
  )
  cross_documents: bool = _field(
    "sentences: training sequences continue in the next document, as RoBERTa's FULL-"
    "SENTENCES; held-out sequences never do",
    default=False,
  )

  def __post_init__(self):
    for name, least, most in (
      ("max_sequence_length", 5, 65_535),
      ("vocab_size", 64, 2**31 - 1),
      ("min_sentences", 1, 2**31),
      ("min_words", 0, 2**31),
      ("seed", 0, 2**32 - 1),
      ("dupe_factor", 1, 10_000),
      ("shard_bytes", 1, 2**30),
    ):
      check_integer(name, getattr(self, name), at_least=least, at_most=most)
    fraction = self.held_out_fraction
    check(0 <= fraction < 1, "held_out_fraction", fraction, "a fraction in [0, 1)")
    is_known = self.too_long in ("", *TOO_LONG)
    check(is_known, "too_long", self.too_long, ", ".join(TOO_LONG))
    if self.mismatched_source and not self.held_out_source:
      raise InputError("mismatched_source needs a held_out_source. Give both.")
    self.column_names()
    self.label_names()
    how = self.documents
    known = ("blank-line", "line", "file", "wikiextractor")
    is_known = how in known or how.startswith("start:")
    check(is_known, "documents", how, f"{', '.join(known)} or start:REGEX")
    try:
      re.compile(how.removeprefix("start:"))
    except re.error as error:
      raise InputError(f"documents is {short_repr(how)}, not a regex: {error}.") from error

  def column_names(self) -> tuple[tuple[str, str], ...]:
    """Pairs of a field and its name in the source.

    Example:
      >>> DatasetSettings("x.tsv", 128, columns="sentence=3, label=1").column_names()
      (('sentence', '3'), ('label', '1'))
    """
    pairs: list[tuple[str, str]] = []
    for text in filter(None, map(str.strip, self.columns.split(","))):
      field, separator, name = text.partition("=")
      if not separator or not field.strip() or not name.strip():
        raise InputError(
          f"columns is {short_repr(self.columns)}; expected FIELD=NAME,..., such as "
          "sentence=review where the source has a column review."
        )
      known = dict(pairs).get(field.strip(), name.strip())
      expected = f"one name for {field.strip()}"
      check(known == name.strip(), "columns", self.columns, expected)
      pairs.append((field.strip(), name.strip()))
    return tuple(pairs)

  def label_names(self) -> tuple[str, ...]:
    """Names of the classes, in the order of their numbers.

    Example:
      >>> DatasetSettings("x.tsv", 128, labels="no, yes").label_names()
      ('no', 'yes')
      >>> DatasetSettings("x.tsv", 128, labels='[".", ","]').label_names()
      ('.', ',')
    """
    if not self.labels:
      return ()
    names = tuple(name.strip() for name in self.labels.split(","))
    with contextlib.suppress(ValueError):
      if isinstance(listed := json.loads(self.labels), list):
        names = tuple(map(str, listed))
    are_names = len(set(names)) >= max(2, len(names)) and "" not in names
    check(are_names, "labels", self.labels, "different names, as in a,b")
    return names
