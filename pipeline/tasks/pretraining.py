"""Sequences for pretraining: pairs of segments, the second real or random, or sentences.

The pairs are a port of the rules, not of the code, of `create_pretraining_data.py` in
https://github.com/google-research/bert; the sentences are RoBERTa's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

SPECIAL_TOKENS_IN_PAIR = 3  # [CLS] A [SEP] B [SEP]
SPECIAL_TOKENS = 2  # [CLS] sentences [SEP]

Document = Sequence[Sequence[int]]  # sentences of token ids


class Pair(NamedTuple):
  """One sequence before its special tokens are added.

  Attributes:
    a: token ids of the first segment.
    b: token ids of the second segment.
    is_random_next: 1 where b is from another document, 0 where it follows a.
    lost_tokens: how many were cut off to make the pair fit.
  """

  a: list[int]
  b: list[int]
  is_random_next: int
  lost_tokens: int = 0


def segment_pairs(
  documents: Sequence[Document],
  index: int,
  *,
  max_sequence_length: int,
  short_sequence_probability: float,
  seed: int | tuple[int, ...],
) -> list[Pair]:
  """Cuts one document into pairs of segments.

  Whole sentences are gathered up to the document's target length, which is the maximum,
  or with `short_sequence_probability` a random one. The gathered sentences are cut in
  two at random. With probability 1/2, or where there is a single sentence, the second
  part is replaced by sentences of another document, and goes back to be gathered again.
  So more than half of the pairs have a random next where documents are short. Pairs that
  are too long lose tokens at the ends of the longer segment, front or back at random.
  Where there is no other document, the second part is never replaced, and a single
  sentence gives no pair.

  Args:
    documents: sentences of token ids, without empty sentences; one shard of documents.
    index: the document to cut.
    max_sequence_length: S, with the special tokens, at least 5.
    short_sequence_probability: share of documents whose target length is random.
    seed: one number or several; with the index it fixes every choice.

  Returns:
    Pairs in the order of the document.
  """
  seeds = (seed,) if isinstance(seed, int) else seed
  rng = np.random.default_rng([*seeds, index])
  document = documents[index]
  max_tokens = max_sequence_length - SPECIAL_TOKENS_IN_PAIR

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


def whole_sentences(document: Document, *, max_tokens: int) -> list[list[int]]:
  """Cuts one document into runs of whole sentences, as many in each as fit.

  No run crosses documents, so the last of each is as short as what is left.

  Args:
    document: sentences of token ids; one that is too long is truncated, and alone.
    max_tokens: of a run, without special tokens.

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
  documents: Sequence[Document], index: int, length: int, rng: np.random.Generator
) -> list[int]:
  """Sentences of another document from a random start, until there are enough tokens."""
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
  """Shortens the longer of two until they fit; returns how many tokens were lost."""
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
