"""Non-negative least squares histogram packing (NNLSHP), and its extension (ENNLSHP).

Both list every way to fill a row exactly with at most `depth` sequences. They choose how
often to use each way, so that sequences of each length are used about as often as they
occur. Surplus slots stay empty; sequences that are left over are packed afterwards.
"""

from __future__ import annotations

import collections

import numpy as np

from packing.algorithms import heuristics
from packing.errors import UnsolvedError, check, check_integer
from packing.problem import Problem, Solution, Strategy

_MEMORY_LIMIT = 2 * 2**30  # bytes of the packing matrix

_LARGE_COUNT = 10**12  # strategies are not counted beyond
_STRICT = 1e6  # the weight that keeps a residual at or below 0; w-bar of section S


def nnlshp(
  problem: Problem,
  *,
  residual_offset: int = 8,
  residual_weight: float = 0.09,
  leftovers: str = "pad",
) -> Solution:
  """Minimises the weighted squared residual of the histogram, equation (18).

  Args:
    problem: sizes to pack.
    residual_offset: residuals of sizes up to this one have the weight `residual_weight`.
    residual_weight: 0 to 1; all other residuals have weight 1.
    leftovers: how to pack sequences that the rounded solution leaves over: "pad" gives
      each a row of its own, as in the paper; "best_fit" packs them by LPFHP, as section R
      suggests.

  Returns:
    Packs without empty slots. The details give the numbers of strategies and packs and the
    efficiency before empty slots are dropped; the number of sequences that least squares
    left over; and `residual`, which for each size is the residual (17) of the rounded
    solution: sequences left over or, if negative, surplus slots.

  Raises:
    InputError: the packing matrix is larger than 2 GiB, or an option is out of range.

  References:
    Krell et al., https://arxiv.org/abs/2107.02027, sections 3.1.2, F.4 and F.5.
  """
  fits = isinstance(residual_weight, int | float) and 0 <= residual_weight < 1e6
  expected = "a number of at least 0, usually at most 1, and below 1,000,000"
  check(fits, "residual_weight", residual_weight, expected)
  residual_offset = check_integer("residual_offset", residual_offset, at_least=0)
  _check_leftovers(leftovers)
  strategies = _strategies(problem, 1)
  matrix = _matrix(strategies, problem.capacity)
  weights = np.ones(problem.capacity)
  weights[:residual_offset] = residual_weight
  matrix *= weights[:, None]
  usage = _solve(matrix, weights * problem.counts)
  del matrix
  return _finish(problem, strategies, np.rint(usage).astype(np.int64), leftovers)


def ennlshp(problem: Problem, *, leftovers: str = "pad") -> Solution:
  """Minimises the squared padding with no sequence left over, equations (23) and (24).

  An auxiliary variable for each size holds its surplus slots. A large weight ties it to the
  residual, which therefore cannot have the wrong sign (before rounding).

  Args:
    problem: sizes to pack.
    leftovers: "pad" or "best_fit", as for `nnlshp`.

  Returns:
    Packs without empty slots, and details as from `nnlshp`.

  Raises:
    InputError: the packing matrix is larger than 2 GiB, or an option is out of range.

  References:
    Krell et al., https://arxiv.org/abs/2107.02027, supplement, section S. The block -D is
    the identity, as in equation (24), not all ones, as in Listing 9.
  """
  _check_leftovers(leftovers)
  strategies = _strategies(problem, 2)
  usage = _extended_usage(strategies, problem.counts)
  return _finish(problem, strategies, np.rint(usage).astype(np.int64), leftovers)


def _check_leftovers(leftovers: str):
  check(leftovers in ("pad", "best_fit"), "leftovers", leftovers, '"pad" or "best_fit"')


def _slots(strategies: np.ndarray, usage: np.ndarray, capacity: int) -> np.ndarray:
  """int64[capacity + 1]; slots of each size, 0 included."""
  slots = np.zeros(capacity + 1, np.int64)
  for slot in strategies.T:
    np.add.at(slots, slot, usage)
  return slots


def _extended_usage(strategies: np.ndarray, counts: np.ndarray) -> np.ndarray:
  """float64[P]; the minimiser of equation (23), from the blocks of equation (24)."""
  size, count = counts.size, strategies.shape[0]
  packing_matrix = _matrix(strategies, size)
  padding = np.arange(1.0, size + 1)  # w: an empty slot of i tokens costs i
  matrix = np.zeros((2 * size, count + size))
  np.multiply(packing_matrix, padding[:, None], out=matrix[:size, :count])
  np.multiply(packing_matrix, _STRICT, out=matrix[size:, :count])
  del packing_matrix
  matrix[np.arange(size, 2 * size), np.arange(count, count + size)] = -_STRICT
  target = np.concatenate([padding * counts, _STRICT * counts])
  return _solve(matrix, target)[:count]


def count_strategies(capacity: int, depth: int) -> int:
  """The number of ways to fill a row exactly with 1 to `depth` sequences.

  Only a lower bound if it is above 10^12.

  Example:
    >>> count_strategies(512, 3), count_strategies(512, 4) - count_strategies(512, 3)
    (22102, 937529)

  References:
    Krell et al., https://arxiv.org/abs/2107.02027, section G.1.
  """
  # Partitions into parts of at most `depth` (the conjugates), by part size.
  ways = [1] + [0] * capacity
  for part in range(1, min(depth, capacity) + 1):
    for total in range(part, capacity + 1):
      ways[total] += ways[total - part]
    if ways[capacity] > _LARGE_COUNT:
      break
  return ways[capacity]


def packing_matrix(capacity: int, depth: int) -> np.ndarray:
  """int64[capacity, P]; the number of sequences of each size in each way to fill a row.

  Example:
    >>> packing_matrix(3, 2).tolist()  # (3) and (1, 2)
    [[0, 1], [0, 1], [1, 0]]

  Raises:
    InputError: the matrix is larger than 2 GiB.

  References:
    Krell et al., https://arxiv.org/abs/2107.02027, section F.4.2 and Table 4.
  """
  problem = Problem(np.zeros(capacity, np.int64), capacity, depth)
  return _matrix(_strategies(problem, 1), capacity).astype(np.int64)


def _strategies(problem: Problem, blocks: int) -> np.ndarray:
  """int64[P, depth]; all exact fillings: ascending sizes, after zeros if they are fewer."""
  size, depth = problem.capacity, min(problem.depth, problem.capacity)
  count = count_strategies(size, depth)
  # The bytes of a column, in the matrix and the solver's copy; and the columns that are
  # added to those of strategies.
  column, extra = 2 * 8 * blocks * size, size * (blocks - 1)
  needed = column * (count + extra)
  if needed > _MEMORY_LIMIT:
    most = 0
    while column * (count_strategies(size, most + 1) + extra) <= _MEMORY_LIMIT:
      most += 1
    less = f"Pass max_sequences_per_pack={most} or less, or use" if most else "Use"
    least = "at least " if count > _LARGE_COUNT else ""
    raise UnsolvedError(
      f"At depth {depth} there are {least}{count:,} ways to fill {size} tokens, a matrix "
      f"of more than 2 GiB. {less} optimal."
    )
  # Partial fillings in ascending order; each step appends a sequence.
  partial = np.zeros((1, 0), np.int64)
  total = np.zeros(1, np.int64)
  smallest = np.ones(1, np.int64)
  fillings: list[np.ndarray] = []
  for filled in range(1, depth + 1):
    # Either the last sequence takes the rest, and is at least as long as those before it;
    last = size - total
    fits = last >= smallest
    done = np.concatenate([partial[fits], last[fits, None]], axis=1)
    fillings.append(np.pad(done, ((0, 0), (depth - filled, 0))))
    # or another sequence goes before it, at most half as long as the rest.
    largest = (size - total) // 2
    repeats = np.maximum(largest - smallest + 1, 0)
    origin = np.repeat(np.arange(total.size), repeats)
    starts = np.cumsum(repeats) - repeats
    added = smallest[origin] + np.arange(origin.size) - starts[origin]
    partial = np.concatenate([partial[origin], added[:, None]], axis=1)
    total, smallest = total[origin] + added, added
  return np.concatenate(fillings)


def _matrix(strategies: np.ndarray, capacity: int) -> np.ndarray:
  """float64[capacity, P]; the number of sequences of each size in each strategy."""
  matrix = np.zeros((capacity, strategies.shape[0]))
  for slot in strategies.T:
    used = np.flatnonzero(slot)
    matrix[slot[used] - 1, used] += 1  # a column occurs once in `used`
  return matrix


def _solve(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
  import scipy.optimize  # imported late: it takes as long as all other imports

  try:
    return scipy.optimize.nnls(matrix, target)[0]
  except RuntimeError as error:
    raise UnsolvedError(
      f"Non-negative least squares failed ({str(error).rstrip('.')}). Use optimal or lpfhp."
    ) from error


def _finish(
  problem: Problem, strategies: np.ndarray, usage: np.ndarray, leftovers: str
) -> Solution:
  """Packs the sequences that are left over, and drops slots that stay empty."""
  residual = problem.counts - _slots(strategies, usage, problem.capacity)[1:]
  least_squares_residual = residual.tolist()
  chosen = np.flatnonzero(usage)
  packs = collections.Counter(
    {
      tuple(size for size in slots if size): n
      for slots, n in zip(strategies[chosen].tolist(), usage[chosen].tolist(), strict=True)
    }
  )
  left = np.maximum(residual, 0)
  rest = Problem(left, problem.capacity, problem.depth)
  if leftovers == "pad":
    # The paper completes (l) to the strategy (l, row - l), with an empty slot.
    for size, n in zip(rest.sizes.tolist(), rest.demand.tolist(), strict=True):
      beside = problem.capacity - size
      pair = (size, beside) if beside and problem.depth > 1 else (size,)
      packs[tuple(sorted(pair))] += n
      if len(pair) == 2:
        residual[beside - 1] -= n
      residual[size - 1] -= n
  elif left.any():
    for n, strategy in heuristics.lpfhp(rest).packs:
      packs[tuple(sorted(strategy))] += n
    residual -= left
  before = {key: n for key, n in packs.items() if n}
  num_before = sum(before.values())
  sizes = np.arange(1, problem.capacity + 1)
  exact = sum(n * (problem.capacity - sum(key)) for key, n in before.items())
  padding = int(-np.minimum(residual, 0).astype(object) @ sizes.astype(object)) + exact
  after = _drop_empty_slots(before, np.maximum(-residual, 0).tolist())
  details = {
    "num_strategies_before": len(before),
    "num_packs_before": num_before,
    "efficiency_before": 1 - padding / (num_before * problem.capacity),
    "num_leftover_sequences": int(left.sum()),
    "residual": least_squares_residual,
  }
  return Solution([(n, key) for key, n in after.items()], details=details)


def _drop_empty_slots(packs: dict[Strategy, int], empty: list[int]) -> dict[Strategy, int]:
  """Removes `empty[size - 1]` slots of each size from the plan.

  Packs with only surplus slots are removed first.
  """
  kept: collections.Counter[Strategy] = collections.Counter()
  for strategy, count in packs.items():
    slots = collections.Counter(strategy)
    whole = min([count] + [empty[size - 1] // n for size, n in slots.items()])
    for size, n in slots.items():
      empty[size - 1] -= whole * n
    if count > whole:
      kept[strategy] += count - whole
  done: collections.Counter[Strategy] = collections.Counter()
  for strategy, count in kept.items():
    pieces = [(strategy, count)]
    for size in dict.fromkeys(strategy):
      pieces = [p for piece in pieces for p in _without(piece, size, empty)]
    for rest, n in pieces:
      if rest:
        done[rest] += n
  return dict(done)


def _without(piece: tuple[Strategy, int], size: int, empty: list[int]):
  """Splits packs by the number of slots of this size that are removed from them."""
  strategy, count = piece
  for out in range(strategy.count(size), 0, -1):
    packs = min(count, empty[size - 1] // out)
    if packs:
      empty[size - 1] -= packs * out
      count -= packs
      at = strategy.index(size)  # equal sizes are neighbours
      yield strategy[:at] + strategy[at + out :], packs
  if count:
    yield strategy, count
