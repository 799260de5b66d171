"""From a histogram to a plan."""

from __future__ import annotations

import collections

import numpy as np

from packing import heuristics
from packing.errors import InputError
from packing.histogram import Histogram
from packing.plan import Plan, Strategy

ALGORITHMS = {"none": heuristics.none, "spfhp": heuristics.spfhp}


def pack(
  histogram: Histogram,
  *,
  algorithm: str = "spfhp",
  max_sequences_per_pack: int | None = None,
  row_length: int | None = None,
) -> Plan:
  """Packs the sequences of a histogram into rows.

  Args:
    histogram: the lengths to pack.
    algorithm: a name from `ALGORITHMS`.
    max_sequences_per_pack: the depth limit; None for no limit.
    row_length: tokens of a row; None for the histogram's maximum sequence length.

  Returns:
    A plan, checked to be a partition of the histogram.

  Raises:
    InputError: an unknown algorithm, a depth below 1, a row shorter than the longest
      sequence.

  Example:
    >>> histogram = Histogram.from_lengths([3, 5, 2], max_sequence_length=5)
    >>> pack(histogram, algorithm="spfhp").strategies
    [(2, 3), (5,)]
  """
  if algorithm not in ALGORITHMS:
    raise InputError(
      f"There is no packing algorithm {algorithm!r}; expected one of "
      f"{', '.join(ALGORITHMS)}."
    )
  row_length = histogram.max_sequence_length if row_length is None else row_length
  if row_length < histogram.longest:
    raise InputError(
      f"A row of {row_length} tokens cannot hold the longest sequence, "
      f"{histogram.longest} tokens. Pass row_length={histogram.longest} or more."
    )
  depth = row_length if max_sequences_per_pack is None else max_sequences_per_pack
  if depth < 1:
    raise InputError(
      f"max_sequences_per_pack is {depth}; expected at least 1, or None for no limit."
    )
  merged: collections.Counter[Strategy] = collections.Counter()
  packs = ALGORITHMS[algorithm](histogram, row_length=row_length, depth=depth)
  for count, strategy in packs:
    merged[tuple(sorted(strategy))] += count
  strategies = sorted(merged)
  return Plan(
    histogram=histogram,
    strategies=strategies,
    repeat_counts=np.array([merged[s] for s in strategies], np.int64),
    row_length=row_length,
    max_sequences_per_pack=1 if algorithm == "none" else depth,
    algorithm=algorithm,
  )
