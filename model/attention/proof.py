"""Compares two implementations of attention, to find errors that packed and unpacked share.

A kernel that is wrong in packed and unpacked rows alike passes `model.testing.verify`. Here
its outputs and gradients are compared with those of a reference, in float32. The inputs
have what kernels got wrong elsewhere: rows that end in padding, padding between sequences,
empty rows, and scores so low that the sum of their exponentials is 0 unless the largest
score is taken off first.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

NUM_HEADS, MAX_SEGMENTS = 2, 3
_LOW = 800.0  # scores of about -800 / sqrt(H), at most -50 for heads of up to 256 numbers

# From query, key, value [B, S, N, H] and segment ids int32[B, S] to [B, S, N, H].
Attend = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


def segment_ids_of(row_length: int) -> np.ndarray:
  """A full row, a pack that ends in padding, one with a gap, one token, and an empty row.

  Returns:
    int32[5, S], with at most `MAX_SEGMENTS` sequences per row.

  Example:
    >>> segment_ids_of(8)[1:].tolist()  # doctest: +NORMALIZE_WHITESPACE
    [[1, 1, 1, 1, 2, 2, 3, 0], [1, 1, 1, 1, 0, 0, 2, 0],
     [1, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0]]
  """
  half, quarter, eighth = (row_length // part for part in (2, 4, 8))
  rows: list[list[tuple[int, int]]] = [  # ids and how often
    [(1, row_length)],
    [(1, half), (2, quarter), (3, eighth)],
    [(1, half), (0, quarter), (2, eighth)],
    [(1, 1)],
    [],
  ]
  ids = np.zeros((len(rows), row_length), np.int32)
  for row, parts in zip(ids, rows, strict=True):
    given = [number for number, times in parts for _ in range(times)]
    row[: len(given)] = given
  return ids


def difference(
  attend: Attend, reference: Attend, *, dtype: str, row_length: int, head_size: int
) -> float:
  """The largest difference divided by the largest value, of outputs and of each gradient.

  Outputs are compared at real tokens, gradients at all tokens. If one gives NaN, the
  difference is NaN.

  Args:
    attend, reference: the two implementations.
    dtype: the dtype that `attend` gets; `reference` gets the same numbers in float32.
    row_length: S, in tokens.
    head_size: H.
  """
  ordinary = segment_ids_of(row_length)
  segment_ids = np.concatenate([ordinary, ordinary])
  real = (segment_ids > 0)[:, :, None, None]
  rng = np.random.default_rng(0)
  shape = (*segment_ids.shape, NUM_HEADS, head_size)
  query, key, value, weights = (rng.standard_normal(shape) for _ in range(4))
  shift = np.sqrt(_LOW / head_size)  # the second half of the rows has low scores
  query[len(ordinary) :] += shift
  key[len(ordinary) :] -= shift
  narrow = [jnp.asarray(x, dtype) for x in (query, key, value, weights)]

  def run(attend: Attend, wide: str) -> list[np.ndarray]:
    def outputs(query, key, value):
      return jnp.where(real, attend(query, key, value, jnp.asarray(segment_ids)), 0)

    @jax.jit
    def outputs_and_gradients(query, key, value, weights):
      found, pull_back = jax.vjp(outputs, query, key, value)
      return found, *pull_back(weights)

    # By default, accelerators compute float32 products with fewer bits.
    with jax.default_matmul_precision("highest" if wide == "float32" else "default"):
      results = outputs_and_gradients(*(x.astype(wide) for x in narrow))
    return [np.asarray(x, np.float32) for x in results]

  def row_by_row(*inputs):  # a reference may need memory for all pairs of a row
    return jax.lax.map(lambda row: reference(*(x[None] for x in row))[0], inputs)

  pairs = zip(run(attend, dtype), run(row_by_row, "float32"), strict=True)
  return float(np.max([np.abs(x - y).max() / np.abs(y).max() for x, y in pairs]))
