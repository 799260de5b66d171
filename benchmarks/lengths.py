"""Draws sequence lengths from a histogram."""

from __future__ import annotations

import numpy as np

import packing


def draw_lengths(
  histogram: packing.Histogram, number: int, rng: np.random.Generator
) -> np.ndarray:
  """int[number], lengths in tokens.

  Example:
    >>> histogram = packing.Histogram.from_lengths([3], max_sequence_length=4)
    >>> draw_lengths(histogram, 2, np.random.default_rng(0)).tolist()
    [3, 3]
  """
  lengths = np.arange(1, histogram.max_sequence_length + 1)
  return rng.choice(lengths, number, p=histogram.counts / histogram.num_sequences)
