"""The tables and figures of the atom-size paper, and where packing stands.

Each function takes what the runs found, draws into a folder and says what came of it.

References:
  Refining Packing and Shuffling Strategies for Enhanced Performance in Generative Language
  Models (the atom-size paper).
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments import atom_pictures, perplexities
from experiments.atom_runs import EPOCHS, Arm
from experiments.exhibits import Exhibit, Statement, to_the_digit
from experiments.report import table
from experiments.statistics import larger, paired, throughout
from pipeline import atoms

COMMAND = "python -m experiments.atom_size"
ATOMS = (0.25, 0.5, 1.0, 2.0, 4.0)  # in rows
CONCAT, PADDING, PACKED = Arm("concat"), Arm("padding"), Arm("packed")
PADDING_ALL = Arm("padding", loss_on_padding=True)
NAMES = {
  CONCAT: "concat",
  PADDING: "padding",
  PADDING_ALL: "padding, its loss too",
  PACKED: "packed",
}

Run = Mapping[str, Any]
Found = Mapping[Arm, Mapping[int, Run]]  # of a row length: by arm and seed, the finished

# Final perplexities for `ATOMS`, in Tables 2 and 3 and the captions of Figures 7 to
# 10 of the paper. Those of Table 3 for rows of 64 and 128 differ from those of Table 2 and
# of the figures.
PAPER: dict[tuple[str, int], tuple[str, ...]] = {
  ("concat", 32): ("222.14", "", "91.21", "", ""),
  ("concat", 64): ("207.04", "157.39", "118.08", "119.66", "121.18"),
  ("concat", 128): ("159.81", "", "110.31", "", ""),
  ("padding", 32): ("196.83", "", "85.56", "", ""),
  ("padding", 64): ("175.33", "134.43", "102.82", "104.46", "105.85"),
  ("padding", 128): ("146.95", "", "86.20", "", ""),
}
PAPER_RANKS: dict[tuple[str, int], tuple[str, ...]] = {
  ("concat", 32): ("5", "", "1", "", ""),
  ("concat", 64): ("5.00", "4.00", "1.05", "1.96", "2.99"),
  ("concat", 128): ("4", "", "1", "", ""),
  ("padding", 32): ("5", "", "1.1", "", ""),
  ("padding", 64): ("5.00", "4.00", "1.18", "2.03", "2.79"),
  ("padding", 128): ("4", "", "1.23", "", ""),
}
# Table 3: steps of two epochs and final perplexity, concat and padding.
PAPER_TABLE_3 = {
  32: ("28,120", "31,816", "91.01", "87.22"),
  64: ("14,058", "17,308", "110.45", "99.79"),
  128: ("14,056", "20,496", "102.42", "82.55"),
}
FIGURES = {
  ("concat", 64): "Figure 1 and Table 2",
  ("padding", 64): "Figure 2 and Table 2",
  ("concat", 32): "Figure 7",
  ("concat", 128): "Figure 8",
  ("padding", 32): "Figure 9",
  ("padding", 128): "Figure 10",
}

NOT_COMPARABLE = (
  "Perplexities of training rows are not the same measure in all layouts: rows of concat "
  "have the tokens of other documents as context, rows of padding lack the context before "
  "their atom, and with the loss on padding end tokens that are certain count as tokens. "
  "Held-out perplexity is one for all: each document alone, in windows of a row that move "
  "on by half a row, each token once."
)


def steps_an_epoch(
  lengths: np.ndarray, row_lengths: Mapping[int, Found], *, tokens: int
) -> Exhibit:
  """Whether the loaders make as many steps of an epoch as the token counts foretell.

  Args:
    lengths: tokens of each document.
    row_lengths: what was found, by row length.
    tokens: of a step.
  """
  values = []
  for row_length, found in row_lengths.items():
    for arm, runs in found.items():
      if arm.layout == "packed" or arm.loss_on_padding:
        continue
      size = round(arm.atom * row_length)
      foretold = atoms.steps_per_epoch(
        lengths,
        layout=arm.layout,
        atom_size=size,
        row_length=row_length,
        batch_size=tokens // row_length,
      )
      made = next(iter(runs.values()))["steps_per_epoch"]
      name = f"rows of {row_length}, {arm.layout}, atoms of {size}"
      values.append(to_the_digit(name, f"{foretold:,.3f}", made))
  text = int((lengths + 1).sum())
  agree = sum(bool(x.agrees) for x in values)
  return Exhibit(
    "Table 1, Appendices A.3 and A.9",
    "steps of an epoch, from the token counts and as made",
    "to the digit",
    f"{agree} of {len(values)} layouts have the steps of an epoch that {lengths.size:,} "
    f"documents with {text:,} tokens, end tokens included, foretell.",
    COMMAND,
    values=values,
    text="'Paper' is here what its method predicts for this text "
    "(`pipeline.atoms.num_rows`); 'here' is what the loader gives. The paper's own steps "
    "of concat, 14,060, 7,029 and 7,028 an epoch, are those of 115.1 to 115.2 million "
    "tokens at its batches; it counts 114.4 million of words.",
  )


def atom_sizes(
  layout: str, row_length: int, found: Found, folder: pathlib.Path, *, quick: bool
) -> Exhibit:
  """Which atom is best: Figures 1, 2 and 7 to 10, and Table 2.

  Args:
    layout: concat or padding.
    row_length: S, in tokens.
    found: what the runs of that row length found.
    folder: for the picture.
    quick: whether the runs have no whole epochs.
  """
  arms = [Arm(layout, atom) for atom in ATOMS if Arm(layout, atom) in found]
  seeds = _common_seeds(found, arms)
  runs = {arm: [found[arm][seed] for seed in seeds] for arm in arms}
  segments = {
    arm: np.array([_last_epoch(run, quick=quick) for run in runs[arm]]) for arm in arms
  }
  ranks_by_seed = [
    perplexities.mean_ranks({arm.name: segments[arm][i] for arm in arms})
    for i in range(len(seeds))
  ]
  ranks = {arm: float(np.mean([x[arm.name] for x in ranks_by_seed])) for arm in arms}
  named = {arm: f"{arm.atom:g} S" for arm in arms}
  final = {arm: segments[arm][:, -1] for arm in arms}
  held = {arm: np.array([_held_out(run) for run in runs[arm]]) for arm in arms}
  best = min(arms, key=lambda arm: final[arm].mean())
  best_held = min(arms, key=lambda arm: held[arm].mean())
  finding = (
    f"Rows of {row_length} tokens, {layout}: atoms of {named[best]} have the lowest final "
    f"training perplexity ({final[best].mean():.1f}), those of {named[best_held]} the "
    f"lowest held-out perplexity ({held[best_held].mean():.1f})."
  )
  picture = f"{layout}_{row_length}.png"
  atom_pictures.atoms(
    folder / picture,
    {named[arm]: runs[arm] for arm in arms},
    {named[arm]: segments[arm] for arm in arms},
    {named[arm]: ranks[arm] for arm in arms},
    epochs=EPOCHS,
    title=finding,
  )
  of_paper = dict(zip(ATOMS, PAPER[layout, row_length], strict=True))
  of_paper_ranks = dict(zip(ATOMS, PAPER_RANKS[layout, row_length], strict=True))
  header = ["atom", "final perplexity", "paper", "rank", "paper", "held out", "steps"]
  rows = [
    [
      named[arm],
      _with_sd(final[arm]),
      of_paper[arm.atom],
      f"{ranks[arm]:.2f}",
      of_paper_ranks[arm.atom],
      _with_sd(held[arm]),
      f"{len(runs[arm][0]['nats']):,}",
    ]
    for arm in arms
  ]
  base = Arm(layout)
  others = [arm for arm in arms if arm != base]
  statements = []
  for what, values in (("final training perplexity", final), ("held-out perplexity", held)):
    compared = [
      larger(f"atoms of {named[arm]}", _nats(values[arm]), _nats(values[base]))
      for arm in others
    ]
    claim = f"Atoms of a row have the lowest {what}: all others have more"
    statements.append(throughout(claim, compared))
  statements.append(
    _told(
      "Atoms of a row have the best mean rank in the last epoch",
      ranks[base] == min(ranks.values()),
      f"{ranks[base]:.2f}; the others {min(ranks[x] for x in others):.2f} or more; "
      f"{len(seeds)} seeds, not tested",
    )
  )
  return Exhibit(
    FIGURES[layout, row_length],
    f"{layout}, rows of {row_length}: perplexity by the size of atoms",
    "in shape",
    finding,
    COMMAND,
    statements=statements,
    pictures=[picture],
    text=table(header, rows, right=range(1, 7))
    + f"\n\n{len(seeds)} seeds; differences are of logarithms, in nats. {NOT_COMPARABLE}",
  )


def concat_and_padding(
  row_lengths: Mapping[int, Found], folder: pathlib.Path, *, quick: bool
) -> Exhibit:
  """Table 3 and Figure 3: atoms of a row, concat and padding, and the loss on padding.

  Args:
    row_lengths: what was found, by row length.
    folder: for the picture.
    quick: whether the runs have no whole epochs.
  """
  arms = (CONCAT, PADDING, PADDING_ALL, PACKED)
  rows, panels, statements, told = [], {}, [], []
  for row_length, found in row_lengths.items():
    here = [arm for arm in arms if arm in found]
    seeds = _common_seeds(found, here)
    runs = {arm: [found[arm][seed] for seed in seeds] for arm in here}
    panels[row_length] = {NAMES[arm]: runs[arm] for arm in here}
    final = {
      arm: np.array([_last_epoch(run, quick=quick)[-1] for run in runs[arm]])
      for arm in here
    }
    steps = {arm: len(runs[arm][0]["nats"]) for arm in here}
    paper = PAPER_TABLE_3.get(row_length, ("", "", "", ""))
    of_paper = {CONCAT: (paper[0], paper[2]), PADDING: (paper[1], paper[3])}
    rows += [
      [
        f"{row_length}",
        NAMES[arm],
        f"{steps[arm]:,}",
        of_paper.get(arm, ("", ""))[0],
        _with_sd(final[arm]),
        of_paper.get(arm, ("", ""))[1],
        _with_sd(np.array([_held_out(run) for run in runs[arm]])),
      ]
      for arm in here
    ]
    told.append(f"{steps[PADDING] / steps[CONCAT]:.2f} at {row_length}")
    statements += [
      _told(
        f"Rows of {row_length}: padding takes more steps than concat",
        steps[PADDING] > steps[CONCAT],
        f"{steps[PADDING]:,} and {steps[CONCAT]:,}",
      ),
      larger(
        f"Rows of {row_length}: padding ends with a lower training perplexity than concat",
        _nats(final[CONCAT]),
        _nats(final[PADDING]),
      ),
    ]
    if PADDING_ALL in here:
      statements.append(
        larger(
          f"Rows of {row_length}: with the loss on padding it does",
          _nats(final[CONCAT]),
          _nats(final[PADDING_ALL]),
        )
      )
    statements.append(
      larger(
        f"Rows of {row_length}: padding ends with a lower held-out perplexity than concat",
        _nats([_held_out(run) for run in runs[CONCAT]]),
        _nats([_held_out(run) for run in runs[PADDING]]),
      )
    )
  finding = f"Padding takes so many times concat's steps an epoch: {', '.join(told)}."
  atom_pictures.steps(folder / "concat_and_padding.png", panels, title=finding)
  header = ["rows of", "layout", "steps", "paper", "final perplexity", "paper", "held out"]
  return Exhibit(
    "Table 3 and Figure 3",
    "concat and padding with atoms of a row, and whether padding is predicted",
    "in shape",
    finding,
    COMMAND,
    statements=statements,
    pictures=["concat_and_padding.png"],
    text=table(header, rows, right=(0, 2, 3, 4, 5, 6))
    + f"\n\n{EPOCHS} epochs here, 2 in the paper, which does not say whether end tokens "
    f"that pad are predicted. {NOT_COMPARABLE}",
  )


def packed(row_length: int, found: Found, folder: pathlib.Path) -> Exhibit:
  """Where packing stands: held-out perplexity at equal steps, text and time.

  Args:
    row_length: S, in tokens.
    found: what the runs of that row length found.
    folder: for the picture.
  """
  arms = [arm for arm in (PACKED, CONCAT, PADDING, PADDING_ALL) if arm in found]
  seeds = _common_seeds(found, arms)
  runs = {arm: [found[arm][seed] for seed in seeds] for arm in arms}
  statements, rows = [], []
  for arm in arms[1:]:
    by_step, by_time = (_at_equal(runs[PACKED], runs[arm], what) for what in _MEASURES)
    by_text = [
      (math.log(_held_out(a)), math.log(_held_out(b)))
      for a, b in zip(runs[PACKED], runs[arm], strict=True)
    ]
    cells = []
    for what, pairs in (
      ("equal steps", by_step),
      ("equal text, all of it", by_text),
      ("equal time", by_time),
    ):
      ours, theirs = (list(x) for x in zip(*pairs, strict=True))
      cells.append(_difference(theirs, ours))
      if arm != PADDING_ALL:
        claim = f"At {what} packed has a lower held-out perplexity than {NAMES[arm]}"
        statements.append(larger(claim, theirs, ours))
    rows.append([NAMES[arm], *cells])
  clocks = {
    arm: float(np.mean([x["evaluations"][-1]["seconds"] for x in runs[arm]]))
    for arm in arms
  }
  steps = {arm: len(runs[arm][0]["nats"]) for arm in arms}
  held = {arm: np.array([_held_out(run) for run in runs[arm]]) for arm in arms}
  totals = [
    [NAMES[arm], f"{steps[arm]:,}", f"{clocks[arm]:.0f}", _with_sd(held[arm])]
    for arm in arms
  ]
  finding = (
    f"Rows of {row_length} tokens: after {EPOCHS} epochs packed ends at a held-out "
    f"perplexity of {held[PACKED].mean():.1f} in {steps[PACKED]:,} steps, concat at "
    f"{held[CONCAT].mean():.1f} in {steps[CONCAT]:,}, padding at "
    f"{held[PADDING].mean():.1f} in {steps[PADDING]:,}."
  )
  picture = f"packed_{row_length}.png"
  atom_pictures.held_out(
    folder / picture,
    {NAMES[arm]: runs[arm] for arm in arms},
    epochs=EPOCHS,
    title=finding,
  )
  header = ["more than packed, in nats", "equal steps", "equal text", "equal time"]
  return Exhibit(
    f"Packed, rows of {row_length}",
    "where packing stands beside concat and padding, atoms of a row",
    "in shape",
    finding,
    COMMAND,
    statements=statements,
    pictures=[picture],
    text=table(["layout", "steps", "seconds", "held out"], totals, right=(1, 2, 3))
    + "\n\n"
    + table(header, rows, right=(1, 2, 3))
    + f"\n\n{len(seeds)} seeds; all runs of these rows are one compiled step, so equal "
    "steps are equal time but for the noise of the clock. At equal steps and time the "
    "longer run is read where the shorter ends, between evaluations of a part of the "
    "held-out text; at equal text both at their ends, on all of it.",
  )


_MEASURES = ("step", "seconds")


def _at_equal(
  a: Sequence[Run], b: Sequence[Run], measure: str
) -> list[tuple[float, float]]:
  """Held-out nats of pairs where the shorter run of each ends."""
  return [
    (_at(x, least, measure), _at(y, least, measure))
    for x, y in zip(a, b, strict=True)
    for least in [min(_last(x, measure), _last(y, measure))]
  ]


def _last(run: Run, measure: str) -> float:
  return run["evaluations"][-1][measure]


def _at(run: Run, value: float, measure: str) -> float:
  points = run["evaluations"]
  nats = [math.log(point["perplexity"]) for point in points]
  return float(np.interp(value, [point[measure] for point in points], nats))


def _last_epoch(run: Run, *, quick: bool) -> np.ndarray:
  values = atom_pictures.perplexities(run)
  if quick:  # as if all of it were one epoch
    return perplexities.last_epoch(values, steps_per_epoch=values.size, epochs=1)
  per_epoch = run["steps_per_epoch"]
  return perplexities.last_epoch(values, steps_per_epoch=per_epoch, epochs=EPOCHS)


def _held_out(run: Run) -> float:
  return run["held_out"]["perplexity"]


def _common_seeds(found: Found, arms: Sequence[Arm]) -> list[int]:
  return sorted(set.intersection(*(set(found[arm]) for arm in arms)))


def _nats(values: Sequence[float] | np.ndarray) -> list[float]:
  return np.log(values).tolist()


def _with_sd(values: np.ndarray) -> str:
  sd = f" ± {values.std(ddof=1):.2f}" if values.size > 1 else ""
  return f"{values.mean():.2f}{sd}"


def _difference(a: Sequence[float], b: Sequence[float]) -> str:
  mean = float(np.mean(np.subtract(a, b)))
  if len(a) < 2:
    return f"{mean:+.4f}"
  low, high = paired(a, b).interval()
  return f"{mean:+.4f} ({low:+.4f} to {high:+.4f})"


def _told(claim: str, holds: bool, evidence: str) -> Statement:
  return Statement(claim, "holds" if holds else "fails", evidence)
