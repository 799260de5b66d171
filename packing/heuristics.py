"""Packing algorithms that walk the histogram once, from long to short."""

from __future__ import annotations

import numpy as np

from packing.histogram import Histogram
from packing.plan import Strategy

Packs = list[tuple[int, Strategy]]  # (repeat count, strategy)


def none(histogram: Histogram, *, row_length: int, depth: int) -> Packs:
  """One sequence a pack: what padding does."""
  del row_length, depth
  return [(int(n), (i + 1,)) for i, n in enumerate(histogram.counts) if n]


def spfhp(histogram: Histogram, *, row_length: int, depth: int) -> Packs:
  """Shortest-pack-first histogram packing: worst fit, from long to short.

  Each length goes to the open pack with the most space left, as many at a time as
  there are sequences of that length or packs of that kind. Of packs with equal space
  the one opened last is extended first, as in the reference; the exact numbers of
  Tables 1 and 5 depend on it.

  Args:
    histogram: the lengths to pack.
    row_length: tokens of a row.
    depth: most sequences in a pack.

  Returns:
    Repeat counts and strategies, not merged.

  References:
    Krell et al., https://arxiv.org/abs/2107.02027, section 3.1.1 and Listing 3.
  """
  closed: Packs = []
  # open_packs[space]: packs with that many tokens left, the last opened at the end.
  open_packs: list[Packs] = [[] for _ in range(row_length + 1)]

  def put(count: int, strategy: Strategy, space: int):
    full = space == 0 or len(strategy) == depth
    (closed if full else open_packs[space]).append((count, strategy))

  for length in (np.flatnonzero(histogram.counts)[::-1] + 1).tolist():
    remaining = int(histogram.counts[length - 1])
    for space in range(row_length, length - 1, -1):
      while remaining and open_packs[space]:
        available, strategy = open_packs[space].pop()
        count = min(available, remaining)
        if available > count:
          open_packs[space].append((available - count, strategy))
        put(count, (length, *strategy), space - length)
        remaining -= count
    if remaining:
      put(remaining, (length,), row_length - length)
  return closed + [pack for packs in open_packs for pack in packs]
