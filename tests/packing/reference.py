"""Slow and simple versions of the algorithms, to compare with."""

import functools
import itertools
import math


def fewest_packs(lengths, *, row_length, depth, multiple=1, separator=0):
  """The fewest packs."""
  rows = {row_length: 1}
  return least_cost(lengths, rows, depth=depth, multiple=multiple, separator=separator)


def least_cost(lengths, row_costs, *, depth, multiple=1, separator=0):
  """The least cost of rows, by all sets of shorter sequences beside the longest one.

  Each pack takes the cheapest row that holds it, of `row_costs` by row length. Feasible for
  up to about nine sequences.
  """
  gap = -(-separator // multiple) * multiple

  @functools.cache
  def solve(left):
    if not left:
      return 0
    *others, longest = left
    best = math.inf
    for number in range(min(depth, len(left))):
      for beside in set(itertools.combinations(others, number)):
        rounded = [-(-length // multiple) * multiple for length in (longest, *beside)]
        used = sum(rounded) + gap * number
        costs = [cost for length, cost in row_costs.items() if length >= used]
        if costs:
          rest = list(others)
          for length in beside:
            rest.remove(length)
          best = min(best, min(costs) + solve(tuple(rest)))
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
