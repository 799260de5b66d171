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
    + f"\n\nFor a power of {POWER:.0%} in the one-sided paired test of the nearest atom, "
    "by its differences from atoms of a row in all hundredths of the last epoch.",
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
  """The pairs that a one-sided paired t-test needs for `POWER`.

  It tests that the mean difference is above 0, or, if this needs fewer, that it is below
  `MARGIN`, by the rule of `lab.statistics.decide`.

  Args:
    mean: of the differences of pairs, in nats.
    sd: their standard deviation, in nats.

  Example: half a standard deviation needs 27 pairs, as tables of power say.

    >>> seeds_to_decide(0.5, 1.0)
    27
  """
  pairs = np.arange(2, _MOST)
  beyond = scipy.stats.t.ppf(1 - LEVEL, pairs - 1)
  effect = max(mean, MARGIN - mean) / sd * np.sqrt(pairs)
  enough = scipy.stats.nct.sf(beyond, pairs - 1, effect) >= POWER
  return int(pairs[np.argmax(enough)])
