"""What a prepared dataset depends on, checked before any work."""

from __future__ import annotations

import dataclasses
import math
import re

from packing import InputError
from packing.errors import check_integer, short_repr

TOO_LONG = "error", "truncate", "split"


@dataclasses.dataclass(frozen=True)
class DatasetSettings:
  """What a prepared dataset depends on.

  Attributes:
    source: where documents come from; see `pipeline/sources/partitions.py`.
    max_sequence_length: S, in tokens, special tokens included.
    vocab_size: of the vocabulary that is trained where none is given.
    vocab_file: a BERT vocabulary, a tokenizer.json, or GPT-2's vocab.json with its
      merges.txt beside it; "" to train one.
    min_sentences: documents with fewer are left out (pretraining, sentences).
    held_out_fraction: of the documents; 0 for none.
    short_sequence_probability: share of documents cut to a random length (pretraining).
    seed: of the held-out documents and of how documents are cut.
    task: what sequences are made; see `pipeline/tasks/table.py`.
    held_out_source: a source of its own for what is held out, instead of a fraction.
    columns: what fields are called in the source, "field=name,field=name".
    documents: how text files split: "blank-line", "line", "file" or "start:REGEX".
    dupe_factor: times each document is cut, each time at random (pretraining).
    doc_stride: tokens from one window of a context to the next (squad).
    max_question_length: longer questions are truncated to so many tokens (squad).
    too_long: what is done with sequences over the limit: "error", "truncate" or "split";
      "" for what the task does usually.
    shard_bytes: bytes of documents that make a shard; random next segments come
      from the same shard.
    labels: names of the classes in the order of their numbers, "no,yes" (classification).
    mismatched_source: held out too, of another kind than what is trained on, as MNLI's
      mismatched genres; needs held_out_source.
    min_words: documents with fewer are left out (text); words have white space between.

  Raises:
    InputError: a value that cannot be used.
  """

  source: str
  max_sequence_length: int
  vocab_size: int = 30_522
  vocab_file: str = ""
  min_sentences: int = 1
  held_out_fraction: float = 0.0
  short_sequence_probability: float = 0.1
  seed: int = 0
  task: str = "pretraining"
  held_out_source: str = ""
  columns: str = ""
  documents: str = "blank-line"
  dupe_factor: int = 1
  doc_stride: int = 128
  max_question_length: int = 64
  too_long: str = ""
  shard_bytes: int = 4_000_000
  labels: str = ""
  mismatched_source: str = ""
  min_words: int = 0

  def __post_init__(self):
    for name, least, most in (
      ("max_sequence_length", 5, 65_535),
      ("vocab_size", 64, 2**31 - 1),
      ("min_sentences", 1, 2**31),
      ("min_words", 0, 2**31),
      ("seed", 0, 2**32 - 1),
      ("dupe_factor", 1, 10_000),
      ("doc_stride", 1, 65_535),
      ("max_question_length", 1, 65_535),
      ("shard_bytes", 1, 2**30),
    ):
      check_integer(name, getattr(self, name), at_least=least, at_most=most)
    for name in ("held_out_fraction", "short_sequence_probability"):
      value = getattr(self, name)
      if not (math.isfinite(value) and 0 <= value < 1):
        raise InputError(f"{name} is {value}; expected a fraction in [0, 1).")
    if self.too_long not in ("", *TOO_LONG):
      raise InputError(
        f"too_long is {short_repr(self.too_long)}; expected one of {', '.join(TOO_LONG)}."
      )
    if self.mismatched_source and not self.held_out_source:
      raise InputError(
        f"mismatched_source is {short_repr(self.mismatched_source)} without a "
        "held_out_source; "
        "expected both, or held_out_source alone."
      )
    self.column_names()
    self.label_names()
    how = self.documents
    if how not in ("blank-line", "line", "file") and not how.startswith("start:"):
      raise InputError(
        f"documents is {short_repr(how)}; expected blank-line, line, file or start:REGEX."
      )
    try:
      re.compile(how.removeprefix("start:"))
    except re.error as error:
      raise InputError(
        f"documents is {short_repr(how)}, which is no regular expression: {error}."
      ) from error

  def column_names(self) -> tuple[tuple[str, str], ...]:
    """Pairs of a field and its name in the source.

    Example:
      >>> DatasetSettings("x.tsv", 128, columns="sentence=3, label=1").column_names()
      (('sentence', '3'), ('label', '1'))
    """
    pairs = []
    for text in filter(None, map(str.strip, self.columns.split(","))):
      field, separator, name = text.partition("=")
      if not separator or not field.strip() or not name.strip():
        raise InputError(f"columns is {short_repr(self.columns)}; expected FIELD=NAME,...")
      pairs.append((field.strip(), name.strip()))
    return tuple(pairs)

  def label_names(self) -> tuple[str, ...]:
    """Names of the classes, in the order of their numbers.

    Example:
      >>> DatasetSettings("x.tsv", 128, labels="no, yes").label_names()
      ('no', 'yes')
    """
    if not self.labels:
      return ()
    names = tuple(name.strip() for name in self.labels.split(","))
    if len(set(names)) < max(2, len(names)) or "" in names:
      raise InputError(
        f"labels is {short_repr(self.labels)}; expected at least two different names, with "
        "commas between them."
      )
    return names
