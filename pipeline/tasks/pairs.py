"""Pairs of texts, from which a model learns embeddings: records, and their scores."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from packing import InputError
from packing.errors import short_repr
from pipeline.settings import DatasetSettings
from pipeline.sources.document import Document, text_in
from pipeline.sources.document_shards import DocumentShard
from pipeline.store import SequenceStore
from pipeline.tasks import glue, scores
from pipeline.tasks.encoder import Encoder

RANKED = "anchor", "positive"
NEGATIVES = ("negative", *(f"negative_{number}" for number in range(1, 51)))
SCORED = "sentence1", "sentence2"
_EXAMPLES = 64  # tokenised at a time
_BLOCK = 1024  # anchors compared with all texts at a time
_SPECIAL_TOKENS = 2  # [CLS] text [SEP]


class Record(NamedTuple):
  """A record with the fields of `store.PAIR_SCHEMA`; its label is 0, or the score."""

  input_ids: Sequence[int]
  first_type_length: int
  sequence_label: int | float
  text_lengths: Sequence[int]


def texts(document: Document, settings: DatasetSettings) -> list[str]:
  """The texts of a record: anchor, positive and negatives, or the two sentences.

  A negative that is missing or empty is left out.

  Raises:
    InputError: a field is not text, or another text is empty.
  """
  fields: tuple[str, ...] = SCORED
  if settings.task == "pairs":
    fields = *RANKED, *(name for name in NEGATIVES if document.fields.get(name))
  found = [text_in(document, field) for field in fields]
  for field, text in zip(fields, found, strict=True):
    if not text.strip():
      raise InputError(f"{document.where}: {field} is {short_repr(text)}; expected words.")
  return found


def sequences(shard: DocumentShard, encoder: Encoder) -> Iterator[Record]:
  """A record for each document: [CLS] text [SEP] for each of its texts, end to end.

  A record that is too long loses tokens at the end of its longest text.

  Raises:
    InputError: a text is invalid or has no tokens; a score is not a number from -1 to 1; or
      a record is too long, if the settings forbid it or its texts cannot be shortened.
  """
  documents = iter(shard.documents)
  while batch := list(itertools.islice(documents, _EXAMPLES)):
    found = [texts(document, encoder.settings) for document in batch]
    flat = iter(encoder.tokenizer.encode([text for parts in found for text in parts]))
    for document, parts in zip(batch, found, strict=True):
      yield _record([next(flat) for _ in parts], document, encoder)


def _record(parts: list[list[int]], document: Document, encoder: Encoder) -> Record:
  limit, where = encoder.settings.max_sequence_length, document.where
  if not all(parts):
    number = next(i for i, part in enumerate(parts) if not part)
    raise InputError(f"{where}: text {number + 1} has no tokens. Remove the record.")
  room = limit - _SPECIAL_TOKENS * len(parts)
  if (length := sum(map(len, parts))) > room:
    encoder.count_too_long(
      f"{where}: The record of {len(parts)} texts",
      length + limit - room,
      limit,
      choices="truncate",
    )
    if room < len(parts):
      raise InputError(f"{where} needs max_sequence_length {3 * len(parts)}, not {limit}.")
    glue.shorten(parts, room)
  encoder.tally["documents_used"] += 1
  label = 0 if encoder.settings.task == "pairs" else _score(document)
  ids = [token for part in parts for token in (encoder.cls, *part, encoder.sep)]
  return Record(ids, len(ids), label, [len(part) + _SPECIAL_TOKENS for part in parts])


def _score(document: Document) -> float:
  value = glue.parse_label(document, (), field="score")
  if abs(value) > 1:
    raise InputError(
      f"{document.where}: score is {value:g}; expected -1 to 1. Divide all by the largest."
    )
  return value


# ---- scores ----------------------------------------------------------------------------


def score(
  store: SequenceStore, outputs: Sequence[np.ndarray], *, temperature: float = 0.05
) -> dict[str, float]:
  """How well the vectors of texts rank, or match scores.

  Args:
    store: records of pairs.
    outputs: float[D]; the vectors of all texts, record by record.
    temperature: of the softmax over cosines, in the loss.

  Returns:
    For pairs without scores: `loss`, the cross-entropy in nats of each anchor's positive
    among the different positives of all records; the fractions `accuracy_at_1` and
    `accuracy_at_10`; and `mrr`, the mean reciprocal rank, which is `score`. A tie counts
    against the positive. With scores: `loss`, the mean squared error of the cosine;
    `pearson`; and `spearman`, which is `score`. For both, `sequences`, the number of
    records.

  Raises:
    ValueError: the outputs have a wrong number.
  """
  assert store.texts is not None
  vectors = np.stack(outputs).astype(np.float32)  # type: ignore[arg-type]
  if len(vectors) != store.texts.ends[-1]:
    raise ValueError(f"Found {len(vectors)} vectors; expected {store.texts.ends[-1]}.")
  vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
  anchors, others = vectors[store.texts.ends[:-1]], vectors[store.texts.ends[:-1] + 1]
  if store.sequence_labels.dtype.kind == "f":
    cosines = np.einsum("nd,nd->n", anchors, others)
    spearman = scores.spearman(store.sequence_labels, cosines)
    return {
      "loss": float(np.square(cosines - store.sequence_labels).mean()),
      "score": spearman,
      "spearman": spearman,
      "pearson": scores.pearson(store.sequence_labels, cosines),
      "sequences": len(store),
    }
  own, candidates = _different_positives(store)
  positives = others[candidates].T
  ranks, losses = [], []
  for start in range(0, len(anchors), _BLOCK):
    part = slice(start, start + _BLOCK)
    cosines = anchors[part] @ positives
    right = np.take_along_axis(cosines, own[part, None], axis=1)
    ranks.append((cosines >= right).sum(axis=1))
    highest = cosines.max(axis=1, keepdims=True)
    sums = np.exp((cosines - highest) / temperature).sum(axis=1)
    losses.append(np.log(sums) + (highest - right)[:, 0] / temperature)
  rank = np.concatenate(ranks)
  mrr = float((1 / rank).mean())
  return {
    "loss": float(np.concatenate(losses).mean()),
    "score": mrr,
    "mrr": mrr,
    "accuracy_at_1": float((rank <= 1).mean()),
    "accuracy_at_10": float((rank <= 10).mean()),
    "sequences": len(store),
  }


def _different_positives(store: SequenceStore) -> tuple[np.ndarray, np.ndarray]:
  """int64[N], the number of each record's positive; and a record that has it, for each."""
  assert store.texts is not None
  numbers: dict[bytes, int] = {}
  own, candidates = np.empty(len(store), np.int64), []
  for record in range(len(store)):
    first, last = store.texts.lengths[store.texts.ends[record] :][:2]
    text = store.gather(np.array([record]))[first : first + last].tobytes()
    if text not in numbers:
      candidates.append(record)
    own[record] = numbers.setdefault(text, len(numbers))
  return own, np.array(candidates)
