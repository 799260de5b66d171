"""Plans of packs that are made while reading, and what identifies any plan."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json

import numpy as np

import packing
from packing.permutation import permute
from packing.problem import Geometry

ONLINE = "online"  # packs are made while reading; the plan is that of the first epoch


def online_plan(
  lengths: np.ndarray, histogram: packing.Histogram, geometry: Geometry, *, seed: int
) -> packing.Plan:
  """The packs that an online packer makes of the first epoch, all closed at its end.

  Args:
    lengths: int[N], in tokens.
    histogram: of the same lengths.
    geometry: the geometry of the rows.
    seed: selects the order in which the epoch is read.
  """
  packer = packing.OnlinePacker(
    row_length=geometry.capacity,
    max_sequences_per_pack=geometry.max_sequences_per_pack,
    shortest=int(geometry.sizes(1)),
  )
  lengths = lengths[epoch_order(lengths.size, seed, 0)]
  packs = collections.Counter(
    tuple(sorted(lengths[pack].tolist()))
    for pack in packer.pack(geometry.sizes(lengths).tolist())
  )
  strategies = sorted(packs)
  return packing.Plan(
    histogram=histogram,
    strategies=strategies,
    repeat_counts=np.array([packs[strategy] for strategy in strategies]),
    algorithm=ONLINE,
    **dataclasses.asdict(geometry),
  )


def epoch_order(
  number: int, seed: int, epoch: int, places: np.ndarray | None = None
) -> np.ndarray:
  """int64[n]: the rows, or sequences, that come at some places of an epoch's order.

  Args:
    number: N, how many there are, at least 1.
    seed: selects the order, together with the epoch.
    epoch: the number of the epoch, from 0.
    places: int64[n], below N; None for all.

  Example:
    >>> epoch_order(5, seed=1, epoch=0).tolist()
    [4, 0, 2, 3, 1]
    >>> epoch_order(5, seed=1, epoch=0, places=np.array([1, 4])).tolist()
    [0, 1]
  """
  if places is None:
    places = np.arange(number)
  size = np.array([number], np.uint64)
  key = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)
  return permute(places.view(np.uint64), size, key).view(np.int64)


def plan_sha256(plan: packing.Plan) -> str:
  """SHA-256 of everything in a plan that decides which lengths share a row.

  Example:
    >>> histogram = packing.Histogram.from_lengths([3, 5, 2], max_sequence_length=5)
    >>> plans = [packing.pack(histogram, algorithm=name) for name in ("ffd", "bfd", "none")]
    >>> ffd, bfd, none = map(plan_sha256, plans)
    >>> ffd == bfd, ffd == none
    (True, False)
  """
  rows = [plan.row_length, plan.strategies, plan.repeat_counts.tolist()]
  return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
