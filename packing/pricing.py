"""The most valuable pack: a knapsack with a limit on the number of items, in integers.

Both uses of it want exact numbers. Column generation looks for packs worth more than
one; and the largest value that any pack can have turns weights into a lower bound that
no rounding error can lift above the truth (`dual_bound`).
"""

from __future__ import annotations

import numpy as np

from packing.problem import Problem

_BLOCK = 4_000_000  # entries of a temporary array


def weight_scale(problem: Problem) -> int:
  """The integer that stands for weight 1: as fine as int64 sums of a pack allow."""
  return 1 << min(40, 61 - most_items(problem).bit_length())


def most_items(problem: Problem) -> int:
  """Most sequences that any pack can hold."""
  return min(problem.depth, problem.capacity // int(problem.sizes[0]))


def dual_bound(problem: Problem, weights: np.ndarray) -> int:
  """Packs that any plan needs, proven by weights.

  If no pack that fits weighs more than V, then N packs carry at most N * V; all
  sequences together weigh W, so N >= W / V (Farley's bound). V is the optimum of a
  knapsack, solved here in exact integers, and the division is exact as well: the
  bound holds whatever the weights are. Good weights only make it sharp.

  Args:
    problem: what is to be packed.
    weights: int64[R]; a weight for each size that occurs, 0 to 2^61 / items of a pack.

  Returns:
    ceil(W / V); 0 if all weights are 0.

  Example:
    >>> problem = Problem(np.array([0, 0, 3, 0, 0]), capacity=5, depth=2)
    >>> dual_bound(problem, np.array([1]))  # no two of them fit together
    3

  References:
    Farley, A note on bounding a class of linear programming problems (1990).
  """
  value = Knapsack(problem, weights).best_value
  carried = sum(
    n * w for n, w in zip(problem.demand.tolist(), weights.tolist(), strict=True)
  )
  return -(-carried // value) if value else 0


class Knapsack:
  """The most valuable packs for given weights of the sizes.

  Attributes:
    best_value: int; the largest weight of any pack within capacity and depth.
    values: int64[R]; the same among the packs that hold a given size.
    work: entries of the tables that were filled.
  """

  def __init__(self, problem: Problem, weights: np.ndarray):
    self._problem = problem
    self._weights = np.asarray(weights, np.int64)
    self._space = problem.capacity - problem.sizes  # left beside one of each size
    items = most_items(problem)
    self._unlimited = None
    self.work = 0
    if items > 6:
      self.work += problem.capacity * problem.sizes.size
      self._unlimited = _Unlimited(problem, self._weights)
      if items < problem.capacity // int(problem.sizes[0]):
        # The limit is there; it may still not matter to these weights.
        packs = self._unlimited.packs(np.append(self._space, problem.capacity))
        held = (packs > 0).sum(axis=1)
        if (held[:-1] + 1).max() > items or held[-1] > items:
          self._unlimited = None
    if self._unlimited is not None:
      self.best_value = int(self._unlimited.value[-1])
      self.values = self._weights + self._unlimited.value[self._space]
    else:
      self.work += items * problem.capacity * problem.sizes.size
      self._levels = _levels(problem, self._weights, items)
      self.best_value = int(self._levels[-1][0][-1])
      # One item is spent on the size itself.
      self._beside = self._levels[: items - 1]
      beside = self._beside[-1][0][self._space] if self._beside else 0
      self.values = self._weights + beside

  def packs(self, rows: np.ndarray) -> np.ndarray:
    """The most valuable packs that hold given sizes.

    Args:
      rows: int[n]; which of the problem's sizes.

    Returns:
      int64[n, items]; sizes in descending order, then 0.
    """
    sizes = self._problem.sizes[rows]
    space = self._space[rows]
    if self._unlimited is not None:
      beside = self._unlimited.packs(space)
    else:
      columns = []
      for _, choice in reversed(self._beside):
        columns.append(choice[space])
        space = space - columns[-1]
      beside = np.array(columns, np.int64).reshape(len(columns), sizes.size).T
    packs = np.concatenate([sizes[:, None], beside], axis=1)
    return -np.sort(-packs, axis=1)


def _levels(
  problem: Problem, weights: np.ndarray, items: int
) -> list[tuple[np.ndarray, np.ndarray]]:
  """Best value and the item it takes, for 1, 2, ... items and every capacity."""
  sizes, capacity = problem.sizes, problem.capacity
  value = np.zeros(capacity + 1, np.int64)
  levels: list[tuple[np.ndarray, np.ndarray]] = []
  block = max(_BLOCK // (capacity + 1), 1)
  for _ in range(items):
    # shifted[s, c] is value[c - s], far below zero where s does not fit.
    padded = np.concatenate([np.full(capacity, -(1 << 62), np.int64), value])
    shifted = np.lib.stride_tricks.sliding_window_view(padded, capacity + 1)[::-1]
    best, choice = value.copy(), np.zeros(capacity + 1, np.int64)
    for start in range(0, sizes.size, block):
      part = slice(start, start + block)
      candidates = shifted[sizes[part]] + weights[part, None]
      row = candidates.argmax(axis=0)
      found = candidates[row, np.arange(capacity + 1)]
      better = found > best
      best[better] = found[better]
      choice[better] = sizes[part][row[better]]
    if not (choice > 0).any():  # more items do not help
      levels += [(value, choice)] * (items - len(levels))
      break
    value = best
    levels.append((value, choice))
  return levels


class _Unlimited:
  """Best value for every capacity with any number of items."""

  def __init__(self, problem: Problem, weights: np.ndarray):
    sizes, capacity = problem.sizes, problem.capacity
    self._smallest = int(sizes[0])
    self.value = value = np.zeros(capacity + 1, np.int64)
    # At `reached[c]` <= c an item of size `choice` is the last one.
    self._choice = choice = np.zeros(capacity + 1, np.int64)
    self._reached = reached = np.arange(capacity + 1)
    fitting = np.searchsorted(sizes, np.arange(capacity + 1), side="right")
    for c in range(self._smallest, capacity + 1):
      k = fitting[c]
      candidates = value[c - sizes[:k]]
      candidates += weights[:k]
      row = candidates.argmax()
      if candidates[row] > value[c - 1]:
        value[c], choice[c] = candidates[row], sizes[row]
      else:
        value[c], reached[c] = value[c - 1], reached[c - 1]

  def packs(self, space: np.ndarray) -> np.ndarray:
    columns: list[np.ndarray] = []
    while True:
      space = self._reached[space]
      item = self._choice[space]
      if not item.any():
        return np.array(columns, np.int64).reshape(len(columns), space.size).T
      columns.append(item)
      space = space - item
