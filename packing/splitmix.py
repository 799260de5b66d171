"""SplitMix64: well-mixed bits from numbers, the same on every machine."""

from __future__ import annotations

import numpy as np

GAMMA = 0x9E3779B97F4A7C15


def mix(x: np.ndarray) -> np.ndarray:
  """64 well-mixed bits for each of uint64[...].

  Example:
    >>> hex(int(mix(np.zeros(1, np.uint64))[0]))
    '0xe220a8397b1dcdaf'

  References:
    Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, 2014.
  """
  x = x + np.uint64(GAMMA)
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))


def mix_one(number: int) -> int:
  """`mix` of any integer, taken modulo 2**64."""
  return int(mix(np.array([number & (2**64 - 1)], np.uint64))[0])
