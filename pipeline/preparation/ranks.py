"""Assignments without a list of all lengths: a sequence's pack is computed from its rank.

The rank r of a sequence is its number among the n sequences of its length. The plan has n
slots for that length. A random permutation of 0, 1, ..., n - 1 maps r to a slot, and can be
computed for r alone. So each shard of a dataset can be assigned on its own, given how many
sequences of each length the shards before it have.
"""

from __future__ import annotations

import dataclasses

import numpy as np

import packing
from pipeline import splitmix

_ROUNDS = 6


@dataclasses.dataclass(frozen=True)
class Slots:
  """The slots of a plan by length, in compressed sparse row form.

  The blocks of length `l` are `offsets[l - 1]` to `offsets[l]`. Block `b` is slot
  `slot[b]` of the packs from `first_pack[b]` on, and begins at rank `first_rank[b]`.
  """

  offsets: np.ndarray
  first_rank: np.ndarray
  first_pack: np.ndarray
  slot: np.ndarray

  @classmethod
  def of_plan(cls, plan: packing.Plan) -> Slots:
    depths = np.array([len(s) for s in plan.strategies])
    counts = np.asarray(plan.repeat_counts)
    lengths = np.array([length for s in plan.strategies for length in s])
    block_counts = np.repeat(counts, depths)
    first_pack = np.repeat(np.cumsum(counts) - counts, depths)
    slot = np.concatenate([np.arange(depth) for depth in depths])
    order = np.argsort(lengths, kind="stable")
    sizes = np.bincount(lengths, minlength=plan.histogram.max_sequence_length + 1)[1:]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    before = np.concatenate([[0], np.cumsum(block_counts[order])])
    starts = np.repeat(before[offsets[:-1]], sizes)
    return cls(offsets, before[:-1] - starts, first_pack[order], slot[order])


def place(
  plan: packing.Plan, lengths: np.ndarray, ranks_before: np.ndarray, *, seed: int
) -> tuple[np.ndarray, np.ndarray]:
  """Packs and slots of consecutive sequences.

  Args:
    plan: for all sequences of the dataset.
    lengths: int[n]; lengths of consecutive sequences, such as those of a shard.
    ranks_before: int64[S]; how many sequences of each length come before them.
    seed: selects the assignment.

  Returns:
    int64[n] packs and int64[n] slots in them.
  """
  slots = Slots.of_plan(plan)
  packs = np.empty(lengths.size, np.int64)
  places = np.empty(lengths.size, np.int64)
  order = np.argsort(lengths, kind="stable")
  distinct, starts = np.unique(lengths[order], return_index=True)
  for length, ids in zip(distinct.tolist(), np.split(order, starts[1:]), strict=True):
    count = int(plan.histogram.counts[length - 1])
    ranks = np.arange(ids.size) + ranks_before[length - 1]
    ranks = permute(ranks, count, key=(seed << 24) + length)
    blocks = slice(slots.offsets[length - 1], slots.offsets[length])
    first_rank = slots.first_rank[blocks]
    block = np.searchsorted(first_rank, ranks, side="right") - 1
    packs[ids] = slots.first_pack[blocks][block] + ranks - first_rank[block]
    places[ids] = slots.slot[blocks][block]
  return packs, places


def permute(numbers: np.ndarray, count: int, *, key: int) -> np.ndarray:
  """A random permutation of 0, 1, ..., count - 1, applied to some numbers.

  A Feistel network over the next power of four, applied again to results outside the
  range.

  Example:
    >>> sorted(permute(np.arange(11), 11, key=5).tolist()) == list(range(11))
    True

  References:
    Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002, section 4.
  """
  half = np.uint64(max(1, ((count - 1).bit_length() + 1) // 2))
  mask = np.uint64((1 << int(half)) - 1)
  keys = [np.uint64(splitmix.mix_one(key + (i << 56))) for i in range(_ROUNDS)]
  x = numbers.astype(np.uint64)
  out = np.arange(x.size)
  result = np.empty(x.size, np.int64)
  while out.size:
    left, right = x >> half, x & mask
    for round_key in keys:
      left, right = right, left ^ (splitmix.mix(right ^ round_key) & mask)
    x = (left << half) | right
    inside = x < count
    result[out[inside]] = x[inside].astype(np.int64)
    out, x = out[~inside], x[~inside]
  return result
