"""What devices are dealt in a measured step: sequences, or packs of other sequences.

A share is one device's part of one step. Shares are drawn independently of each other, so
any n of them are a step of n devices. The shares of the two ways have about as many
sequences, but not the same ones, so the ways are compared by tokens a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

import packing
from experiments.load_balance.cost import Coefficients
from experiments.load_balance.simulation import Lengths, draw

UNPADDED, PACKED = "un-padding", "packing"  # each in two programs: compute, exchange
ONE_PROGRAM = "packing, one program"  # the usual training step


class Shares(NamedTuple):
  """N shares; all lengths in tokens.

  Attributes:
    unpadded: for each share, the lengths of its b sequences.
    packed: for each share, its packs, as the lengths of their sequences.
  """

  unpadded: list[list[int]]
  packed: list[list[list[int]]]


def draw_shares(lengths: Lengths, plan: packing.Plan, *, number: int, batch: int) -> Shares:
  """N shares for un-padding, of b sequences, and for packing, of about as many."""
  rng = np.random.default_rng([0, number, batch])
  rows = max(1, round(batch / plan.packing_factor))
  unpadded = lengths.draw(rng, (number, batch)).tolist()
  packs = draw(rng, plan.repeat_counts, (number, rows)).tolist()
  strategies = [list(map(int, strategy)) for strategy in plan.strategies]
  return Shares(unpadded, [[strategies[k] for k in share] for share in packs])


def count_tokens(shares: Shares) -> dict[str, np.ndarray]:
  """Real tokens of each share, int[N] by way.

  Example:
    >>> {way: x.tolist() for way, x in count_tokens(Shares([[1, 6]], [[[2, 6]]])).items()}
    {'un-padding': [7], 'packing': [8]}
  """
  return {
    UNPADDED: np.array([sum(share) for share in shares.unpadded]),
    PACKED: np.array([sum(map(sum, share)) for share in shares.packed]),
  }


def predict(
  shares: Shares, costs: Coefficients, *, compiled: Sequence[int]
) -> dict[str, np.ndarray]:
  """Seconds of each share, float[N] by way; without the fixed time of a step.

  Args:
    shares: of both ways.
    costs: of a device.
    compiled: lengths to which un-padding rounds up, ascending; the last is the row length.

  Example:
    >>> costs = Coefficients(step=9.0, row=0.0, token=1.0, token_pair=0.0)
    >>> predict(Shares([[1, 6]], [[[1, 6]]]), costs, compiled=[5, 10])
    {'un-padding': array([15.]), 'packing': array([10.])}
  """
  rounded = np.asarray(compiled)[np.searchsorted(compiled, np.array(shares.unpadded))]
  rows = np.array([len(share) for share in shares.packed])
  return {
    UNPADDED: costs.row_seconds(rounded).sum(1),
    PACKED: rows * costs.row_seconds(compiled[-1]),
  }
