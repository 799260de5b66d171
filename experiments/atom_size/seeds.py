"""How many seeds the paper's final perplexity, a hundredth of an epoch, would need."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import scipy.stats

from experiments.atom_size.atom_sizes import ATOMS, MARGIN, PAPER
from experiments.atom_size.perplexities import Found, segments_of
from experiments.atom_size.runs import Layout
from lab.exhibits import Exhibit, Part
from lab.statistics import LEVEL
from lab.table import table

POWER = 0.8
_MOST = 10_000  # seeds


def seeds_needed(part: Part, row_lengths: Mapping[int, Found]) -> Exhibit:
  """The exhibit of how many seeds would decide which atom's final perplexity is lowest."""
  needed = {}
  for (kind, row_length), paper in PAPER.items():
    if row_length in row_lengths:
      needed[paper.figure] = _of_figure(kind, row_length, row_lengths[row_length])
  order = sorted(needed, key=lambda x: needed[x][1])
  first = [f"{name} about {needed[name][1]:,}" for name in order[:2]]
  header = ["figure", "rows", "seeds", "more runs", "nearest", "mean, nats", "sd, nats"]
  return part.exhibit(
    "Seeds for the final perplexity",
    "how many would decide whether atoms of a row have the lowest",
    f"Of the {len(order)} figures, these need the fewest seeds: {', '.join(first)}.",
    claim="(Not in the paper.) The final perplexity is that of a hundredth of an epoch.",
    text=table(header, [[name, *map(str, needed[name])] for name in order])
    + f"\n\nFor a power of {POWER:.0%} in the paired test of the nearest atom, by its "
    "differences from atoms of a row in all hundredths of the last epoch.",
  )


def _of_figure(
  kind: str, row_length: int, found: Found
) -> tuple[str, int, str, str, str, str]:
  """A line of the table, without the figure's name."""
  nats = {
    layout: np.log([segments_of(run) for run in found[layout]])
    for layout in (Layout(kind, atom) for atom in ATOMS)
    if layout in found
  }
  base = nats.pop(Layout(kind))
  more = {layout: values - base for layout, values in nats.items()}
  nearest = min(more, key=lambda x: more[x].mean() / more[x].std(ddof=1))
  mean, sd = more[nearest].mean(), more[nearest].std(ddof=1)
  seeds = seeds_to_decide(mean, sd)
  runs = (seeds - len(base)) * (len(more) + 1)
  return (
    f"{kind}, {row_length}",
    seeds,
    f"{max(runs, 0):,}",
    f"{nearest.atom:g} S",
    f"{mean:+.4f}",
    f"{sd:.4f}",
  )


def seeds_to_decide(mean: float, sd: float) -> int:
  """The pairs with which "larger" is decided with a chance of `POWER`.

  By the rule of `lab.statistics.decide` it holds if the mean is shown to be above 0 by a
  two-sided test and is at least `MARGIN`; it fails if the mean is shown to be below
  `MARGIN`. What needs fewer pairs counts. At most `_MOST`, also where more are needed.

  Args:
    mean: of the differences of pairs, in nats.
    sd: their standard deviation, in nats.

  Example: half a standard deviation needs 34 pairs, as tables of power say.

    >>> seeds_to_decide(0.5, 1.0)
    34
  """
  pairs = np.arange(2, _MOST + 1)
  root = np.sqrt(pairs)

  def chance(effect: float, level: float) -> np.ndarray:
    """That a test at a one-sided level shows a mean of `effect` to be above 0."""
    beyond = scipy.stats.t.ppf(1 - level, pairs - 1)
    return scipy.stats.nct.sf(beyond, pairs - 1, effect / sd * root)

  # Both conditions ask for a mean above a bound, so about the higher bound decides.
  at_least_margin = scipy.stats.norm.sf((MARGIN - mean) / sd * root)
  holds = np.minimum(chance(mean, LEVEL / 2), at_least_margin)
  fails = chance(MARGIN - mean, LEVEL)
  enough = np.maximum(holds, fails) >= POWER
  return int(pairs[enough][0]) if enough.any() else _MOST
