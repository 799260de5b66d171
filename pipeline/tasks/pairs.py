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
from pipeline.store import SequenceStore, ranges
from pipeline.tasks import glue, scores
from pipeline.tasks.encoder import Encoder

RANKED = "anchor", "positive"
NEGATIVES = ("negative", *(f"negative_{number}" for number in range(1, 51)))
# Columns of this name that are not read would be lost without a word.
SIMILAR = r"(?i)(hard[ _-]?)?(neg|negative|pos|positive)s?[ _-]?\d*|labels?|scores?"
SCORED = "sentence1", "sentence2"
_EXAMPLES = 64  # tokenised at a time
_BLOCK = 1024  # anchors compared with all texts at a time


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
      raise InputError(
        f"{document.where}: {field} is {short_repr(text)}; expected words. Remove the "
        "record."
      )
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
    flat = iter(encoder.encode([text for parts in found for text in parts]))
    for document, parts in zip(batch, found, strict=True):
      yield _record([next(flat) for _ in parts], document, encoder)


def _record(parts: list[list[int]], document: Document, encoder: Encoder) -> Record:
  limit, where = encoder.settings.max_sequence_length, document.where
  if not all(parts):
    number = next(i for i, part in enumerate(parts) if not part)
    raise InputError(f"{where}: text {number + 1} has no tokens. Remove the record.")
  room = limit - encoder.special_in_text * len(parts)
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
  found = list(map(encoder.enclosed, parts))
  ids = [*itertools.chain(*found)]
  return Record(ids, len(ids), label, list(map(len, found)))


def _score(document: Document) -> float:
  value = glue.parse_label(document, (), field="score")
  if abs(value) > 1:
    raise InputError(
      f"{document.where}: score is {value!r}; expected -1 to 1. Divide all by the largest."
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
    For pairs without scores, over all different anchors, each of which chooses among the
    different positives of all records: the fractions `accuracy_at_1` and `accuracy_at_10`
    with a right text that high; `mrr`, the mean reciprocal rank of the first right text,
    which is `score`; `map_at_100` and `ndcg_at_10`. All positives of an anchor are right,
    its own text is not a candidate, and a tie counts against the right text. `loss` is the
    cross-entropy in nats of each record's positive, among it and the wrong texts. With
    scores: `loss`, the mean squared error of the cosine; `pearson`; and `spearman`, which
    is `score`. For both, `sequences`, the number of records.

  Raises:
    ValueError: the outputs have a wrong number.

  References:
    `InformationRetrievalEvaluator` of sentence-transformers, whose figures these are.
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
  numbers = _text_numbers(store)
  asked, first, repeats = np.unique(numbers, axis=0, return_index=True, return_inverse=True)
  candidates, holders = np.unique(numbers[:, 1], return_index=True)
  queries, begins, counts = np.unique(asked[:, 0], return_index=True, return_counts=True)
  query, own = np.repeat(np.arange(len(queries)), counts), candidates.searchsorted(asked)
  above, losses = np.empty(len(asked), np.int64), np.empty(len(asked))
  for start in range(0, len(asked), _BLOCK):
    part = slice(start, start + _BLOCK)
    cosines = anchors[first[part]] @ others[holders].T
    right = np.take_along_axis(cosines, own[part, 1:], axis=1)
    wrong = candidates != asked[part, :1]  # an anchor's own text is none
    of_query = counts[query[part]]
    rows = np.repeat(np.arange(len(of_query)), of_query)
    wrong[rows, own[ranges(begins[query[part]], of_query), 1]] = False
    above[part] = (wrong & (cosines >= right)).sum(axis=1)
    odds = np.where(wrong, (cosines - right) / temperature, -np.inf)
    highest = np.maximum(odds.max(axis=1, keepdims=True), 0)
    sums = np.exp(odds - highest).sum(axis=1) + np.exp(-highest[:, 0])
    losses[part] = np.log(sums) + highest[:, 0]
  return {
    "loss": float(losses[repeats.reshape(-1)].mean()),
    **_retrieval(query, above, begins, counts),
    "sequences": len(store),
  }


def _retrieval(
  query: np.ndarray, above: np.ndarray, begins: np.ndarray, counts: np.ndarray
) -> dict[str, float]:
  """Scores from how many wrong texts are above each right text of each query.

  Args:
    query: int64[R]; the query of each right text, in order.
    above: int64[R].
    begins, counts: int64[Q]; where the right texts of a query begin, and how many it has.
  """
  above = above[np.lexsort((above, query))]
  place = ranges(1, counts)  # among the right texts
  rank = above + place

  def sums(values: np.ndarray, limit: int) -> np.ndarray:
    return np.add.reduceat(np.where(rank <= limit, values, 0), begins)

  gains = 1 / np.log2(np.arange(10) + 2)
  ideal = gains.cumsum()[np.minimum(counts, 10) - 1]
  best, mrr = rank[begins], float((1 / rank[begins]).mean())
  return {
    "score": mrr,
    "mrr": mrr,
    "accuracy_at_1": float((best <= 1).mean()),
    "accuracy_at_10": float((best <= 10).mean()),
    "map_at_100": float((sums(place / rank, 100) / np.minimum(counts, 100)).mean()),
    "ndcg_at_10": float((sums(1 / np.log2(rank + 1), 10) / ideal).mean()),
  }


def _text_numbers(store: SequenceStore) -> np.ndarray:
  """int64[N, 2]; numbers of each record's anchor and positive; equal texts have one."""
  assert store.texts is not None
  known: dict[bytes, int] = {}
  numbers = np.empty((len(store), 2), np.int64)
  for record in range(len(store)):
    first, last = store.texts.lengths[store.texts.ends[record] :][:2]
    tokens = store.gather(np.array([record]))
    for column, text in enumerate((tokens[:first], tokens[first : first + last])):
      numbers[record, column] = known.setdefault(text.tobytes(), len(known))
  return numbers
