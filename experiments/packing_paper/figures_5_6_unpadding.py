"""The paper's estimate of un-padding on many devices: section E, Figures 5 and 6.

  python -m experiments.unpadding_estimate

What becomes of un-padding when its steps are simulated from first principles, and when they
are really run, is in `python -m experiments.load_balance` and docs/load_balance.md.
"""

from __future__ import annotations

import pathlib
import sys

import numpy as np
import scipy.stats

from experiments.lab import part as parts
from experiments.lab.exhibits import Exhibit, to_the_digit, within
from experiments.load_balance import gumbel
from experiments.load_balance import pictures as load_balance_pictures

COMMAND = "python -m experiments.unpadding_estimate"

MOST = 2048  # devices
DRAWS = 100_000  # to check the integral with, as the paper drew


def exhibits(folder: pathlib.Path, *, quick: bool = False) -> list[Exhibit]:
  """The estimate; quick or not."""
  del quick
  one = gumbel.infer_one_device(gumbel.PAPER, devices=gumbel.PAPER_DEVICES)
  mean = {n: gumbel.mean_of_slowest(one, n) for n in (1, 2, 32, MOST)}
  printed = gumbel.Gumbel(one.location, 0.108)
  slip = {n: gumbel.mean_of_slowest(printed, n) for n in (32, MOST)}
  drawn = _drawn_mean(one, 32)
  ahead_from = gumbel.crossing(one, gumbel.PAPER_PACKING, most=MOST)
  values = [
    to_the_digit("alpha of one device", "1.94", one.location),
    to_the_digit(
      "beta of one device",
      "0.108",
      one.scale,
      note=f"a slip: with 0.108 un-padding would be {slip[32]:.2f} and {slip[MOST]:.2f} "
      f"times as fast on 32 and {MOST:,} devices, not 1.5 and 1.3 as the text says",
    ),
    to_the_digit("packing is ahead from (devices)", "2", ahead_from or 0),
    within("speed-up of 32 devices (% over 1)", "50", 100 * mean[32] - 100, tolerance=2),
    within("of 2,048 devices (% over 1)", "30", 100 * mean[MOST] - 100, tolerance=2),
  ]
  load_balance_pictures.estimate(
    folder / "figure_5.png", one, packing=gumbel.PAPER_PACKING, most=MOST
  )
  load_balance_pictures.distributions(
    folder / "figure_6.png", one, gumbel.PAPER, devices=gumbel.PAPER_DEVICES
  )
  return [
    Exhibit(
      name="Section E, Figures 5 and 6",
      title="Un-padding on many devices, estimated",
      agreement="to the digit",
      finding=f"Un-padding is expected to be {mean[1]:.2f}, {mean[2]:.2f}, {mean[32]:.2f} "
      f"and {mean[MOST]:.2f} times as fast as padding on 1, 2, 32 and {MOST:,} devices, "
      f"and packing the paper's {gumbel.PAPER_PACKING} times on any number. (By {DRAWS:,} "
      f"draws 32 devices come to {drawn:.3f}, by the integral to {mean[32]:.3f}.)",
      command=COMMAND,
      values=values,
      pictures=["figure_5.png", "figure_6.png"],
    )
  ]


def _drawn_mean(one: gumbel.Gumbel, devices: int) -> float:
  """The mean of the smallest of n draws, as the paper took it."""
  rng = np.random.default_rng(0)
  draws = scipy.stats.gumbel_r.rvs(*one, size=(DRAWS, devices), random_state=rng)
  return float(draws.min(axis=1).mean())


if __name__ == "__main__":
  sys.exit(parts.main(__doc__, exhibits, name="unpadding_estimate"))
