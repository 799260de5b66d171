"""Few packs with two limits, such as tokens and image tokens, for hundreds of items.

Some greedy plans are made, and one for the scarcer size alone, in which items are
exchanged until the packs keep the other limit, too. Then the emptiest packs of the best
plan and a few others are packed again and again, which gathers the space until a pack is
saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

Packs = list[list[int]]

_PACKS = 6  # that are packed again at a time
# Rounds in which packs are packed again: a fixed number, and a number for each pack.
_ROUNDS = 60, 2
_NOISE = 0.05  # of an item's share, so that other items share a pack each time


def fewest_of_two(
  sizes: np.ndarray,
  limits: np.ndarray,
  *,
  bound: int,
  of_one: Callable[[np.ndarray, int], np.ndarray],
  scarcer: int,
) -> np.ndarray:
  """A plan of few packs that never has more than first fit and best fit decreasing.

  Args:
    sizes: int64[n, 2]; no item exceeds a limit.
    limits: int64[2]; what a pack holds of each size.
    bound: no plan has fewer packs.
    of_one: gives a plan, int64[m], for int64[m] sizes of at least 1 and one limit.
    scarcer: the size, 0 or 1, that needs more packs alone.

  Returns:
    int64[n]; the pack of each item, numbered from 0 without gaps.

  References:
    Panigrahy et al., Heuristics for vector bin packing (2011), for filling one pack after
    another by the product of an item and the space.
  """
  items = _Items(sizes, limits)
  best: Packs | None = None
  for plan in _plans(items, of_one, scarcer):
    if best is None or len(plan) < len(best):
      best = plan
    if len(best) == bound:
      break
  assert best is not None
  best = _pack_again(items, best, bound)
  pack_of = np.empty(len(sizes), np.int64)
  for number, pack in enumerate(best):
    pack_of[pack] = number
  return pack_of


class _Items:
  """Sizes as shares of the limits.

  Attributes:
    shares: float64[n, 2]
    load: float64[n]; the sum of an item's shares, in which the scarcer size counts more.
  """

  def __init__(self, sizes: np.ndarray, limits: np.ndarray):
    self.sizes, self.limits = sizes, limits
    self.shares = sizes / limits
    total = self.shares.sum(axis=0)
    self.weights = total / total.max()  # some item has a size above 0
    self.load = self.shares @ self.weights


def quick(sizes: np.ndarray, limits: np.ndarray) -> Packs:
  """The packs of first and best fit decreasing, the fewer; for any number of sizes."""
  items = _Items(sizes, limits)
  order = np.argsort(-sizes[:, 0], kind="stable").tolist()
  return min((_insert(items, [], order, x) for x in (_first, _tightest)), key=len)


def _plans(items: _Items, of_one, scarcer: int) -> Iterator[Packs]:
  """Plans, the quickest first."""
  yield quick(items.sizes, items.limits)
  yield _fill(items)
  yield _exchanged(items, of_one, scarcer)
  orders = [items.sizes[:, 0], items.sizes[:, 1], items.shares.max(axis=1), items.load]
  for values in orders:
    order = np.argsort(-values, kind="stable").tolist()
    for choose in (_tightest, _widest):
      yield _insert(items, [], order, choose)


def _first(space: np.ndarray) -> int:
  return 0


def _tightest(space: np.ndarray) -> int:
  return int(space.argmin())


def _widest(space: np.ndarray) -> int:
  return int(space.argmax())


def _insert(items: _Items, packs: Packs, order: list[int], choose) -> Packs:
  """Puts items, one by one, into packs that hold them, or into new ones."""
  packs = [list(pack) for pack in packs]
  space = np.tile(items.limits, (len(packs) + len(order), 1))
  for number, pack in enumerate(packs):
    space[number] -= items.sizes[pack].sum(axis=0)
  for i in order:
    fit = np.flatnonzero((space[: len(packs)] >= items.sizes[i]).all(axis=1))
    if fit.size:
      number = int(fit[choose((space[fit] / items.limits) @ items.weights)])
    else:
      number = len(packs)
      packs.append([])
    packs[number].append(i)
    space[number] -= items.sizes[i]
  return packs


def _fill(items: _Items) -> Packs:
  """Fills one pack after another with what agrees best with the space in it."""
  left = np.argsort(-items.shares.max(axis=1), kind="stable")
  packs: Packs = []
  while left.size:
    pack, space = [int(left[0])], items.limits - items.sizes[left[0]]
    left = left[1:]
    while (fits := (items.sizes[left] <= space).all(axis=1)).any():
      agrees = items.shares[left] @ (space / items.limits * items.weights)
      at = int(np.where(fits, agrees, -1.0).argmax())
      pack.append(int(left[at]))
      space = space - items.sizes[left[at]]
      left = np.delete(left, at)
    packs.append(pack)
  return packs


def _exchanged(items: _Items, of_one, scarcer: int) -> Packs:
  """The plan for one size, after exchanges for the sake of the other limit."""
  own = np.flatnonzero(items.sizes[:, scarcer])
  pack_of = np.empty(len(items.sizes), np.int64)
  pack_of[own] = of_one(items.sizes[own, scarcer], int(items.limits[scarcer]))
  number = int(pack_of[own].max()) + 1
  free = np.flatnonzero(items.sizes[:, scarcer] == 0)
  pack_of[free] = np.arange(free.size) % number
  space = np.tile(items.limits, (number, 1))
  np.subtract.at(space, pack_of, items.sizes)
  # The last stands for nothing: exchanging an item with it only moves the item.
  sizes = np.append(items.sizes, np.zeros((1, 2), np.int64), axis=0)
  for _ in range(pack_of.size):
    here = int((space[:, 1 - scarcer] / items.limits[1 - scarcer]).argmin())
    if space[here].min() >= 0:
      break
    some = np.flatnonzero(pack_of == here)
    partners = np.append(np.flatnonzero(pack_of != here), np.full(number, pack_of.size))
    into = np.append(pack_of[pack_of != here], np.arange(number))
    more = sizes[some][:, None] - sizes[partners]
    lacks = np.minimum(space[here] + more, 0) + np.minimum(space[into] - more, 0)
    gain = (lacks - np.minimum(space[into], 0) - np.minimum(space[here], 0)) / items.limits
    gain = np.where(into == here, -1.0, gain.sum(axis=2))
    row, column = np.unravel_index(gain.argmax(), gain.shape)
    if gain[row, column] <= 0:
      break
    a, b, there = int(some[row]), int(partners[column]), int(into[column])
    space[here] += more[row, column]
    space[there] -= more[row, column]
    pack_of[a] = there
    if b < pack_of.size:
      pack_of[b] = here
  packs: Packs = [[] for _ in range(number)]
  out: list[int] = []
  for i in np.argsort(items.load, kind="stable").tolist():
    pack = packs[pack_of[i]]
    fits = (items.sizes[[*pack, i]].sum(axis=0) <= items.limits).all()
    (pack if fits else out).append(i)
  return _insert(items, [pack for pack in packs if pack], out[::-1], _tightest)


def _pack_again(items: _Items, packs: Packs, bound: int) -> Packs:
  """The packs after the emptiest and some others were packed again, many times."""
  rng = np.random.default_rng(0)
  load = [float(items.load[pack].sum()) for pack in packs]
  for _ in range(_ROUNDS[0] + _ROUNDS[1] * len(packs)):
    if len(packs) == bound:
      break
    emptiest = np.argsort(load, kind="stable")[: 1 + int(rng.integers(2))]
    others = rng.permutation(len(packs))[: _PACKS - emptiest.size]
    chosen = np.union1d(emptiest, others).tolist()
    again = _by_pairs(items, np.concatenate([packs[i] for i in chosen]), rng)
    new = [float(items.load[pack].sum()) for pack in again]
    old = [load[i] for i in chosen]
    # Of as many packs, those are better of which some are full and others empty.
    if (-len(new), sum(x * x for x in new)) > (-len(old), sum(x * x for x in old)):
      kept = np.setdiff1d(np.arange(len(packs)), chosen).tolist()
      packs = [packs[i] for i in kept] + again
      load = [load[i] for i in kept] + new
  return packs


def _by_pairs(items: _Items, left: np.ndarray, rng: np.random.Generator) -> Packs:
  """Minimum bin slack: the larger of the best pair comes next, as in `minimum_slack`."""
  worth = items.load[left] * (1 + _NOISE * rng.standard_normal(left.size))
  order = np.argsort(-worth, kind="stable")
  left, worth = left[order], worth[order]
  sizes = items.sizes[left]
  packs: Packs = []
  is_left = np.ones(left.size, bool)
  while is_left.any():
    first = int(is_left.argmax())
    pack, space = [first], items.limits - sizes[first]
    is_left[first] = False
    while True:
      fit = np.flatnonzero(is_left & (sizes <= space).all(axis=1))
      if not fit.size:
        break
      both = (sizes[fit][:, None] + sizes[fit] <= space).all(axis=2)
      np.fill_diagonal(both, False)
      pair = worth[fit] + np.where(both, worth[fit], 0.0).max(axis=1)
      at = int(fit[pair.argmax()])
      pack.append(at)
      space = space - sizes[at]
      is_left[at] = False
    packs.append(left[pack].tolist())
  return packs
