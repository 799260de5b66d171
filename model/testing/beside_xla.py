"""Compares attention with XLA's, to find errors that packed and unpacked rows share.

A kernel that is wrong in packed and unpacked rows alike passes `verify`. Here its outputs
and gradients, for rows of real lengths, are compared with XLA's in float32.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from model.attention import attention

NUM_HEADS, HEAD_SIZE = 2, 64  # the head size of BERT-base and BERT-large


def segment_ids_of(row_length: int) -> np.ndarray:
  """A full row, a pack followed by padding, a single token, and an empty row.

  Returns:
    int32[4, S], with at most 3 sequences per row.

  Example:
    >>> segment_ids_of(8)[1:].tolist()
    [[1, 1, 1, 1, 2, 2, 3, 0], [1, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0]]
  """
  half, quarter, eighth = (row_length // part for part in (2, 4, 8))
  rows: list[list[int]] = [[row_length], [half, quarter, eighth], [1], []]
  ids = np.zeros((len(rows), row_length), np.int32)
  for row, lengths in zip(ids, rows, strict=True):
    row[: sum(lengths)] = np.repeat(np.arange(len(lengths)) + 1, lengths)
  return ids


def difference_from_xla(implementation: str, dtype: str, row_length: int) -> float:
  """The largest difference divided by the largest value, of outputs and of each gradient.

  Outputs are compared at real tokens, gradients at all tokens. If the kernel gives NaN, the
  difference is NaN.

  Args:
    implementation: a key of `kernels.IMPLEMENTATIONS`.
    dtype: the dtype of query, key and value; XLA gets the same numbers in float32.
    row_length: S, in tokens.

  Raises:
    AttentionError: the implementation cannot run here.
  """
  segment_ids = segment_ids_of(row_length)
  real = (segment_ids > 0)[:, :, None, None]
  rng = np.random.default_rng(0)
  shape = (*segment_ids.shape, NUM_HEADS, HEAD_SIZE)
  *inputs, weights = (jnp.asarray(rng.standard_normal(shape), dtype) for _ in range(4))

  def run(name: str, wide: str) -> list[np.ndarray]:
    def attend(query, key, value):
      attended = attention(
        query, key, value, jnp.asarray(segment_ids), implementation=name, max_segments=3
      )
      return jnp.where(real, attended, 0)

    @jax.jit
    def outputs_and_gradients(inputs, weights):
      outputs, pull_back = jax.vjp(attend, *inputs)
      return outputs, *pull_back(weights)

    given = [x.astype(wide) for x in inputs], weights.astype(wide)
    # By default, accelerators compute float32 products with fewer bits.
    with jax.default_matmul_precision("highest" if wide == "float32" else "default"):
      return [np.asarray(x, np.float32) for x in outputs_and_gradients(*given)]

  pairs = zip(run(implementation, dtype), run("xla", "float32"), strict=True)
  return float(np.max([np.abs(x - y).max() / np.abs(y).max() for x, y in pairs]))
