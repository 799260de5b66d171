"""Histograms of sequence lengths: all that a packing algorithm knows about a dataset."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.resources
import json

import numpy as np

from packing.errors import InputError, as_array, check, check_integer

MAX_SEQUENCE_LENGTH = 2**24
CHUNK = 2**20  # lengths that are looked at together


@dataclasses.dataclass(frozen=True, eq=False)
class Histogram:
  """How many sequences of each length a dataset has.

  Attributes:
    counts: int64[S]; entry `i` counts the sequences of `i + 1` tokens, special tokens
      included. Read-only.
    source: a description of where the counts come from.

  Raises:
    InputError: the counts are not a vector of whole, non-negative numbers, are all zero, or
      add up to more than 2^53 sequences or 2^62 tokens.

  Example:
    >>> histogram = Histogram(np.array([0, 3, 0, 1]))
    >>> histogram.max_sequence_length, histogram.num_sequences, histogram.num_tokens
    (4, 4, 10)
  """

  counts: np.ndarray
  source: str = ""

  def __post_init__(self):
    counts = as_array(self.counts)
    if counts.ndim != 1 or counts.size == 0 or counts.dtype.kind not in "iuf":
      raise InputError(
        f"counts have shape {counts.shape} of {counts.dtype}; expected a vector of numbers."
      )
    whole = (counts >= 0) & (counts <= 2**53) & (counts == np.floor(counts))
    for index in np.flatnonzero(~whole)[:1]:
      raise InputError(
        f"counts[{index}] is {counts[index]}; expected a whole number from 0 to 2^53."
      )
    floats = counts.astype(np.float64)
    if floats.sum() > 2.0**53 or floats @ np.arange(1.0, counts.size + 1) > 2.0**62:
      raise InputError(
        f"{floats.sum():.3g} sequences exceed 2^53, or 2^62 tokens. Scale the counts down."
      )
    if not counts.any():
      raise InputError("The histogram is empty: expected at least one sequence.")
    counts = counts.astype(np.int64)
    counts.flags.writeable = False
    object.__setattr__(self, "counts", counts)

  @classmethod
  def from_lengths(
    cls, lengths, *, max_sequence_length: int, source: str = ""
  ) -> Histogram:
    """Makes the histogram of some lengths.

    Args:
      lengths: int[num_sequences]; tokens of each sequence, at least 1.
      max_sequence_length: S, the longest length allowed, in tokens.
      source: a description of where the lengths come from.

    Returns:
      A histogram of S entries.

    Raises:
      InputError: a length is not a whole number in 1..S; names the first one.

    Example:
      >>> Histogram.from_lengths([2, 4, 2, 2], max_sequence_length=4).counts.tolist()
      [0, 3, 0, 1]
    """
    lengths = check_lengths(lengths, max_sequence_length)
    return cls(count_lengths(lengths, max_sequence_length), source=source)

  @property
  def max_sequence_length(self) -> int:
    """S, the number of entries of the histogram, in tokens."""
    return self.counts.size

  @property
  def num_sequences(self) -> int:
    return int(self.counts.sum())

  @property
  def num_tokens(self) -> int:
    """Real tokens of the dataset."""
    return int(self.counts @ np.arange(1, self.counts.size + 1))

  def extended(self, max_sequence_length: int) -> Histogram:
    """The same counts in S entries.

    Args:
      max_sequence_length: S, the longest length allowed, in tokens.

    Raises:
      InputError: a sequence is longer.

    Example:
      >>> Histogram(np.array([0, 3])).extended(4).counts.tolist()
      [0, 3, 0, 0]
    """
    if self.longest > max_sequence_length:
      raise InputError(
        f"The longest sequence has {self.longest} tokens; expected at most "
        f"max_sequence_length={max_sequence_length}. Pass a larger max_sequence_length."
      )
    counts = np.zeros(max_sequence_length, np.int64)
    counts[: self.longest] = self.counts[: self.longest]
    return Histogram(counts, source=self.source)

  @functools.cached_property
  def sha256(self) -> str:
    """SHA-256 of the counts as little-endian int64, up to the longest length that occurs.

    Two histograms of the same sequences have the same digest, even if S differs.
    """
    return hashlib.sha256(self.counts[: self.longest].astype("<i8").tobytes()).hexdigest()

  @property
  def longest(self) -> int:
    """The longest length that occurs, in tokens."""
    return int(np.flatnonzero(self.counts)[-1]) + 1


def check_lengths(lengths, max_sequence_length: int) -> np.ndarray:
  """Returns lengths as an integer vector after checking their range.

  Args:
    lengths: int[num_sequences], in tokens.
    max_sequence_length: the longest length allowed, in tokens.

  Raises:
    InputError: not a vector of whole numbers in 1..max_sequence_length.
  """
  check_integer(
    "max_sequence_length", max_sequence_length, at_least=1, at_most=MAX_SEQUENCE_LENGTH
  )
  lengths = as_array(lengths)
  if lengths.ndim != 1 or lengths.size == 0 or lengths.dtype.kind not in "iu":
    raise InputError(
      f"lengths have shape {lengths.shape} of {lengths.dtype}; expected a non-empty vector "
      "of integers. Count the tokens of each sequence: [len(x) for x in sequences]."
    )
  for first in range(0, lengths.size, CHUNK):
    chunk = lengths[first : first + CHUNK]
    for wrong, remedy in (
      (chunk < 1, "Drop empty sequences."),
      (chunk > max_sequence_length, "Truncate it, or pass a larger max_sequence_length."),
    ):
      if wrong.any():
        index = first + int(np.flatnonzero(wrong)[0])
        raise InputError(
          f"lengths[{index}] is {lengths[index]}; expected 1 to "
          f"max_sequence_length={max_sequence_length}. {remedy}"
        )
  return lengths


def check_same_lengths(lengths, histogram: Histogram) -> np.ndarray:
  """Returns lengths as an integer vector after checking that they have this histogram.

  Raises:
    InputError: the lengths are not those of the histogram.
  """
  lengths = check_lengths(lengths, histogram.max_sequence_length)
  counts = count_lengths(lengths, histogram.max_sequence_length)
  for index in np.flatnonzero(counts != histogram.counts)[:1]:
    raise InputError(
      f"{counts[index]} of the lengths are {index + 1}; in the plan's histogram "
      f"{histogram.counts[index]} are. Give the lengths that the plan was made from, or "
      "make a plan from these."
    )
  return lengths


def count_lengths(lengths: np.ndarray, max_sequence_length: int) -> np.ndarray:
  """int64[S]; how many of the lengths, already checked, are 1, 2, ... S."""
  counts = np.zeros(max_sequence_length + 1, np.int64)
  for start in range(0, lengths.size, CHUNK):  # bincount copies to int64
    chunk = lengths[start : start + CHUNK]
    counts += np.bincount(chunk.astype(np.int64), minlength=counts.size)
  return counts[1:]


@functools.cache
def _built_in() -> dict:
  text = importlib.resources.files("packing").joinpath("histograms.json").read_text()
  return json.loads(text)


def histogram_names() -> list[str]:
  """The names that `load_histogram` takes."""
  return sorted(_built_in())


def load_histogram(name: str) -> Histogram:
  """Loads the histogram of a dataset from the papers.

  Args:
    name: one of `histogram_names()`, such as "wikipedia_512".

  Raises:
    InputError: the name is unknown; lists the known ones.

  Example:
    >>> load_histogram("squad_1_1_384").num_sequences
    88641

  References:
    Krell et al., https://arxiv.org/abs/2107.02027, Listing 6; each histogram's
    `source` says where its counts come from.
  """
  check(name in _built_in(), "histogram", name, f"one of {', '.join(histogram_names())}")
  entry = _built_in()[name]
  return Histogram(np.array(entry["counts"], np.int64), source=entry["source"])
