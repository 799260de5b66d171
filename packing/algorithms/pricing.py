"""The most valuable pack: a knapsack with a limit on the number of items, in integers.

This knapsack has two uses, and both need exact numbers. Column generation looks for packs
whose value is more than one. And the largest value of any pack turns weights into a lower
bound that no rounding error can make too large (`dual_bound`).
"""

from __future__ import annotations

import numpy as np

from packing.errors import InputError
from packing.problem import Problem

_BLOCK = 4_000_000  # entries of a temporary array
_SPARSE = 8  # tokens of a row for each size, from which on pairs of sizes are tried


def weight_scale(problem: Problem) -> int:
  """The integer that stands for weight 1, as large as int64 sums over a pack allow."""
  return 1 << min(40, 61 - most_items(problem).bit_length())


def most_items(problem: Problem) -> int:
  """The most sequences that any pack can hold."""
  return min(problem.depth, problem.most_that_fit)


def dual_bound(problem: Problem, weights: np.ndarray) -> int:
  """A lower bound on the packs of any plan.

  If no pack weighs more than V, then N packs weigh at most N * V. All sequences together
  weigh W, so N >= W / V (Farley's bound). V is the optimum of a knapsack, solved here in
  exact integers, and the division is exact too. So the bound holds for any weights; good
  weights make it sharp.

  Args:
    problem: the problem to be packed.
    weights: int64[R]; a weight for each size that occurs, 0 to 2^61 / items of a pack.

  Returns:
    ceil(W / V); 0 if all weights are 0.

  Example:
    >>> problem = Problem(np.array([0, 0, 3, 0, 0]), capacity=5, depth=2)
    >>> dual_bound(problem, np.array([1]))  # no two of these fit together
    3

  References:
    Farley, A note on bounding a class of linear programming problems (1990).
  """
  return Knapsack(problem, weights).bound


def check_weights(problem: Problem, weights) -> np.ndarray:
  """Returns weights for `dual_bound` as int64[R], after checking them.

  Raises:
    InputError: they are not R integers from 0 to 2^61 / items of a pack.
  """
  weights = np.asarray(weights)
  if weights.dtype.kind not in "iu":
    raise InputError(f"Expected bound_weights as integers; found {weights.dtype}.")
  number, most = problem.sizes.size, 2**61 // most_items(problem)
  if weights.shape != (number,) or (weights < 0).any() or weights.max() > most:
    raise InputError(
      f"Expected bound_weights as {number} integers from 0 to {most}; found shape "
      f"{weights.shape}, from {weights.min(initial=0)} to {weights.max(initial=0)}."
    )
  return weights.astype(np.int64)


class Knapsack:
  """The most valuable packs, given a weight for each size.

  Attributes:
    best_value: int; the largest weight of any pack within capacity and depth.
    bound: int; the bound that the weights prove, see `dual_bound`.
    values: int64[R]; for each size, the largest weight of any pack that holds it.
    work: the number of table entries that were filled.
  """

  def __init__(self, problem: Problem, weights: np.ndarray):
    self._problem = problem
    self._weights = np.asarray(weights, np.int64)
    self._space = problem.capacity - problem.sizes  # beside one item of each size
    items = most_items(problem)
    self._unlimited = None
    self.work = 0
    self._pairs = None
    if items <= 3 <= problem.depth and _SPARSE * problem.sizes.size <= problem.capacity:
      self.work += 3 * problem.sizes.size**2
      self._pairs = _Pairs(problem, self._weights)
      self.values = self._pairs.values
      self.best_value = int(self.values.max())
      return
    if items > 6:
      self.work += problem.capacity * problem.sizes.size
      self._unlimited = _Unlimited(problem, self._weights)
      if items < problem.most_that_fit:
        # There is a depth limit, but the best packs for these weights may not reach it.
        held = self._unlimited.held
        if max(1 + held[self._space].max(), held[-1]) > items:
          self._unlimited = None
    if self._unlimited is not None:
      self.best_value = int(self._unlimited.value[-1])
      self.values = self._weights + self._unlimited.value[self._space]
    else:
      self.work += items * problem.capacity * problem.sizes.size
      self._levels = _levels(problem, self._weights, items)
      self.best_value = int(self._levels[-1][0][-1])
      # One item is the size itself, so at most `items - 1` are beside it.
      self._beside = self._levels[: items - 1]
      beside = self._beside[-1][0][self._space] if self._beside else 0
      self.values = self._weights + beside

  @property
  def bound(self) -> int:
    sizes = zip(self._problem.demand.tolist(), self._weights.tolist(), strict=True)
    carried = sum(number * weight for number, weight in sizes)
    return -(-carried // self.best_value) if self.best_value else 0

  def packs(self, *, above: int) -> np.ndarray:
    """The most valuable pack for each size, which it holds at least once.

    Args:
      above: the weight that a pack must exceed.

    Returns:
      int64[n, items]; sizes in descending order, then 0.
    """
    rows = np.flatnonzero(self.values > above)
    sizes = self._problem.sizes[rows]
    space = self._space[rows]
    if self._pairs is not None:
      beside = self._pairs.beside(rows)
    elif self._unlimited is not None:
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
  """For at most 1, 2, ... items: the best value at each capacity, and its last item."""
  sizes, capacity = problem.sizes, problem.capacity
  value = np.zeros(capacity + 1, np.int64)
  levels: list[tuple[np.ndarray, np.ndarray]] = []
  block = max(_BLOCK // (capacity + 1), 1)
  for _ in range(items):
    # shifted[s, c] is value[c - s], far below zero if s does not fit.
    padded = np.concatenate([np.full(capacity, -(1 << 62), np.int64), value])
    shifted = np.lib.stride_tricks.sliding_window_view(padded, capacity + 1)[::-1]
    best, choice = value.copy(), np.zeros(capacity + 1, np.int64)
    for start in range(0, sizes.size, block):
      part = slice(start, start + block)
      candidates = shifted[sizes[part]] + weights[part, None]
      row = candidates.argmax(axis=0)
      values = candidates[row, np.arange(capacity + 1)]
      better = values > best
      best[better] = values[better]
      choice[better] = sizes[part][row[better]]
    if not (choice > 0).any():  # more items do not help
      levels += [(value, choice)] * (items - len(levels))
      break
    value = best
    levels.append((value, choice))
  return levels


class _Unlimited:
  """The best value at each capacity, for any number of items.

  Attributes:
    value: int64[capacity + 1]; the best value.
    held: int64[capacity + 1]; how many items the pack of that value holds.
  """

  def __init__(self, problem: Problem, weights: np.ndarray):
    sizes, capacity = problem.sizes, problem.capacity
    self._smallest = int(sizes[0])
    self.value = value = np.zeros(capacity + 1, np.int64)
    # `reached[c]` <= c is the smallest capacity with this value; `choice` is its last item.
    self._choice = choice = np.zeros(capacity + 1, np.int64)
    self._reached = reached = np.arange(capacity + 1)
    self.held = held = np.zeros(capacity + 1, np.int64)
    fitting = np.searchsorted(sizes, np.arange(capacity + 1), side="right")
    for c in range(self._smallest, capacity + 1):
      k = fitting[c]
      candidates = value[c - sizes[:k]]
      candidates += weights[:k]
      row = candidates.argmax()
      if candidates[row] > value[c - 1]:
        value[c], choice[c] = candidates[row], sizes[row]
        held[c] = held[c - sizes[row]] + 1
      else:
        value[c], reached[c], held[c] = value[c - 1], reached[c - 1], held[c - 1]

  def packs(self, space: np.ndarray) -> np.ndarray:
    columns: list[np.ndarray] = []
    while True:
      space = self._reached[space]
      item = self._choice[space]
      if not item.any():
        return np.array(columns, np.int64).reshape(len(columns), space.size).T
      columns.append(item)
      space = space - item


class _Pairs:
  """For each size, the best one or two items beside it: every pair is tried."""

  def __init__(self, problem: Problem, weights: np.ndarray):
    # Entry 0 marks an unused slot.
    sizes, weights = np.append(0, problem.sizes), np.append(0, weights)
    value = np.maximum.accumulate(weights)  # of the best item of at most a size
    best = np.maximum.accumulate(np.where(weights == value, np.arange(sizes.size), 0))
    self.values = weights[1:].copy()
    self._beside = np.zeros((problem.sizes.size, 2), np.int64)
    block = max(_BLOCK // sizes.size, 1)
    for start in range(0, problem.sizes.size, block):
      part = slice(start, start + block)
      space = problem.capacity - problem.sizes[part, None] - sizes
      third = sizes.searchsorted(space, side="right") - 1  # -1 if two do not fit
      total = np.where(third >= 0, weights + value[third], -1)
      second = total.argmax(axis=1)
      chosen = np.arange(second.size), second
      self.values[part] += total[chosen]
      self._beside[part] = np.stack([sizes[second], sizes[best[third[chosen]]]], axis=1)

  def beside(self, rows: np.ndarray) -> np.ndarray:
    """int64[n, 2]; the sizes beside those of some rows, 0 for none."""
    return self._beside[rows]
