"""The three arrays that a model needs for a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from packing.errors import InputError


def make_row(sequences: Sequence[Any], row_length: int) -> dict[str, np.ndarray]:
  """Lays the sequences of a pack into a row, from the left.

  Args:
    sequences: the token ids of each sequence, as anything that NumPy takes as an array.
    row_length: S, in tokens.

  Returns:
    int32[S] each: `input_ids`; `segment_ids`, which number the sequences from 1; and
    `position_ids`, which start at 0 in each sequence. Padding is 0 in all of them.

  Raises:
    InputError: there are no tokens, more tokens than the row holds, or tokens that are not
      integers.

  >>> make_row([[5, 6], [4, 4, 4]], row_length=8)["segment_ids"]
  array([1, 1, 2, 2, 2, 0, 0, 0], dtype=int32)
  """
  lengths = np.array([len(sequence) for sequence in sequences], np.int64)
  used = int(lengths.sum())
  if not 0 < used <= row_length:
    raise InputError(
      f"The sequences of a pack have {used} tokens together; expected 1 to {row_length}, "
      "the row length."
    )
  tokens = np.concatenate([sequence for sequence in sequences if len(sequence)])
  if tokens.dtype.kind not in "iu":
    raise InputError(f"Tokens are {tokens.dtype}; expected integers, the token ids.")
  starts = np.cumsum(lengths) - lengths
  fields = {
    "input_ids": tokens,
    "segment_ids": np.repeat(np.arange(1, lengths.size + 1), lengths),
    "position_ids": np.arange(used) - np.repeat(starts, lengths),
  }
  fill = (0, row_length - used)
  return {name: np.pad(field, fill).astype(np.int32) for name, field in fields.items()}
