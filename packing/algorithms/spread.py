"""The squares of packs: the cost of attention that skips foreign sequences.

A pack's squares are the sum of its squared lengths: the number of pairs of tokens that
attend to each other. Packs in rows of one length differ in nothing else that costs time. If
the number of packs is fixed, so is the mean of the squares. So the smaller the squared
distances from this mean, the more nearly all packs cost the same.

`spread_bound` says how small these distances can be. It is the larger of two bounds, both
in exact integers. The first uses the fact that a pack can hold only one sequence longer
than half a row. The second is a Lagrangian bound with a weight for each size; it needs the
pack that adds least, which a table over capacity and squares finds.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from packing.algorithms.pricing import Knapsack, most_items
from packing.errors import InputError
from packing.problem import Problem, Strategy, Usage

_TABLE = 4 * 10**8  # entries times sizes; takes some seconds
_NOTHING = -(2**62)  # the weight of a pack that does not exist


@dataclasses.dataclass(frozen=True, eq=False)
class Squares:
  """The squares of the packs of a problem.

  Attributes:
    problem: the sizes.
    lengths: int64[R]; tokens of a sequence of each size, which is its size without the
      separator.
    num_packs: the number of packs of all plans that are compared.
  """

  problem: Problem
  lengths: np.ndarray
  num_packs: int

  @functools.cached_property
  def most(self) -> int:
    """An upper bound on the squares of any pack."""
    of_tokens = int(self.lengths[-1]) * self.problem.capacity
    return min(of_tokens, int(self.of_size[-1]) * most_items(self.problem))

  @property
  def of_size(self) -> np.ndarray:
    """int64[R]; the squared length of a sequence of each size."""
    return self.lengths**2

  @property
  def total(self) -> int:
    """The squares of all packs together."""
    return sum(
      n * q
      for n, q in zip(self.problem.demand.tolist(), self.of_size.tolist(), strict=True)
    )

  @property
  def centre(self) -> int:
    """The mean over packs, rounded so that distances from it are integers."""
    return round(self.total / self.num_packs)

  def of(self, pack: Strategy) -> int:
    """The squares of a pack of sizes."""
    rows = np.searchsorted(self.problem.sizes, pack)
    return int(self.of_size[rows].sum())

  def distance(self, usage: Usage) -> int:
    """The sum over packs of the squared distance from the centre."""
    return sum(n * (self.of(pack) - self.centre) ** 2 for pack, n in usage.items())

  def spread(self, distance: int) -> float:
    """The standard deviation over packs divided by the mean, given `distance`."""
    mean = self.total / self.num_packs
    variance = distance / self.num_packs - (mean - self.centre) ** 2
    return math.sqrt(max(variance, 0.0)) / mean


def spread_bound(squares: Squares, weights: np.ndarray | None) -> int:
  """A lower bound on the sum of squared distances from the centre, for any such plan.

  Args:
    squares: the squares of the problem.
    weights: int64[R]; Lagrange multipliers of the sizes, in units of `1 / weight_scale`.
      Any weights give a valid bound.
  """
  simple = _bound_of_halves(squares)
  if weights is None:
    return simple
  return max(simple, _bound_of_weights(squares, weights))


def check_weights(squares: Squares, weights) -> np.ndarray:
  """Returns weights for `spread_bound` as int64[R], after checking them.

  Raises:
    InputError: they are not R integers in the range that sums over a pack allow.
  """
  weights = np.asarray(weights)
  most = 2**60 // most_items(squares.problem)
  right = weights.dtype.kind in "iu" and weights.shape == squares.lengths.shape
  if not right or (np.abs(weights.astype(object)) > most).any():
    raise InputError(
      f"Expected spread_weights as {squares.lengths.size} integers of at most {most:,}; "
      f"found {weights.dtype} of shape {weights.shape}."
    )
  return weights.astype(np.int64)


def weight_scale(squares: Squares) -> int:
  """The integer that stands for 1 in weights, so that small problems are exact too."""
  most = (int(squares.lengths[-1]) * squares.problem.capacity + squares.centre) ** 2
  items = most_items(squares.problem)
  return 1 << max(min(20, 59 - most.bit_length() - items.bit_length()), 0)


def _bound_of_halves(squares: Squares) -> int:
  """The bound from sequences longer than half a row, each of which needs its own pack.

  Such a pack has at least the squares of its long sequence. It has at most these plus the
  rest of the row times the longest length that fits there. For any level, the sum of
  distances is at least the sum of the smallest (s - centre)^2 - 2 (level - centre) s within
  these ranges, plus 2 (level - centre) times all squares. The best level is found by water
  filling.
  """
  problem, lengths = squares.problem, squares.lengths
  tokens = np.append(0, lengths)  # of the longest sequence, by the number of sizes that fit
  is_long = problem.sizes > problem.capacity // 2
  least = squares.of_size[is_long]
  rest = problem.capacity - problem.sizes[is_long]
  beside = tokens[np.searchsorted(problem.sizes, rest, side="right")]
  most = least + rest * beside
  number = problem.demand[is_long]
  others = squares.num_packs - int(number.sum())
  if others < 0:
    return 0
  half = problem.capacity // 2
  longest = int(tokens[np.searchsorted(problem.sizes, half, side="right")])
  ranges = [
    *zip(number.tolist(), least.tolist(), most.tolist(), strict=True),
    (others, 0, problem.capacity * longest),
  ]
  low, high = 0, max(most for _, _, most in ranges)
  while low < high:
    level = (low + high) // 2
    filled = sum(n * min(max(level, least), most) for n, least, most in ranges)
    low, high = (level + 1, high) if filled < squares.total else (low, level)
  centre, bound = squares.centre, 0
  for n, least, most in ranges:
    s = min(max(low, least), most)
    bound += n * ((s - centre) ** 2 - 2 * (low - centre) * s)
  return max(bound + 2 * (low - centre) * squares.total, 0)


def _bound_of_weights(squares: Squares, weights: np.ndarray) -> int:
  """The Lagrangian bound: the weight of all sequences, plus the least that packs add."""
  table = Table.make(squares, weights)
  if table is None:
    return 0
  carried = int(squares.problem.demand.astype(object) @ weights.astype(object))
  least = carried + squares.num_packs * int(table.least.min())
  return max(-(-least // weight_scale(squares)), 0)


class Table:
  """The largest weight of any pack by its squares, which are rounded down to buckets.

  Entry (c, b) is the largest weight of a pack of at most c tokens in bucket b. Without a
  depth limit there is one level: packs have any number of sequences, and the rows of the
  table are filled in ascending order, each from those before it. With a depth limit, each
  level adds one sequence to the packs of the level before.

  Attributes:
    least: int64[B]; no pack in a bucket adds less to the bound than this.
    work: the number of entries times sizes.
  """

  def __init__(self, squares: Squares, weights: np.ndarray, levels: int, unit: int):
    problem = squares.problem
    self._problem, self._weights, self._levels = problem, weights, []
    self._bucket = squares.of_size // unit
    # A pack in bucket b has b * unit squares, plus at most `lost` from rounding down.
    lost = Knapsack(problem, squares.of_size % unit).best_value if unit > 1 else 0
    buckets = squares.most // unit + 1
    self.work = problem.capacity * problem.sizes.size * max(levels, 1) * buckets
    self._width = width = int(self._bucket[-1])
    # Columns to the left of `width` stand for negative squares.
    table = np.full((problem.capacity + 1, width + buckets), _NOTHING, np.int64)
    table[:, width] = 0  # the empty pack
    columns = width + np.arange(buckets) - self._bucket[:, None]
    for _ in range(max(levels, 1)):
      if levels:
        self._levels.append(table)
      source, table = table, table.copy() if levels else table
      for c in range(int(problem.sizes[0]), problem.capacity + 1):
        k = int(np.searchsorted(problem.sizes, c, side="right"))
        values = source[(c - problem.sizes[:k])[:, None], columns[:k]]
        values += weights[:k, None]
        target = table[c, width:]
        np.maximum(target, values.max(axis=0), out=target)
    self._levels.append(table)
    best = table[-1, width:]
    first = np.arange(buckets) * unit
    nearest = np.clip(squares.centre, first, first + lost)
    least = weight_scale(squares) * (nearest - squares.centre) ** 2 - best
    self.least = np.where(best > _NOTHING // 2, least, 2**62)
    self.least[0] = 2**62 if unit == 1 else self.least[0]  # no pack is empty

  @classmethod
  def make(cls, squares: Squares, weights: np.ndarray) -> Table | None:
    """Makes a table; None if it would have to be too coarse to give a bound."""
    problem = squares.problem
    levels = problem.depth if problem.depth < problem.most_that_fit else 0
    area = problem.capacity * problem.sizes.size * max(levels, 1)
    unit = -(-(squares.most + 1) // max(_TABLE // area, 1))
    return None if squares.most // unit < 32 else cls(squares, weights, levels, unit)

  def packs(self, number: int) -> list[Strategy]:
    """The packs that add least, each from another bucket."""
    order = np.argsort(self.least, kind="stable")[:number]
    return [self._pack(b) for b in order.tolist() if self.least[b] < 2**62]

  def _pack(self, bucket: int) -> Strategy:
    """Finds the sequences of an entry, beginning with the last one that was added."""
    sizes, pack = self._problem.sizes, []
    c, column, level = self._problem.capacity, self._width + bucket, len(self._levels) - 1
    value = self._levels[level][c, column]
    while (column, value) != (self._width, 0):
      source = self._levels[max(level - 1, 0)]
      if level and source[c, column] == value:
        level -= 1
        continue
      k = int(np.searchsorted(sizes, c, side="right"))
      before = source[c - sizes[:k], column - self._bucket[:k]] + self._weights[:k]
      found = np.flatnonzero(before == value)
      if not found.size:  # the pack takes fewer tokens than c
        c -= 1
        continue
      r = int(found[-1])
      pack.append(int(sizes[r]))
      c, column = c - int(sizes[r]), column - int(self._bucket[r])
      value, level = value - self._weights[r], max(level - 1, 0)
    return tuple(pack)
