"""A shuffled order whose every place can be computed by itself, in constant memory."""

from __future__ import annotations

import numpy as np

from packing.splitmix import GAMMA, mix

# Fewer rounds than this favour some orders; tests/packing/test_permutation.py counts them.
_ROUNDS, _ROUNDS_OF_FEW, _FEW = 8, 24, 64
_HALF = np.uint64(32)


def permute(places: np.ndarray, sizes: np.ndarray, keys: np.ndarray) -> np.ndarray:
  """Where the elements of keyed permutations go.

  For each size n and key, the places 0 to n - 1 go to 0 to n - 1, each to another one. A
  Feistel network over two numbers, which stand for a place, computes it (Black and Rogaway
  2002, "Ciphers with arbitrary finite domains"). The few results that are not below n go
  through the network again until they are.

  Args:
    places: uint64[m], each below its size.
    sizes: uint64[m]; n of each place, from 1 to 2^62. Or uint64[1] if all are the same,
      which is faster.
    keys: uint64[m] or uint64[1], as `sizes`; selects the permutation.

  None of these is checked.

  Returns:
    uint64[m].

  Example:
    >>> places = np.arange(5, dtype=np.uint64)
    >>> permute(places, np.array([5], np.uint64), np.array([7], np.uint64)).tolist()
    [1, 2, 4, 0, 3]
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
  one = np.uint64(1)
  # About the square root; even, since odd numbers alone give no odd permutations.
  lefts = np.ceil(np.sqrt(sizes)).astype(np.uint64)
  lefts += lefts & one
  rights = (sizes + (lefts - one)) // lefts
  result = _network(places, lefts, rights, keys, rounds)
  while (outside := np.flatnonzero(result >= sizes)).size:
    left, right, key = (
      np.broadcast_to(x, places.shape)[outside] for x in (lefts, rights, keys)
    )
    result[outside] = _network(result[outside], left, right, key, rounds)
  return result


def _network(places, lefts, rights, keys, rounds: int) -> np.ndarray:
  """A Feistel network: adds a hash of one number to the other, in turn."""
  one, other = np.divmod(places, rights)
  size_of_one, size_of_other = lefts, rights
  for number in range(rounds):
    hashed = mix(other + (keys ^ np.uint64(number * GAMMA % 2**64)))
    hashed >>= _HALF
    hashed *= size_of_one
    hashed >>= _HALF  # now below the size
    hashed += one
    np.minimum(hashed, hashed - size_of_one, out=hashed)  # modulo the size
    one, other = other, hashed
    size_of_one, size_of_other = size_of_other, size_of_one
  return one * rights + other  # after an even number of rounds
