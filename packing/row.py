"""A row: the three arrays that a model needs for it, and what it costs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from packing.errors import InputError, short_repr

_FIELDS = ("input_ids", "segment_ids", "position_ids")


def make_row(
  sequences: Sequence[Any],
  row_length: int,
  *,
  length_multiple: int = 1,
  separator_tokens: int = 0,
) -> dict[str, np.ndarray]:
  """Lays the sequences of a pack into a row, from the left.

  Args:
    sequences: the token ids of each sequence, as anything that NumPy takes as an array.
    row_length: S, in tokens.
    length_multiple: each sequence starts at a multiple of this many tokens.
    separator_tokens: at least as many tokens of padding between two sequences.

  Returns:
    int32[S] each: `input_ids`; `segment_ids`, which number the sequences from 1; and
    `position_ids`, which start at 0 in each sequence. Padding is 0 in all of them.

  Raises:
    InputError: there are no tokens, more tokens than the row holds, or tokens that are not
      integers.

  >>> make_row([[5, 6], [4, 4, 4]], row_length=8)["segment_ids"]
  array([1, 1, 2, 2, 2, 0, 0, 0], dtype=int32)
  >>> make_row([[5, 6], [4, 4, 4]], row_length=8, length_multiple=4)["input_ids"]
  array([5, 6, 0, 0, 4, 4, 4, 0], dtype=int32)
  """
  lengths = np.array([len(sequence) for sequence in sequences], np.int64)
  multiple = length_multiple
  sizes = -(-lengths // multiple) * multiple - (-separator_tokens // multiple) * multiple
  starts = np.cumsum(sizes) - sizes
  used = int(starts[-1] + lengths[-1]) if lengths.any() else 0
  if not 0 < used <= row_length:
    raise InputError(
      f"The sequences of a pack have {used} tokens together; expected 1 to {row_length}, "
      "the row length."
    )
  tokens = np.concatenate([sequence for sequence in sequences if len(sequence)])
  if tokens.dtype.kind not in "iu":
    raise InputError(f"Tokens are {tokens.dtype}; expected integers, the token ids.")
  positions = np.arange(len(tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
  places = np.repeat(starts, lengths) + positions
  row = {name: np.zeros(row_length, np.int32) for name in _FIELDS}
  row["input_ids"][places] = tokens
  row["segment_ids"][places] = np.repeat(np.arange(1, lengths.size + 1), lengths)
  row["position_ids"][places] = positions
  return row


class Layers(Protocol):
  """The part of an encoder's config that decides what a token and a pair cost."""

  hidden_size: int
  intermediate_size: int


@dataclasses.dataclass(frozen=True)
class Cost:
  """The cost of a row: `linear` for each token, `quadratic` for each pair of tokens.

  Pairs are those of one sequence, so a row has as many as the sum of its squared lengths.
  Attention that computes whole rows has the squared row length instead.

  Attributes:
    linear: of a token of the row, padding too.
    quadratic: of a pair of tokens, in the same unit.

  Raises:
    InputError: negative, or both zero.

  Example:
    >>> Cost(linear=1.0, quadratic=0.01).of([(100,), (50, 50)], row_length=100).tolist()
    [200.0, 150.0]
  """

  linear: float = 1.0
  quadratic: float = 0.0

  def __post_init__(self):
    for name, value in dataclasses.asdict(self).items():
      if not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InputError(f"{name} is {short_repr(value)}; expected a number, at least 0.")
    if not self.linear and not self.quadratic:
      raise InputError("linear and quadratic are 0; expected one of them above 0.")

  @classmethod
  def of_bert(cls, config: Layers) -> Cost:
    """Counts the operations of an encoder layer, in units of a token's.

    A token is multiplied with the query, key, value and output matrices and with two of the
    feed-forward layer; a pair takes a product of two heads' vectors for its score and one
    for its value.

    Example:
      >>> import types
      >>> base = types.SimpleNamespace(hidden_size=768, intermediate_size=3072)
      >>> round(1 / Cost.of_bert(base).quadratic)  # pairs that cost as much as a token
      4608
    """
    width, inner = config.hidden_size, config.intermediate_size
    return cls(1.0, 2 * width / (4 * width**2 + 2 * width * inner))

  @classmethod
  def fit(cls, row_lengths, squares, seconds) -> Cost:
    """Fits measured steps by least squares of relative errors, neither part below zero.

    Args:
      row_lengths: float[N]; tokens of the rows of each measurement.
      squares: float[N]; the sum of squared lengths of the same rows.
      seconds: float[N]; what they took.

    Returns:
      The cost in seconds.

    Raises:
      InputError: fewer than two measurements, different numbers of them, or a time that is
        not above zero.

    Example:
      >>> Cost.fit([512, 512], [2**18, 2**16], [1.536, 0.768])
      Cost(linear=0.001, quadratic=3.90625e-06)
    """
    import scipy.optimize  # as slow as all other imports, and used only here

    tokens, pairs, times = (np.asarray(x, float) for x in (row_lengths, squares, seconds))
    if not (tokens.shape == pairs.shape == times.shape) or tokens.ndim != 1:
      raise InputError(
        f"Expected as many row_lengths, squares and seconds; found shapes {tokens.shape}, "
        f"{pairs.shape} and {times.shape}."
      )
    if tokens.size < 2 or not (times > 0).all():
      raise InputError("Expected two measurements or more, each above 0 seconds.")
    relative = np.stack([tokens, pairs], axis=1) / times[:, None]
    scale = np.linalg.norm(relative, axis=0)
    parts, _ = scipy.optimize.nnls(relative / scale, np.ones(times.size))
    linear, quadratic = (float(f"{part:.6g}") for part in parts / scale)
    return cls(linear, quadratic)

  def of(self, packs, *, row_length: int) -> np.ndarray:
    """float[N]; the cost of rows of this length with each of some packs of lengths."""
    squares = [sum(length * length for length in pack) for pack in packs]
    return self.of_squares(squares, row_length=row_length)

  def of_squares(self, squares, *, row_length: int) -> np.ndarray:
    """float[...]; the cost of rows whose squared lengths have these sums."""
    return self.linear * row_length + self.quadratic * np.asarray(squares, float)
