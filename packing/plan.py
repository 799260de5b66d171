"""A plan says which lengths share a pack; an assignment, which sequences do."""

from __future__ import annotations

import dataclasses

import numpy as np

from packing.errors import InputError
from packing.histogram import Histogram, check_lengths

Strategy = tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Assignment:
  """Which sequences share a pack, in compressed sparse row form.

  Attributes:
    offsets: int64[num_packs + 1]; pack `i` holds `sequence_ids[offsets[i]:offsets[i + 1]]`.
    sequence_ids: int64[num_sequences]; each sequence number exactly once.
  """

  offsets: np.ndarray
  sequence_ids: np.ndarray

  @property
  def num_packs(self) -> int:
    return self.offsets.size - 1


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
  """A partition of a histogram into packs.

  Attributes:
    histogram: the lengths that are packed.
    strategies: K sorted tuples of lengths, in tokens; the sequences of one pack.
    repeat_counts: int64[K]; how many packs use each strategy.
    row_length: tokens of a row, at least the longest length.
    max_sequences_per_pack: the depth limit the plan was made under.
    algorithm: what made the plan.

  Raises:
    InputError: the packs overflow a row, exceed the depth limit, or do not use each
      sequence of the histogram exactly once.

  Example:
    >>> histogram = Histogram(np.array([0, 1, 1, 0, 1]))
    >>> plan = Plan(histogram, [(2, 3), (5,)], np.array([1, 1]), row_length=5,
    ...             max_sequences_per_pack=2, algorithm="by hand")
    >>> plan.num_packs, plan.efficiency, plan.packing_factor, plan.lower_bound
    (2, 1.0, 1.5, 2)
  """

  histogram: Histogram
  strategies: list[Strategy]
  repeat_counts: np.ndarray
  row_length: int
  max_sequences_per_pack: int
  algorithm: str

  def __post_init__(self):
    used = np.zeros_like(self.histogram.counts)
    for strategy, count in zip(self.strategies, self.repeat_counts, strict=True):
      if sum(strategy) > self.row_length:
        raise InputError(
          f"Strategy {strategy} has {sum(strategy)} tokens; the row has {self.row_length}."
        )
      if not 1 <= len(strategy) <= self.max_sequences_per_pack or count < 1:
        raise InputError(
          f"Strategy {strategy}, used {count} times, has {len(strategy)} sequences; "
          f"expected 1 to {self.max_sequences_per_pack}, used at least once."
        )
      np.add.at(used, np.array(strategy) - 1, count)
    if not np.array_equal(used, self.histogram.counts):
      index = int(np.flatnonzero(used != self.histogram.counts)[0])
      raise InputError(
        f"The plan uses {used[index]} sequences of length {index + 1}; the histogram "
        f"has {self.histogram.counts[index]}."
      )

  @property
  def num_packs(self) -> int:
    return int(self.repeat_counts.sum())

  @property
  def num_sequences(self) -> int:
    return self.histogram.num_sequences

  @property
  def num_padding_tokens(self) -> int:
    return self.num_packs * self.row_length - self.histogram.num_tokens

  @property
  def efficiency(self) -> float:
    """Real tokens / all tokens, a fraction."""
    return self.histogram.num_tokens / (self.num_packs * self.row_length)

  @property
  def packing_factor(self) -> float:
    """Sequences / packs, at least 1."""
    return self.num_sequences / self.num_packs

  @property
  def packing_depth(self) -> int:
    """Most sequences in a pack of this plan."""
    return max(map(len, self.strategies))

  @property
  def lower_bound(self) -> int:
    """No plan at this depth and row length can have fewer packs."""
    counts = self.histogram.counts
    return max(
      -(-self.histogram.num_tokens // self.row_length),
      -(-self.num_sequences // self.max_sequences_per_pack),
      int(counts[self.row_length // 2 :].sum()),  # no two of these fit together
    )

  def assign(self, lengths, *, seed: int = 0) -> Assignment:
    """Puts sequences into the plan's packs, at random among those of equal length.

    The same plan with another seed is another epoch's assignment: which sequences
    share a pack changes, the number of packs does not.

    Args:
      lengths: int[num_sequences]; tokens of each sequence. Must count up to the
        plan's histogram.
      seed: of the random order.

    Returns:
      Packs in the order of the plan's strategies.

    Raises:
      InputError: the lengths are not those the plan was made for.

    Example:
      >>> histogram = Histogram.from_lengths([3, 5, 2], max_sequence_length=5)
      >>> plan = Plan(histogram, [(2, 3), (5,)], np.array([1, 1]), row_length=5,
      ...             max_sequences_per_pack=2, algorithm="by hand")
      >>> assignment = plan.assign([3, 5, 2])
      >>> assignment.offsets.tolist(), assignment.sequence_ids.tolist()
      ([0, 2, 3], [2, 0, 1])
    """
    lengths = check_lengths(lengths, self.histogram.max_sequence_length)
    counts = np.bincount(lengths, minlength=self.histogram.max_sequence_length + 1)[1:]
    if not np.array_equal(counts, self.histogram.counts):
      index = int(np.flatnonzero(counts != self.histogram.counts)[0])
      raise InputError(
        f"There are {counts[index]} lengths of {index + 1} tokens; the plan was made for "
        f"{self.histogram.counts[index]}. Make a plan from these lengths."
      )
    slot_lengths = np.concatenate(
      [np.tile(s, n) for s, n in zip(self.strategies, self.repeat_counts, strict=True)]
    )
    depths = np.repeat([len(s) for s in self.strategies], self.repeat_counts)
    # Shuffle, then sort by length: the i-th slot of a length takes its i-th sequence.
    shuffled = np.random.default_rng(seed).permutation(lengths.size)
    by_length = shuffled[np.argsort(lengths[shuffled], kind="stable")]
    sequence_ids = np.empty(lengths.size, np.int64)
    sequence_ids[np.argsort(slot_lengths, kind="stable")] = by_length
    return Assignment(np.concatenate([[0], np.cumsum(depths)]), sequence_ids)
