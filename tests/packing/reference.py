"""Slow and simple versions of the algorithms, to compare with."""

import functools
import itertools
import math


def fewest_packs(lengths, *, row_length, depth, multiple=1, separator=0):
  """The fewest packs, by all sets of shorter sequences beside the longest one.

  Feasible for up to about nine sequences.
  """
  gap = -(-separator // multiple) * multiple

  def fits(pack):
    used = sum(-(-length // multiple) * multiple for length in pack)
    return used + gap * (len(pack) - 1) <= row_length

  @functools.cache
  def solve(left):
    if not left:
      return 0
    *others, longest = left
    best = math.inf
    for number in range(min(depth, len(left))):
      for beside in set(itertools.combinations(others, number)):
        if fits((longest, *beside)):
          rest = list(others)
          for length in beside:
            rest.remove(length)
          best = min(best, 1 + solve(tuple(rest)))
    return best

  return solve(tuple(sorted(lengths)))


def one_by_one(lengths, how, *, row_length, depth, separator=0):
  """Packs by "first", "best" or "next" fit, sequence by sequence.

  Of equally full packs, best fit takes the one opened first.

  Returns:
    A sorted list of sorted packs.
  """
  packs: list[list[int]] = []
  for length in lengths:
    fitting = [
      pack
      for pack in (packs[-1:] if how == "next" else packs)
      if sum(pack) + separator * len(pack) + length <= row_length and len(pack) < depth
    ]
    if not fitting:
      packs.append([length])
    elif how == "best":
      max(fitting, key=sum).append(length)  # max keeps the first of equals
    else:
      fitting[0].append(length)
  return sorted(tuple(sorted(pack)) for pack in packs)


def modified_first_fit(lengths, *, row_length, depth):
  """MFFD, sequence by sequence; a sorted list of sorted packs."""
  left = sorted(lengths, reverse=True)
  packs = [[length] for length in left if 2 * length > row_length]
  left = left[len(packs) :]

  def take(pack, least, fits=lambda length: True):
    """The longest that is left, above `least` sixths of a row, and fits."""
    for length in left:
      room = sum(pack) + length <= row_length and len(pack) < depth
      if room and 6 * length > least * row_length and fits(length):
        left.remove(length)
        pack.append(length)
        return True
    return False

  for pack in packs:
    take(pack, 2)
  for pack in reversed(packs):
    small = [n for n in left if row_length < 6 * n and 3 * n <= row_length]
    two = sum(small[-2:]) if len(small) > 1 and depth > 2 else row_length
    if len(pack) == 1 and pack[0] + two <= row_length:
      pack.append(small[-1])
      left.remove(small[-1])
      take(pack, 1, lambda length: 3 * length <= row_length)
  for pack in packs:
    while take(pack, 0):
      pass
  rest = one_by_one(left, "first", row_length=row_length, depth=depth)
  return sorted([*(tuple(sorted(pack)) for pack in packs), *rest])


def fewest_sets(number, fits):
  """The fewest sets of `number` items that fit, by all sets that hold the first item left.

  Args:
    number: of items, at most about nine.
    fits: whether a tuple of items fits in one set.
  """

  @functools.cache
  def solve(left):
    if not left:
      return 0
    first, *others = left
    best = math.inf
    for size in range(len(left)):
      for beside in itertools.combinations(others, size):
        if fits((first, *beside)):
          rest = tuple(i for i in others if i not in beside)
          best = min(best, 1 + solve(rest))
    return best

  return solve(tuple(range(number)))
