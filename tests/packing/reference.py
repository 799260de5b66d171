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
