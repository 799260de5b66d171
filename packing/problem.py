"""The problem that the algorithms solve: packing sizes into a capacity.

Length multiples and separators change how much of a row a sequence takes, but not how to
pack. Both are part of the sizes here, so no algorithm needs to know about them:

* with `length_multiple=m`, a sequence of `l` tokens takes `ceil(l / m) * m` tokens;
* with `t` separator tokens between two sequences (also rounded up to the multiple, so that
  each sequence starts at a multiple), `k` sequences take `t * (k - 1)` more tokens. Adding
  `t` to each size and once to the capacity is equivalent.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import operator
from collections.abc import Iterable

import numpy as np

from packing.errors import InputError, check_integer, short_repr
from packing.histogram import MAX_SEQUENCE_LENGTH, Histogram

Strategy = tuple[int, ...]
Packs = Iterable[tuple[int, Strategy]]  # (repeat count, strategy)
Usage = collections.Counter[Strategy]  # sizes of a pack, descending -> number of such packs

MAX_ROW_LENGTH = MAX_SEQUENCE_LENGTH
MAX_TOKENS = 2**62  # so that sums of sizes stay exact in int64


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
  """The sizes to pack, the number of sequences of each, and the row they go into.

  Attributes:
    counts: int64[capacity]; entry `i` counts the sequences of size `i + 1`.
    capacity: how much a row holds, in the unit of the sizes.
    depth: the most sequences allowed in a pack.
  """

  counts: np.ndarray
  capacity: int
  depth: int

  @functools.cached_property
  def sizes(self) -> np.ndarray:
    """int64[R]; the sizes that occur, ascending."""
    return np.flatnonzero(self.counts) + 1

  @functools.cached_property
  def demand(self) -> np.ndarray:
    """int64[R]; how many sequences there are of each size that occurs."""
    return self.counts[self.sizes - 1]

  @property
  def most_that_fit(self) -> int:
    """The most sequences that a row can hold without a depth limit."""
    return self.capacity // int(self.sizes[0])

  @functools.cached_property
  def simple_bound(self) -> int:
    """A lower bound on the packs of any plan, without a solver.

    No pack holds two sequences longer than half a row. A sequence that leaves less than
    `a` tokens, of those that are at least `a` long, has its pack for itself; the rest
    need at least their tokens. The bound is the best over all `a`, or that of the depth.

    Returns:
      max(ceil(sequences / depth), L2), where L2 is at least ceil(tokens / row).

    References:
      Martello and Toth, Lower bounds and reduction procedures for the bin packing problem
      (1990), equation 14.
    """
    sizes, row = self.sizes, self.capacity
    number = np.concatenate([[0], np.cumsum(self.demand)])
    tokens = np.concatenate([[0], np.cumsum(sizes * self.demand)])
    long = int(number[-1] - number[sizes.searchsorted(row // 2, side="right")])
    least = np.concatenate([[0], sizes[sizes <= row // 2]])
    end = sizes.searchsorted(row - least, side="right")  # from here on, alone
    alone = number[-1] - number[end]
    rest = tokens[end] - tokens[sizes.searchsorted(least)]
    return max(-(-int(number[-1]) // self.depth), long, int((alone - (-rest // row)).max()))


@dataclasses.dataclass(frozen=True)
class Solution:
  """What every algorithm returns.

  Attributes:
    packs: repeat counts and strategies of sizes; equal strategies need not be merged.
    weights: int64[R]; weights that prove a bound (`pricing.dual_bound`); None if only the
      simple bound is known.
    details: further results that the algorithm reports, by name.
  """

  packs: list[tuple[int, Strategy]]
  weights: np.ndarray | None = None
  details: dict = dataclasses.field(default_factory=dict)

  @property
  def num_packs(self) -> int:
    return sum(count for count, _ in self.packs)


def usage_of(packs: Packs) -> Usage:
  """How many of the packs have each content."""
  usage: Usage = collections.Counter()
  for count, strategy in packs:
    usage[tuple(sorted(strategy, reverse=True))] += count
  return usage


@dataclasses.dataclass(frozen=True)
class Geometry:
  """How sequences are laid out in a row.

  Attributes:
    row_length: tokens of a row.
    max_sequences_per_pack: the depth limit.
    length_multiple: each sequence starts at a multiple of this many tokens.
    separator_tokens: tokens between two sequences of a row.
  """

  row_length: int
  max_sequences_per_pack: int
  length_multiple: int = 1
  separator_tokens: int = 0

  @classmethod
  def for_histogram(
    cls,
    histogram: Histogram,
    *,
    row_length: int | None,
    max_sequences_per_pack: int | str | None,
    length_multiple: int = 1,
    separator_tokens: int = 0,
  ) -> Geometry:
    """Checks a geometry and fills in its defaults.

    Raises:
      InputError: a value is not a whole number in range, or the row is shorter than the
        longest sequence.
    """
    multiple = check_integer(
      "length_multiple", length_multiple, at_least=1, at_most=MAX_ROW_LENGTH
    )
    separator = check_integer(
      "separator_tokens", separator_tokens, at_least=0, at_most=MAX_ROW_LENGTH
    )
    longest = -(-histogram.longest // multiple) * multiple
    if row_length is None:
      row_length = max(histogram.max_sequence_length, longest)
    row_length = check_integer("row_length", row_length, at_least=1, at_most=MAX_ROW_LENGTH)
    if row_length < longest:
      rounded = f", rounded up to a multiple of {multiple}" if multiple > 1 else ""
      raise InputError(
        f"row_length is {row_length}; expected at least {longest} for the longest "
        f"sequence, of {histogram.longest} tokens{rounded}."
      )
    if max_sequences_per_pack is None or max_sequences_per_pack == "max":
      depth = row_length
    else:
      depth = check_integer(
        "max_sequences_per_pack",
        max_sequences_per_pack,
        at_least=1,
        otherwise=', or None (or "max") for no limit; pack also takes "auto"',
      )
    return cls(row_length, min(depth, row_length), multiple, separator)

  @property
  def separator_size(self) -> int:
    """The number of separator tokens, rounded up to the multiple."""
    return -(-self.separator_tokens // self.length_multiple) * self.length_multiple

  @property
  def capacity(self) -> int:
    return self.row_length + self.separator_size

  def sizes(self, lengths):
    """How much of the capacity a sequence of each length takes, in tokens."""
    lengths = np.asarray(lengths, np.int64)
    return -(-lengths // self.length_multiple) * self.length_multiple + self.separator_size

  def tokens(self, strategy: Strategy) -> int:
    """How many tokens of a row a strategy takes, gaps and separators included."""
    rounded = sum(-(-n // self.length_multiple) for n in strategy) * self.length_multiple
    return rounded + self.separator_size * (len(strategy) - 1)

  def problem(self, histogram: Histogram) -> Problem:
    lengths = np.flatnonzero(histogram.counts) + 1
    counts = np.zeros(self.capacity, np.int64)
    sizes = self.sizes(lengths)
    taken = float(histogram.counts[lengths - 1].astype(np.float64) @ sizes)
    if taken > MAX_TOKENS:
      raise InputError(
        f"The sequences take {taken:.3g} tokens, more than 2^62. Scale the counts down."
      )
    np.add.at(counts, sizes - 1, histogram.counts[lengths - 1])
    counts.flags.writeable = False
    return Problem(counts, self.capacity, self.max_sequences_per_pack)

  def check_strategies(self, histogram: Histogram, strategies) -> list[Strategy]:
    """Returns strategies of lengths as sorted tuples, after checking them.

    Raises:
      InputError: a strategy does not fit in a row, or occurs twice.
    """
    try:
      checked = [tuple(sorted(map(operator.index, s))) for s in strategies]
    except TypeError as error:
      raise InputError(f"Expected strategies of whole numbers; {error}.") from error
    depth, longest = self.max_sequences_per_pack, histogram.max_sequence_length
    for strategy, times in collections.Counter(checked).items():
      mistake = ""
      if not 1 <= len(strategy) <= depth:
        mistake = f"has {len(strategy)} sequences; expected 1 to {depth}"
      elif strategy[0] < 1 or strategy[-1] > longest:
        mistake = f"has a length out of range; expected 1 to {longest}"
      elif times > 1:
        mistake = "occurs more than once. Add up its repeat counts"
      elif (tokens := self.tokens(strategy)) > self.row_length:
        mistake = f"has {tokens} tokens; the row has {self.row_length}"
      if mistake:
        raise InputError(f"Strategy {short_repr(strategy)} {mistake}.")
    return checked

  def expand(self, histogram: Histogram, packs: Packs) -> dict[Strategy, int]:
    """Turns strategies of sizes into strategies of lengths, and merges equal ones.

    If several lengths have the same size, the longest are used first.

    Args:
      histogram: the lengths.
      packs: repeat counts and strategies of sizes, which use no size more often than it
        occurs.

    Returns:
      Repeat counts by strategy (sorted lengths).
    """
    merged: collections.Counter[Strategy] = collections.Counter()
    if self.length_multiple == 1:
      shift = self.separator_size
      for count, strategy in packs:
        merged[tuple(sorted([size - shift for size in strategy]))] += count
      return dict(merged)
    stock: dict[int, list[list[int]]] = collections.defaultdict(list)
    for length in (np.flatnonzero(histogram.counts) + 1).tolist():
      size = int(self.sizes(length))
      stock[size].append([length, int(histogram.counts[length - 1])])
    for count, strategy in packs:
      slots = collections.Counter(strategy)
      while count:
        # The next `step` packs take their sequences from the same entries of the stock.
        step = count
        for size, repeats in slots.items():
          available = stock[size][-1][1]
          step = min(step, max(available // repeats, 1))
        taken: list[int] = []
        for size, repeats in slots.items():
          needed = repeats * step
          while needed:
            length, available = stock[size][-1]
            used = min(needed, available)
            taken += [length] * (used // step)
            stock[size][-1][1] -= used
            if not stock[size][-1][1]:
              stock[size].pop()
            needed -= used
        merged[tuple(sorted(taken))] += step
        count -= step
    return dict(merged)
