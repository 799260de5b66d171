"""Sequences for BERT pretraining: pairs of segments, the second real or random.

A port of the rules, not of the code, of `create_pretraining_data.py` in
https://github.com/google-research/bert.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

SPECIAL_TOKENS_IN_PAIR = 3  # [CLS] A [SEP] B [SEP]

Document = Sequence[Sequence[int]]  # sentences of token ids


class Pair(NamedTuple):
  """One sequence before its special tokens are added.

  Attributes:
    a: token ids of the first segment.
    b: token ids of the second segment.
    is_random_next: 1 where b is from another document, 0 where it follows a.
  """

  a: list[int]
  b: list[int]
  is_random_next: int


def segment_pairs(
  documents: Sequence[Document],
  index: int,
  *,
  max_sequence_length: int,
  short_sequence_probability: float,
  seed: int,
) -> list[Pair]:
  """Cuts one document into pairs of segments.

  Whole sentences are gathered up to the target length, which is the maximum, or with
  `short_sequence_probability` a random one. The gathered sentences are cut in two at
  random. With probability 1/2, or where there is a single sentence, the second part is
  replaced by sentences of another document, and goes back to be gathered again. Pairs
  that are too long lose tokens at the ends of the longer segment, front or back at
  random.

  Args:
    documents: sentences of token ids; at least two documents, without empty sentences.
    index: the document to cut.
    max_sequence_length: S, with the special tokens, at least 5.
    short_sequence_probability: how often the target length is random, a fraction.
    seed: with the index it fixes every choice.

  Returns:
    Pairs in the order of the document.
  """
  rng = np.random.default_rng([seed, index])
  document = documents[index]
  max_tokens = max_sequence_length - SPECIAL_TOKENS_IN_PAIR

  def draw_target() -> int:
    if rng.random() < short_sequence_probability:
      return int(rng.integers(2, max_tokens + 1))
    return max_tokens

  pairs = []
  target = draw_target()
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
    if is_random_next:
      b = _random_segment(documents, index, target - len(a), rng)
      position -= len(chunk) - cut  # the sentences that b replaced
    else:
      b = _join(chunk[cut:])
    _truncate(a, b, max_tokens, rng)
    pairs.append(Pair(a, b, int(is_random_next)))
    chunk = []
  return pairs


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


def _truncate(a: list[int], b: list[int], max_tokens: int, rng: np.random.Generator):
  while len(a) + len(b) > max_tokens:
    longer = a if len(a) > len(b) else b
    longer.pop(0 if rng.random() < 0.5 else -1)
