"""A shuffled order whose every place can be computed by itself, in constant memory."""

from __future__ import annotations

import numpy as np

# Of each word size: the shifts and odd factors of a hash that mixes all bits. 32 bits: the
# end of MurmurHash3; 64 bits: splitmix64 (Stafford's mix 13).
_MIXERS: dict[type, tuple] = {
  np.uint32: (16, 0x85EBCA6B, 13, 0xC2B2AE35, 16),
  np.uint64: (30, 0xBF58476D1CE4E5B9, 27, 0x94D049BB133111EB, 31),
}
_LARGEST_OF_32_BITS = 2**31
# Fewer rounds than this favour some orders; tests/packing/test_permutation.py counts them.
_ROUNDS, _ROUNDS_OF_FEW, _FEW = 8, 24, 64


def word_of(largest: int) -> type:
  """The type that computes with sizes up to `largest`: uint32, or uint64 above 2^31."""
  return np.uint32 if largest <= _LARGEST_OF_32_BITS else np.uint64


def permute(places: np.ndarray, sizes: np.ndarray, keys: np.ndarray) -> np.ndarray:
  """Where the elements of keyed permutations go.

  For each size n and key, the places 0 to n - 1 go to 0 to n - 1, each to another one. A
  Feistel network over two numbers, which stand for a place, computes it (Black and Rogaway
  2002, "Ciphers with arbitrary finite domains"). The few results that are not below n go
  through the network again until they are.

  Args:
    places: uint32[m] or uint64[m], each below its size.
    sizes: of the same type, [m]; n of each place, from 1. At most 2^31 with 32 bits. Or [1]
      if all are the same, which is faster.
    keys: of the same type and shape as `sizes`; selects the permutation.

  Returns:
    Of the same type, [m].

  Example:
    >>> places, five = np.arange(5, dtype=np.uint32), np.array([5], np.uint32)
    >>> sorted(permute(places, five, np.array([7], np.uint32)).tolist())
    [0, 1, 2, 3, 4]
  """
  few = sizes < _FEW
  if few.all() or not few.any():
    return _walk(places, sizes, keys, _ROUNDS_OF_FEW if few.any() else _ROUNDS)
  result = np.empty_like(places)
  for here, rounds in ((few, _ROUNDS_OF_FEW), (~few, _ROUNDS)):
    result[here] = _walk(places[here], sizes[here], keys[here], rounds)
  return result


def _walk(places, sizes, keys, rounds: int) -> np.ndarray:
  """Applies the network until each result is below its size."""
  one = places.dtype.type(1)
  # About the square root; even, since odd numbers alone give no odd permutations.
  lefts = np.ceil(np.sqrt(sizes)).astype(places.dtype)
  lefts += lefts & one
  rights = (sizes + (lefts - one)) // lefts
  result = _network(places, lefts, rights, keys, rounds)
  while (outside := np.flatnonzero(result >= sizes)).size:
    of_each = (np.broadcast_to(x, places.shape)[outside] for x in (lefts, rights, keys))
    result[outside] = _network(result[outside], *of_each, rounds)
  return result


def _network(places, lefts, rights, keys, rounds: int) -> np.ndarray:
  """A Feistel network: adds a hash of one half to the other, in turn."""
  word = places.dtype.type
  half = word(places.dtype.itemsize * 4)
  one, other = np.divmod(places, rights)
  size_of_one, size_of_other = lefts, rights
  for number in range(rounds):
    added = other + (keys ^ word(number * 0x9E3779B9 & 0xFFFFFFFF))
    _mix(added)
    # The upper half of the bits, times the size: a number below the size.
    added >>= half
    added *= size_of_one
    added >>= half
    added += one
    np.minimum(added, added - size_of_one, out=added)  # modulo the size: below 0 is large
    one, other = other, added
    size_of_one, size_of_other = size_of_other, size_of_one
  return one * rights + other  # after an even number of rounds


def _mix(values: np.ndarray):
  word = values.dtype.type
  first, factor, second, other_factor, third = map(word, _MIXERS[word])
  values ^= values >> first
  values *= factor
  values ^= values >> second
  values *= other_factor
  values ^= values >> third
