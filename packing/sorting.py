"""Sorted batching: batches of sequences of similar length instead of packs."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np

from packing.errors import check_integer
from packing.histogram import Histogram


@dataclasses.dataclass(frozen=True)
class SortedBatches:
  """The cost of sorted batching.

  Attributes:
    batch_size: sequences in a batch.
    num_batches: batches; the last one may be smaller.
    num_shapes: different lengths that batches are padded to, each a shape to compile.
    num_tokens: tokens of all batches, padding included.
    num_padding_tokens: how many of them are padding.
    efficiency: real tokens / all tokens, a fraction.
    packing_factor: tokens with full padding / `num_tokens`, to compare with packs.
    sequences_by_length: how many sequences are padded to each length.
  """

  batch_size: int
  num_batches: int
  num_shapes: int
  num_tokens: int
  num_padding_tokens: int
  efficiency: float
  packing_factor: float
  sequences_by_length: dict[int, int]


def sorted_batches(
  histogram: Histogram, *, batch_size: int = 256, length_multiple: int = 1
) -> SortedBatches:
  """Counts batches of sequences sorted by length, each padded to its longest sequence.

  Args:
    histogram: the lengths.
    batch_size: sequences in a batch.
    length_multiple: batches are padded to a multiple of this many tokens.

  Returns:
    Tokens, padding and shapes.

  Raises:
    InputError: batch_size or length_multiple below 1.

  Example:
    >>> histogram = Histogram.from_lengths([3, 5, 2, 5], max_sequence_length=8)
    >>> batches = sorted_batches(histogram, batch_size=2)
    >>> batches.num_shapes, batches.num_padding_tokens, batches.packing_factor
    (2, 1, 2.0)

  References:
    Krell et al., https://arxiv.org/abs/2107.02027, Table 1 (SORT).
  """
  for name, value in (("batch_size", batch_size), ("length_multiple", length_multiple)):
    check_integer(name, value, at_least=1)
  n = histogram.num_sequences
  num_batches = -(-n // batch_size)
  ranks = np.cumsum(histogram.counts)
  # A batch is padded to the length of its last sequence. Count batches by that length:
  last_full = ranks // batch_size  # full batches that end within the first `rank` sequences
  batches = np.diff(last_full, prepend=0)
  lengths = np.arange(1, ranks.size + 1)
  padded = -(-lengths // length_multiple) * length_multiple
  by_length: collections.Counter[int] = collections.Counter()
  for index in np.flatnonzero(batches).tolist():
    by_length[int(padded[index])] += int(batches[index]) * batch_size
  rest = n % batch_size
  if rest:
    by_length[-(-histogram.longest // length_multiple) * length_multiple] += rest
  num_tokens = sum(length * count for length, count in by_length.items())
  return SortedBatches(
    batch_size=batch_size,
    num_batches=num_batches,
    num_shapes=len(by_length),
    num_tokens=num_tokens,
    num_padding_tokens=num_tokens - histogram.num_tokens,
    efficiency=histogram.num_tokens / num_tokens,
    packing_factor=n * histogram.max_sequence_length / num_tokens,
    sequences_by_length=dict(by_length),
  )
