"""Slow and simple versions of the algorithms, to compare with."""

import functools
import itertools


def fewest_packs(lengths, *, row_length, depth, multiple=1, separator=0):
  """The fewest packs, by brute force.

  Tries every combination of shorter sequences beside the longest one; feasible for up to
  about nine sequences.
  """
  gap = -(-separator // multiple) * multiple

  def fits(pack):
    tokens = sum(-(-length // multiple) * multiple for length in pack)
    return tokens + gap * (len(pack) - 1) <= row_length

  @functools.cache
  def solve(left):
    if not left:
      return 0
    longest, others = left[-1], left[:-1]
    best = len(left)
    for size in range(min(depth, len(left)), 0, -1):
      for beside in set(itertools.combinations(others, size - 1)):
        if fits((longest, *beside)):
          rest = list(others)
          for length in beside:
            rest.remove(length)
          best = min(best, 1 + solve(tuple(rest)))
    return best

  return solve(tuple(sorted(lengths)))


def first_fit(lengths, *, row_length, depth):
  """First fit, sequence by sequence; returns packs as lists."""
  packs: list[list[int]] = []
  for length in lengths:
    for pack in packs:
      if sum(pack) + length <= row_length and len(pack) < depth:
        pack.append(length)
        break
    else:
      packs.append([length])
  return packs


def best_fit(lengths, *, row_length, depth):
  """Best fit, sequence by sequence; among equally full packs, the one opened first."""
  packs: list[list[int]] = []
  for length in lengths:
    fitting = [p for p in packs if sum(p) + length <= row_length and len(p) < depth]
    if fitting:
      max(fitting, key=sum).append(length)  # max keeps the first of equals
    else:
      packs.append([length])
  return packs


def next_fit(lengths, *, row_length, depth, separator=0):
  """Next fit, sequence by sequence."""
  packs: list[list[int]] = []
  for length in lengths:
    if packs:
      tokens = sum(packs[-1]) + separator * len(packs[-1])
      if tokens + length <= row_length and len(packs[-1]) < depth:
        packs[-1].append(length)
        continue
    packs.append([length])
  return packs


def as_multiset(packs):
  """Packs as a sorted list of sorted tuples, for comparison."""
  return sorted(tuple(sorted(pack)) for pack in packs)
