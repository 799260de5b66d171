"""The settings of a prepared dataset, checked before any work."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re

from packing import InputError
from packing.errors import check, check_integer, short_repr

TOO_LONG = "error", "truncate", "split"


@dataclasses.dataclass(frozen=True)
class DatasetSettings:
  """Everything that a prepared dataset depends on.

  Attributes:
    source: where documents come from; see `pipeline/sources/partitions.py`.
    max_sequence_length: S, in tokens, special tokens included.
    vocab_size: the most tokens of a learned vocabulary; word pieces have more if the
      characters of the text alone are more.
    vocab_file: a BERT vocabulary, or a tokenizer.json; "" to learn one.
    min_sentences: documents with fewer are left out (pretraining, sentences).
    held_out_fraction: the fraction of documents to hold out.
    seed: selects the held-out documents and how documents are cut.
    task: what sequences to make; see `pipeline/tasks/registry.py`.
    held_out_source: a separate source to hold out, instead of a fraction.
    columns: names of fields in the source, "field=name,field=name".
    documents: where documents in text files end: "blank-line", "line", "file",
      "wikiextractor" or "start:REGEX".
    dupe_factor: how often each document is cut, each time differently (pretraining).
    too_long: what to do with sequences over the limit: "error", "truncate" or "split"; ""
      for the task's default.
    shard_bytes: bytes of documents in a shard; random next segments come from the same
      shard.
    labels: names of the classes in the order of their numbers, "no,yes", or a list in JSON
      if names have commas; "" for those in the data (classification, multi_label,
      tagging).
    mismatched_source: a second source to hold out, of another kind than the training data,
      such as MNLI's mismatched genres; needs held_out_source.
    min_words: documents with fewer are left out; white space separates words (text,
      documents).
    cross_documents: whether training sequences continue in the next document, after a
      [SEP]; held-out sequences never do (sentences).

  Raises:
    InputError: a value is invalid.
  """

  source: str
  max_sequence_length: int
  vocab_size: int = 30_522
  vocab_file: str = ""
  min_sentences: int = 2
  held_out_fraction: float = 0.0
  seed: int = 0
  task: str = "pretraining"
  held_out_source: str = ""
  columns: str = ""
  documents: str = "blank-line"
  dupe_factor: int = 1
  too_long: str = ""
  shard_bytes: int = 4_000_000
  labels: str = ""
  mismatched_source: str = ""
  min_words: int = 0
  cross_documents: bool = False

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
        raise InputError(f"columns is {short_repr(self.columns)}; expected FIELD=NAME,...")
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
