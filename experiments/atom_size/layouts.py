"""Table 3 and Figure 3, and how packing compares: all layouts with atoms of a row.

References:
  The atom-size paper; `__main__` has its title.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.atom_size import pictures
from experiments.atom_size.perplexities import (
  Found,
  Result,
  held_out,
  mean_nats,
  nats_of,
  segments_of,
)
from experiments.atom_size.runs import CONCAT, ISOLATED, PACKED, PADDING, PADDING_ALL
from lab.exhibits import Exhibit, Part, Statement
from lab.statistics import larger, mean_and_sd, quartiles
from lab.table import table
from launch.sweep.pairs import paired_difference

TIMED = {
  CONCAT: "concat",
  PADDING: "padding",
  PADDING_ALL: "padding, predicted too",
  PACKED: "packed",
}
NAMES = TIMED | {ISOLATED: "concat, isolated"}
# Table 3: steps of its two epochs and final perplexity, of concat and of padding.
PAPER_TABLE_3 = {
  32: ((28_120, "91.01"), (31_816, "87.22")),
  64: ((14_058, "110.45"), (17_308, "99.79")),
  128: ((14_056, "102.42"), (20_496, "82.55")),
}
NOT_COMPARABLE = (
  "Training perplexities are not comparable between layouts; held-out perplexities are "
  "(docs/atom_size.md says why). Steps of padding have fewer tokens of text."
)
FEW = (
  "If a step has few atoms, consecutive parts of one atom fill much of it, or all of it; "
  "in the paper's steps of 16,384 tokens they do not. Documents are paragraphs in the "
  "order of the text, so the text that concat mixes in is often from the same article."
)


def concat_and_padding(part: Part, row_lengths: Mapping[int, Found]) -> Exhibit:
  """The exhibit of Table 3 and Figure 3: concat, padding and the loss on padding."""
  rows, panels, statements, ratios = [], {}, [], []
  for row_length, found in row_lengths.items():
    runs = {layout: found[layout] for layout in NAMES if layout in found}
    panels[row_length] = {name: runs[x] for x, name in TIMED.items()}
    final = {x: np.array([segments_of(run)[-1] for run in runs[x]]) for x in runs}
    nats = {x: [mean_nats(run) for run in runs[x]] for x in runs}
    steps = {x: runs[x][0]["steps_per_epoch"] for x in runs}
    ratios.append(f"{steps[PADDING] / steps[CONCAT]:.2f} (rows of {row_length})")
    paper = dict(zip((CONCAT, PADDING), PAPER_TABLE_3.get(row_length, ()), strict=False))
    for layout, of_layout in runs.items():
      of_paper = paper.get(layout)
      row = [
        f"{row_length}",
        NAMES[layout],
        f"{steps[layout]:,.1f}",
        f"{of_paper[0] / 2:,.0f}" if of_paper else "",
        mean_and_sd(final[layout], 2),
        of_paper[1] if of_paper else "",
        mean_and_sd(np.exp(nats[layout]), 2),
        mean_and_sd([held_out(run) for run in of_layout], 2),
      ]
      rows.append(row)
    statements += _padding_statements(f"Rows of {row_length}", runs, nats_of(final), nats)
  finding = f"Padding takes more steps an epoch than concat: {', '.join(ratios)} times."
  pictures.steps(part.folder / "concat_and_padding.png", panels, title=finding)
  header = ["rows of", "layout", "steps an epoch", "the paper's", "final perplexity"]
  header += ["the paper's", "last epoch", "held out"]
  return part.exhibit(
    "Table 3 and Figure 3",
    "concat and padding with atoms of a row, and whether padding is predicted",
    finding,
    claim="Padding reaches a lower perplexity than concat, in more steps.",
    statements=statements,
    pictures=["concat_and_padding.png"],
    text=table(header, rows, left=[1])
    + "\n\nThe paper's perplexities are those of a model with 124 million parameters and a "
    "vocabulary of 50,257, after 2 epochs of WikiText-103 (its Table 3; its figures have "
    "other numbers for the same layouts). The paper does not say whether end tokens that "
    "serve as padding are predicted."
    f"\n\n{NOT_COMPARABLE}\n\n{FEW}",
  )


def _padding_statements(where: str, runs, final, nats) -> list[Statement]:
  held = nats_of({x: [held_out(run) for run in runs[x]] for x in (CONCAT, PADDING)})
  at_equal_steps = _at_equal(runs[PADDING], runs[CONCAT], by="step")
  last_epoch = "a lower training perplexity over the last epoch than concat"
  ends = "ends with a lower training perplexity than concat"
  return [
    larger(f"{where}: padding {claim}", more, less)
    for claim, more, less in (
      (ends, final[CONCAT], final[PADDING]),
      (f"has {last_epoch}", nats[CONCAT], nats[PADDING]),
      (f"that is predicted too {ends}", final[CONCAT], final[PADDING_ALL]),
      ("ends with a lower held-out perplexity than concat", held[CONCAT], held[PADDING]),
      ("has a higher held-out perplexity than concat at equal steps", *at_equal_steps),
    )
  ]


def packed(
  part: Part, row_length: int, found: Found, seconds: Mapping[str, Sequence[float]]
) -> Exhibit:
  """The exhibit of how packing compares at equal steps, text and time.

  `seconds` has, for each layout of `TIMED`, the seconds of a step in each turn. A step of
  isolated documents takes as long as one of `concat`: the operations are the same.
  """
  layouts = [PACKED, CONCAT, PADDING, PADDING_ALL, ISOLATED]
  layouts = [layout for layout in layouts if layout in found]
  seconds = {**seconds, ISOLATED.name: seconds[CONCAT.name]}
  base = np.array(seconds[PACKED.name])  # in the same turns, so drift cancels in the ratio
  clock = {x: float(np.median(base) * np.median(seconds[x.name] / base)) for x in layouts}
  runs = {x: [_timed(run, clock[x]) for run in found[x]] for x in layouts}
  held = {x: np.array([held_out(run) for run in runs[x]]) for x in layouts}
  nats, statements, rows = nats_of(held), [], []
  for layout in layouts[1:]:
    equal = {
      "equal steps": _at_equal(runs[PACKED], runs[layout], by="step"),
      "equal text": (nats[PACKED], nats[layout]),
      "equal time": _at_equal(runs[PACKED], runs[layout], by="seconds"),
    }
    rows.append([NAMES[layout]])
    for what, (ours, theirs) in equal.items():
      rows[-1].append(paired_difference(theirs, ours))
      if layout != PADDING_ALL:
        claim = (
          f"Rows of {row_length}: at {what} packed has a lower held-out perplexity than "
          f"{NAMES[layout]}"
        )
        statements.append(larger(claim, theirs, ours))
  if ISOLATED in found:
    claim = f"Rows of {row_length}: isolated documents lower concat's held-out perplexity"
    statements.append(larger(claim, nats[CONCAT], nats[ISOLATED]))
  steps = {x: len(runs[x][0]["nats"]) for x in layouts}
  ms = {x: quartiles(1e3 * np.array(seconds[x.name])) for x in layouts}
  totals = [
    [
      NAMES[x],
      f"{steps[x]:,}",
      "{:.1f} ({low:.1f} to {high:.1f})".format(1e3 * clock[x], **ms[x]),
      f"{steps[x] * clock[x]:.0f}",
      mean_and_sd(held[x], 2),
    ]
    for x in layouts
  ]
  ends = [f"{NAMES[x]} at {held[x].mean():.1f} in {steps[x]:,} steps" for x in layouts[:3]]
  finding = f"Rows of {row_length} tokens, held-out perplexity: {', '.join(ends)}."
  picture = f"packed_{row_length}.png"
  pictures.held_out(
    part.folder / picture, {NAMES[x]: runs[x] for x in layouts}, title=finding
  )
  header = ["more than packed, in nats", "equal steps", "equal text", "equal time"]
  columns = ["layout", "steps", "ms a step (quartiles)", "seconds", "held out"]
  return part.exhibit(
    f"Packed, rows of {row_length}",
    "packing compared with concat and padding, atoms of a row",
    finding,
    claim="(Not in the paper.) How isolated packs compare with both layouts.",
    statements=statements,
    pictures=[picture],
    text=f"{table(columns, totals)}\n\n"
    f"{table(header, rows)}\n\n"
    f"Seeds: {len(runs[PACKED])}. docs/atom_size.md says how runs are compared.",
  )


def _timed(run: Result, seconds_a_step: float) -> Result:
  evaluations = [
    point | {"seconds": point["step"] * seconds_a_step} for point in run["evaluations"]
  ]
  return {**run, "evaluations": evaluations}


def _at_equal(
  a: Sequence[Result], b: Sequence[Result], *, by: str
) -> tuple[list[float], list[float]]:
  """Held-out nats of pairs of runs, at the end of the shorter run of each pair."""
  ends = [
    min(run["evaluations"][-1][by] for run in pair) for pair in zip(a, b, strict=True)
  ]
  first, second = (
    [_at(run, end, by) for run, end in zip(runs, ends, strict=True)] for runs in (a, b)
  )
  return first, second


def _at(run: Result, value: float, by: str) -> float:
  """Held-out nats, interpolated between evaluations, linearly in the logarithm of `by`."""
  points = run["evaluations"]
  nats = [math.log(point["perplexity"]) for point in points]
  return float(np.interp(math.log(value), [math.log(x[by]) for x in points], nats))
