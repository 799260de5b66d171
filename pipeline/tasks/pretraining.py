"""Sequences for pretraining: BERT's pairs of segments, or RoBERTa's runs of sentences.

The second segment of a pair is the next or a random one. The pairs follow the rules of
`create_pretraining_data.py` in https://github.com/google-research/bert, not its code.
"""

from __future__ import annotations

import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from packing import InputError
from pipeline.settings import DatasetSettings
from pipeline.sources import stdlib
from pipeline.sources.document import Document
from pipeline.sources.document_shards import TRAIN, DocumentShard
from pipeline.store import StoredSequence
from pipeline.tasks.documents import text_of
from pipeline.tasks.encoder import Encoder

# The fraction of documents with a random target length, as in BERT's paper.
SHORT_SEQUENCE_PROBABILITY = 0.1

Sentences = Sequence[Sequence[int]]  # of one document, as token ids


class Pair(NamedTuple):
  """One sequence before its special tokens are added.

  Attributes:
    a: token ids of the first segment.
    b: token ids of the second segment.
    is_random_next: 1 if b is from another document, 0 if it follows a.
    lost_tokens: how many tokens were cut off to make the pair fit.
  """

  a: list[int]
  b: list[int]
  is_random_next: int
  lost_tokens: int = 0


def sentences_of(document: Document, settings: DatasetSettings) -> list[str]:
  """The sentences of a document; none if there are fewer than `min_sentences`."""
  sentences = document.fields.get("sentences")
  if sentences is None:
    sentences = stdlib.split_sentences(text_of(document))
  return sentences if len(sentences) >= settings.min_sentences else []


def sentence_sequences(shard: DocumentShard, encoder: Encoder) -> Iterator[StoredSequence]:
  """[CLS] sentences [SEP]: runs of whole sentences, as many as fit.

  With `cross_documents` a run continues in the next document of the shard, after a [SEP].
  Held-out runs never do.

  References:
    Liu et al., https://arxiv.org/abs/1907.11692, section 4.2: DOC-SENTENCES, and with
    `cross_documents` FULL-SENTENCES.
  """
  most = encoder.settings.max_sequence_length - encoder.special_in_text
  documents: Iterable[Sentences] = _tokenised(shard, encoder, most=most)
  sep = [encoder.sep]
  if encoder.settings.cross_documents and shard.split == TRAIN:
    documents = [[part for document in documents for part in (*document, sep)]]
  for document in documents:
    for run in whole_sentences(document, max_tokens=most):
      first, last = run[:1] == sep, run[-1:] == sep  # documents end where the run does
      run = run[first : len(run) - last]
      if run:
        ids = encoder.enclosed(run)
        yield StoredSequence(ids, len(ids), 0)


def pair_sequences(shard: DocumentShard, encoder: Encoder) -> Iterator[StoredSequence]:
  """[CLS] A [SEP] B [SEP]: pairs of segments; cuts all documents `dupe_factor` times."""
  settings, cls, sep = encoder.settings, encoder.cls, encoder.sep
  max_tokens = settings.max_sequence_length - encoder.special_in_pair
  if max_tokens < 2:
    raise InputError(
      f"max_sequence_length is {settings.max_sequence_length}; expected at least "
      f"{encoder.special_in_pair + 2}, for a pair and its special tokens."
    )
  documents = list(_tokenised(shard, encoder, most=max_tokens - 1))
  for repeat in range(settings.dupe_factor):
    for index in range(len(documents)):
      for pair in segment_pairs(
        documents,
        index,
        max_tokens=max_tokens,
        seed=(settings.seed, *shard.key, repeat),
      ):
        encoder.tally["random_next"] += pair.is_random_next
        encoder.tally["truncated_pairs"] += pair.lost_tokens > 0
        first_type = [cls, *pair.a, *encoder.separators]
        input_ids = [*first_type, *pair.b, sep]
        yield StoredSequence(input_ids, len(first_type), pair.is_random_next)


def _tokenised(shard: DocumentShard, encoder: Encoder, *, most: int) -> Iterator[Sentences]:
  """The sentences of each document; `too_long="split"` splits those of more tokens."""
  split = encoder.settings.too_long == "split"
  for document in shard.documents:
    sentences: list[Sequence[int]] = []
    for ids in encoder.encode(sentences_of(document, encoder.settings)):
      if len(ids) > most:
        encoder.count_too_long(f"{document.where}: A sentence", len(ids), most)
      length = most if split else max(len(ids), 1)
      sentences += [
        array.array("i", ids[start : start + length])
        for start in range(0, len(ids), length)
      ]
    if sentences:
      encoder.tally["documents_used"] += 1
      yield sentences


def segment_pairs(
  documents: Sequence[Sentences],
  index: int,
  *,
  max_tokens: int,
  short_sequence_probability: float = SHORT_SEQUENCE_PROBABILITY,
  seed: tuple[int, ...],
) -> list[Pair]:
  """Cuts one document into pairs of segments.

  Whole sentences are gathered up to the document's target length. The target is the
  maximum, or a random length with `short_sequence_probability`. The gathered sentences are
  cut in two at random. With probability 1/2, or if there is only one sentence, sentences
  of another document replace the second part, which is gathered again for the next pair.
  So among short documents more than half of the pairs are random. Pairs that are too long
  lose tokens of the longer segment, at its front or back at random. If there is
  no other document, the second part is never replaced, and a single sentence gives no
  pair.

  Args:
    documents: one shard of documents; no sentence is empty.
    index: the document to cut.
    max_tokens: the most tokens in a pair, without special tokens; at least 2.
    short_sequence_probability: the fraction of documents with a random target length.
    seed: with the index it determines every random choice.

  Returns:
    Pairs in the order of the document.
  """
  rng = np.random.default_rng([*seed, index])
  document = documents[index]

  target = max_tokens
  if rng.random() < short_sequence_probability:
    target = int(rng.integers(2, max_tokens + 1))

  pairs = []
  chunk: list[Sequence[int]] = []
  position = 0
  while position < len(document):
    chunk.append(document[position])
    position += 1
    if position < len(document) and sum(map(len, chunk)) < target:
      continue
    cut = int(rng.integers(1, len(chunk))) if len(chunk) > 1 else 1
    a = _join(chunk[:cut])
    is_random_next = len(chunk) == 1 or bool(rng.random() < 0.5)
    if len(documents) == 1:
      if len(chunk) == 1:
        chunk = []
        continue
      is_random_next = False
    if is_random_next:
      b = _random_segment(documents, index, target - len(a), rng)
      position -= len(chunk) - cut  # the sentences that b replaced
    else:
      b = _join(chunk[cut:])
    lost = _truncate(a, b, max_tokens, rng)
    pairs.append(Pair(a, b, int(is_random_next), lost))
    chunk = []
  return pairs


def whole_sentences(document: Sentences, *, max_tokens: int) -> list[list[int]]:
  """Cuts one document into runs of whole sentences, as many in each as fit.

  No run crosses documents, so the last run is as short as the rest of the document.

  Args:
    document: its sentences; one that is too long is truncated, and makes a run alone.
    max_tokens: the most tokens in a run, without special tokens.

  Returns:
    Runs in the order of the document.

  Example:
    >>> whole_sentences([[1, 2], [3], [4, 5], [6]], max_tokens=4)
    [[1, 2, 3], [4, 5, 6]]

  References:
    Liu et al., https://arxiv.org/abs/1907.11692, section 4.2, DOC-SENTENCES.
  """
  runs: list[list[int]] = []
  for sentence in document:
    if not runs or len(runs[-1]) + len(sentence) > max_tokens:
      runs.append([])
    runs[-1].extend(sentence)
  return [run[:max_tokens] for run in runs]


def _join(sentences: Sequence[Sequence[int]]) -> list[int]:
  return [token for sentence in sentences for token in sentence]


def _random_segment(
  documents: Sequence[Sentences], index: int, length: int, rng: np.random.Generator
) -> list[int]:
  """Sentences of another document, from a random start until they have enough tokens."""
  other = int(rng.integers(len(documents) - 1))
  other += other >= index
  document = documents[other]
  segment: list[int] = []
  for sentence in document[int(rng.integers(len(document))) :]:
    segment.extend(sentence)
    if len(segment) >= length:
      break
  return segment


def _truncate(a: list[int], b: list[int], max_tokens: int, rng: np.random.Generator) -> int:
  """Shortens the longer segment until both fit; returns how many tokens were lost."""
  lost = max(0, len(a) + len(b) - max_tokens)
  kept_a, kept_b = [0, len(a)], [0, len(b)]
  for in_front in (rng.random(lost) < 0.5).tolist():
    a_is_longer = kept_a[1] - kept_a[0] > kept_b[1] - kept_b[0]
    longer = kept_a if a_is_longer else kept_b
    if in_front:
      longer[0] += 1
    else:
      longer[1] -= 1
  a[:], b[:] = a[slice(*kept_a)], b[slice(*kept_b)]
  return lost
