"""Chooses the lengths that buckets pad to."""

from __future__ import annotations

import numpy as np

_EDGES = 2048  # the most lengths from which edges are chosen


def bucket_edges(lengths, counts, cost, num_buckets: int) -> np.ndarray:
  """Chooses at most `num_buckets` lengths to pad to, the longest included, at least cost.

  The method is dynamic programming over the lengths that occur.
  """
  if lengths.size > _EDGES:  # merge neighbours; the upper length stands for both
    groups = np.linspace(0, lengths.size, _EDGES + 1).astype(int)
    counts = np.add.reduceat(counts, groups[:-1])
    lengths = lengths[groups[1:] - 1]
  ranks = np.concatenate([[0.0], np.cumsum(counts)])
  prices = cost(lengths.astype(np.float64))
  # best[j]: cost of the first j lengths. In a bucket (i, j], each sequence costs price j.
  best = np.full(lengths.size + 1, np.inf)
  best[0] = 0.0
  choices = []
  for _ in range(min(num_buckets, lengths.size)):  # more buckets would stay empty
    table = best[:, None] + (ranks[None, 1:] - ranks[:, None]) * prices[None, :]
    table[np.arange(lengths.size + 1)[:, None] > np.arange(lengths.size)[None, :]] = np.inf
    origin = table.argmin(axis=0)
    best = np.concatenate([[0.0], table[origin, np.arange(lengths.size)]])
    choices.append(origin)
  edges = []
  end = lengths.size
  for origin in reversed(choices):
    if not end:
      break
    edges.append(int(lengths[end - 1]))
    end = int(origin[end - 1])
  return np.array(edges[::-1])
