"""Figures 1, 2 and 7 to 10, and Table 2: which atom is best.

References:
  The atom-size paper; `__main__` has its title.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.stats

from experiments.atom_size import pictures
from experiments.atom_size.perplexities import (
  Found,
  epochs_of,
  held_out,
  mean_nats,
  nats_of,
  segments_of,
)
from experiments.atom_size.runs import Layout
from lab.exhibits import Exhibit, Part
from lab.statistics import larger, mean_and_sd, throughout
from lab.table import table
from pipeline.batches import atoms

MARGIN = 0.01  # nats; the paper's atoms of two rows differ by 0.013 from those of one
RANKS = 0.25  # the margin for mean ranks
ATOMS = (0.25, 0.5, 1.0, 2.0, 4.0)  # in rows


class Paper(NamedTuple):
  """What the paper prints for `ATOMS`; "" for what it does not have."""

  figure: str
  perplexities: Sequence[str]  # final; its Table 3 has other numbers
  ranks: Sequence[str]


NOT_PRINTED = Paper("", ("",) * len(ATOMS), ("",) * len(ATOMS))
PAPER: dict[tuple[str, int], Paper] = {
  ("concat", 64): Paper(
    "Figure 1 and Table 2",
    ("207.04", "157.39", "118.08", "119.66", "121.18"),
    ("5.00", "4.00", "1.05", "1.96", "2.99"),
  ),
  ("padding", 64): Paper(
    "Figure 2 and Table 2",
    ("175.33", "134.43", "102.82", "104.46", "105.85"),
    ("5.00", "4.00", "1.18", "2.03", "2.79"),
  ),
  ("concat", 32): Paper(
    "Figure 7", ("222.14", "", "91.21", "", ""), ("5", "", "1", "", "")
  ),
  ("concat", 128): Paper(
    "Figure 8", ("159.81", "", "110.31", "", ""), ("4", "", "1", "", "")
  ),
  ("padding", 32): Paper(
    "Figure 9", ("196.83", "", "85.56", "", ""), ("5", "", "1.1", "", "")
  ),
  ("padding", 128): Paper(
    "Figure 10", ("146.95", "", "86.20", "", ""), ("4", "", "1.23", "", "")
  ),
}
PAPER_ATOMS = {32: ATOMS, 64: ATOMS, 128: ATOMS[:-1]}
# Figures of the second epoch, and the longer atoms that begin it lower than those of a row.
SECOND_EPOCH = (
  ("Figure 2 (b)", "padding", 64, (2.0, 4.0)),
  ("Figure 8 (b)", "concat", 128, (2.0,)),
  ("Figure 10 (b)", "padding", 128, ()),
)


def atom_sizes(
  part: Part, kind: str, row_length: int, found: Found, lengths: np.ndarray
) -> Exhibit:
  """The exhibit of which atom of `kind` is best: Figures 1, 2 and 7 to 10, and Table 2."""
  base, paper = Layout(kind), PAPER.get((kind, row_length), NOT_PRINTED)
  layouts = [Layout(kind, atom) for atom in ATOMS if Layout(kind, atom) in found]
  runs = {layout: found[layout] for layout in layouts}
  names = {layout: f"{layout.atom:g} S" for layout in layouts}
  segments = {x: np.array([segments_of(run) for run in runs[x]]) for x in layouts}
  ranks = _ranks(
    {x: segments[x] for x in layouts if x.atom in PAPER_ATOMS.get(row_length, ATOMS)}
  )
  final = {x: segments[x][:, -1] for x in layouts}
  held = {x: np.array([held_out(run) for run in runs[x]]) for x in layouts}
  nats = {x: [mean_nats(run) for run in runs[x]] for x in layouts}
  if_free = {
    x: [mean_nats(run, free=ends_at_cuts(lengths, x, row_length)) for run in runs[x]]
    for x in layouts
  }
  best, best_held = (
    min(layouts, key=lambda x: np.mean(values[x])) for values in (nats, held)
  )
  by_epoch, by_text = math.exp(np.mean(nats[best])), held[best_held].mean()
  of_epoch = f"perplexity over the last epoch ({by_epoch:.1f})"
  finding = f"Rows of {row_length} tokens, {kind}: atoms of {names[best]} have the lowest "
  if best == best_held:
    finding += f"{of_epoch} and on held-out text ({by_text:.1f})."
  else:
    finding += (
      f"training {of_epoch}, those of {names[best_held]} the lowest held-out perplexity "
      f"({by_text:.1f})."
    )
  picture = f"{kind}_{row_length}.png"
  pictures.atoms(
    part.folder / picture,
    {names[x]: runs[x] for x in layouts},
    {names[x]: segments[x] for x in layouts},
    {names[x]: np.array(of_layout) for x, of_layout in ranks.items()},
    epochs=epochs_of(runs[layouts[0]][0]),
    title=finding,
  )
  last_epoch = "training perplexity over the last epoch"
  in_nats: dict[str, Any] = {"margin": MARGIN}
  compared = [
    ("final training perplexity", nats_of(final), in_nats),
    (last_epoch, nats, in_nats),
    (f"{last_epoch}, even if ends at cuts cost nothing", if_free, in_nats),
    ("held-out perplexity", nats_of(held), in_nats),
    ("mean rank in the last epoch", ranks, {"margin": RANKS, "unit": "ranks"}),
  ]
  if kind == "concat":
    del compared[2]  # concat has no ends at cuts
  return part.exhibit(
    paper.figure or f"Rows of {row_length}, {kind}",
    f"{kind}, rows of {row_length}: perplexity by the size of atoms",
    finding,
    claim=("" if paper.figure else "(Not in the paper.) ")
    + f"Of all atoms, those of a row have the lowest perplexity ({kind}, rows of "
    f"{row_length}).",
    statements=[
      throughout(
        f"Atoms of a row have the lowest {what}: all others have more",
        [
          larger(f"atoms of {names[x]}", values[x], values[base], **unit)
          for x in sorted(values, key=lambda x: np.mean(values[x]))
          if x != base
        ],
      )
      for what, values, unit in compared
    ],
    pictures=[picture],
    text=_table_of_atoms(base, paper, row_length, final, ranks, nats, if_free, held)
    + f"\n\nSeeds: {len(runs[base])}; differences are of logarithms, in nats.",
  )


def second_epoch(part: Part, row_lengths: Mapping[int, Found]) -> Exhibit:
  """The exhibit of where atoms of a row begin and end the second epoch."""
  statements = []
  for figure, kind, row_length, lower in SECOND_EPOCH:
    found = {x: row_lengths[row_length][Layout(kind, x)] for x in PAPER_ATOMS[row_length]}
    start = 2.0 - epochs_of(found[1.0][0])
    begin, end = (
      {x: [mean_nats(run, start=at, end=at + 0.1) for run in found[x]] for x in found}
      for at in (start, start + 0.9)
    )
    pairs = {
      "begin it higher than longer ones": [(x, begin[1.0], begin[x]) for x in lower],
      "end it lowest": [(x, end[x], end[1.0]) for x in end if x != 1],
    }
    statements += [
      throughout(
        f"{figure}: atoms of a row {what}",
        [larger(f"atoms of {x:g} S", *nats, margin=MARGIN) for x, *nats in compared],
      )
      for what, compared in pairs.items()
      if compared
    ]
  return part.exhibit(
    "Figures 2 (b), 8 (b) and 10 (b)",
    "the second epoch, from its first tenth to its last",
    f"{sum(x.outcome == 'holds' for x in statements)} of {len(statements)} claims hold.",
    claim="Atoms of a row begin the second epoch higher than longer ones and end lowest.",
    statements=statements,
    text="In Figure 10 (b) one row and two begin alike. The paper has no third epoch.",
  )


def ends_at_cuts(lengths: np.ndarray, layout: Layout, row_length: int) -> int:
  """How many end tokens an epoch has where a document is cut and continues elsewhere.

  Args:
    lengths: int[D]; tokens of each document.
    layout: of the rows.
    row_length: S, in tokens.

  Example: a document of 130 tokens fills three atoms of 64; two end in such a token.

    >>> ends_at_cuts(np.array([130, 35]), Layout("padding"), 64)
    2
  """
  if layout.kind != "padding":
    return 0
  size = layout.tokens(row_length)
  made = atoms.cut(lengths, layout="padding", atom_size=size, row_length=row_length)
  return made.num_atoms - lengths.size


def _ranks(segments: Mapping[Layout, np.ndarray]) -> dict[Layout, list[float]]:
  """The mean rank of each layout among all, by seed; 1 is the lowest perplexity (A.6)."""
  ranks = scipy.stats.rankdata(np.stack([*segments.values()]), axis=0).mean(2)
  return dict(zip(segments, ranks.tolist(), strict=True))


def _table_of_atoms(
  base: Layout, paper: Paper, row_length: int, final, ranks, nats, if_free, held
) -> str:
  of_paper = dict(zip(ATOMS, paper.perplexities, strict=True))
  of_paper_ranks = dict(zip(ATOMS, paper.ranks, strict=True))
  # Ranks are comparable only among as many atoms.
  same_ranks = len(ranks) == len(PAPER_ATOMS.get(row_length, ATOMS))
  rows = []
  for layout in final:
    printed = of_paper[layout.atom]
    ratio = float(printed) / float(of_paper[1.0]) if printed else math.nan
    row = [
      f"{layout.atom:g} S",
      mean_and_sd(final[layout], 2),
      f"{final[layout].mean() / final[base].mean():.3f}",
      f"{printed} ({ratio:.3f})" if printed else "",
      f"{np.mean(ranks[layout]):.2f}" if layout in ranks else "",
      of_paper_ranks[layout.atom] if same_ranks else "",
      mean_and_sd(np.exp(nats[layout]), 2),
      mean_and_sd(np.exp(if_free[layout]), 2),
      mean_and_sd(held[layout], 2),
    ]
    rows.append(row)
  header = ["atom", "final perplexity", "its share of 1 S", "the paper's", "rank"]
  header += ["the paper's", "last epoch", "if ends at cuts cost nothing", "held out"]
  return table(header, rows)
