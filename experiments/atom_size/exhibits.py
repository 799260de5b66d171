"""The tables and figures of the atom-size paper, and how packing compares.

Each exhibit is made from the results of the runs; its picture goes to the part's folder.

References:
  Refining Packing and Shuffling Strategies for Enhanced Performance in Generative Language
  Models (the atom-size paper).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.stats

from experiments.atom_size import perplexities, pictures
from experiments.atom_size.runs import (
  CONCAT,
  PACKED,
  PADDING,
  PADDING_ALL,
  Layout,
)
from experiments.lab.exhibits import Exhibit, Statement, judged
from experiments.lab.part import Part
from experiments.lab.report import table
from experiments.lab.statistics import (
  larger,
  mean_and_sd,
  paired_difference,
  throughout,
)
from pipeline.batches import atoms

MARGIN = 0.01  # nats; the paper's atoms of two rows differ by 0.013 from those of one
RANKS = 0.25  # the same for mean ranks
ATOMS = (0.25, 0.5, 1.0, 2.0, 4.0)  # in rows
NAMES = {
  CONCAT: "concat",
  PADDING: "padding",
  PADDING_ALL: "padding, predicted too",
  PACKED: "packed",
}

Run = Mapping[str, Any]
Found = Mapping[Layout, Mapping[int, Run]]  # of a row length: the finished runs by seed

# Final perplexities for `ATOMS`, in Table 2 and the captions of Figures 7 to 10 of the
# paper. Those of its Table 3 are others.
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
_NONE = ("",) * len(ATOMS)  # of row lengths that the paper does not have
PAPER_ATOMS = {32: ATOMS, 64: ATOMS, 128: ATOMS[:-1]}
# Table 3: steps of its two epochs and final perplexity, of concat and of padding.
PAPER_TABLE_3 = {
  32: ((28_120, "91.01"), (31_816, "87.22")),
  64: ((14_058, "110.45"), (17_308, "99.79")),
  128: ((14_056, "102.42"), (20_496, "82.55")),
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
  "Perplexities of training rows are not one measure for all layouts. Rows of concat see "
  "tokens of other documents; rows of padding do not see the text before their atom, and "
  "each atom ends with an end token, which counts and may cost less than a token of text. "
  "Held-out perplexity is one measure: each document alone, in windows that advance by "
  "half a row, each token once (docs/atom_size.md). The learning rate was chosen for "
  "concat in small runs; steps of padding have fewer tokens of text."
)
FEW = (
  "A step has few atoms here, so consecutive parts of one atom fill much of a step, or all "
  "of it; in the paper's 16,384 tokens a step they do not. Documents are paragraphs in the "
  "order of the text: what concat mixes in is often of the same article."
)


def span(part: Part, run: Run) -> tuple[float, float]:
  """The epochs that are compared: the last one, or all of a quick run."""
  if part.quick:
    return 0.0, len(run["nats"]) / run["steps_per_epoch"]
  epochs = _epochs(run)
  return epochs - 1.0, float(epochs)


def _epochs(run: Run) -> int:
  return round(len(run["nats"]) / run["steps_per_epoch"])


def segments_of(part: Part, run: Run) -> np.ndarray:
  """Perplexity in hundredths of that span."""
  steps, epochs = run["steps_per_epoch"], _epochs(run)
  if part.quick:
    steps, epochs = len(run["nats"]), 1
  return perplexities.last_epoch(
    run["nats"], run["targets"], steps_per_epoch=steps, epochs=epochs
  )


def mean_nats(part: Part, run: Run, *, free: int = 0) -> float:
  """The mean loss over that span, as if `free` tokens of an epoch had cost nothing."""
  middles = (np.arange(len(run["nats"])) + 0.5) / run["steps_per_epoch"]
  start, end = span(part, run)
  compared = middles > start
  targets = np.array(run["targets"])[compared]
  nats = float(np.array(run["nats"])[compared] @ targets)
  return nats / (targets.sum() - free * (end - start))


def predicted_rows(
  lengths: np.ndarray, *, layout: str, atom_size: int, row_length: int
) -> int:
  """Rows of an epoch, predicted from the numbers of tokens alone.

  With T tokens, end tokens included, `concat` has ceil(T / S) rows whatever the atoms.
  `padding` has ceil(L / (s - 1)) atoms for a document of L tokens, merged where s < S;
  where s > S, each atom is s / S rows and a tail of t tokens is ceil(t / S).

  Args:
    lengths: int[D]; tokens of each document.
    layout: "concat" or "padding".
    atom_size: s, in tokens.
    row_length: S, in tokens.

  Example: a document of 130 tokens and one of 35.

    >>> lengths = np.array([130, 35])
    >>> predicted_rows(lengths, layout="concat", atom_size=64, row_length=64)
    3
    >>> [
    ...   predicted_rows(lengths, layout="padding", atom_size=s, row_length=64)
    ...   for s in (16, 64)
    ... ]
    [3, 4]

  References:
    The atom-size paper, appendices A.3 and A.9.
  """
  lengths = np.asarray(lengths, np.int64)
  if layout == "concat":
    return -(-int((lengths + 1).sum()) // row_length)
  full_atoms, tails = np.divmod(lengths, atom_size - 1)
  if atom_size <= row_length:
    num_atoms = int((full_atoms + (tails > 0)).sum())
    return -(-num_atoms * atom_size // row_length)
  return int((full_atoms * (atom_size // row_length) - (-tails // row_length)).sum())


def steps_an_epoch(
  part: Part,
  lengths: np.ndarray,
  row_lengths: Mapping[int, Found],
  *,
  tokens: int,
  recipe: str,
) -> Exhibit:
  """Whether the loaders make as many steps an epoch as the token counts predict.

  `tokens` are those of a step; `recipe` says what was trained on what.
  """
  rows = []
  for row_length, found in row_lengths.items():
    for layout, runs in found.items():
      if layout.kind == "packed" or layout.loss_on_padding:
        continue
      size = round(layout.atom * row_length)
      predicted = predicted_rows(
        lengths, layout=layout.kind, atom_size=size, row_length=row_length
      )
      made = next(iter(runs.values()))["steps_per_epoch"]
      name = f"rows of {row_length}, {layout.kind}, atoms of {size}"
      rows.append((name, predicted / (tokens // row_length), made))
  text = f"{lengths.size:,} documents with {int((lengths + 1).sum()):,} tokens"
  return compared_steps(part, rows, text=text, recipe=recipe)


def compared_steps(
  part: Part, rows: Sequence[tuple[str, float, float]], *, text: str, recipe: str
) -> Exhibit:
  """The exhibit of `steps_an_epoch`: of each layout the predicted steps and those made."""
  shown = [[name, *(f"{x:,.3f}" for x in steps)] for name, *steps in rows]
  agree = sum(predicted == made for _, predicted, made in shown)
  return part.exhibit(
    "Table 1, Appendices A.3 and A.9",
    "Steps of an epoch, predicted from the token counts and as made",
    "to the digit",
    f"{agree} of {len(rows)} layouts have the steps an epoch that {text}, end tokens "
    "included, predict.",
    claim="The number of tokens, the layout and the atom determine the steps of an epoch.",
    statements=[
      judged(
        "The loaders make as many steps an epoch as the paper's method predicts",
        agree == len(rows),
        agree < len(rows),
        f"{agree} of {len(rows)} layouts, to three digits",
      )
    ],
    text=f"{table(['', 'predicted', 'made'], shown)}\n\nPredictions are "
    "those of the paper's method for this text (`predicted_rows` in "
    "experiments/atom_size/exhibits.py). The paper's own steps of concat, 14,060, 7,029 "
    "and 7,028 an epoch, need 115.1 to 115.2 million tokens at its batches, more than the "
    f"114,400,095 'word tokens' that it names.\n\n{recipe}",
  )


def ends_at_cuts(lengths: np.ndarray, layout: Layout, row_length: int) -> int:
  """End tokens of an epoch at places where a document is cut and continues elsewhere.

  Args:
    lengths: int[D]; tokens of each document.
    layout: of the rows.
    row_length: S, in tokens.

  Example: of a document of 130 tokens in atoms of 64 the first two end in such a token.

    >>> ends_at_cuts(np.array([130, 35]), Layout("padding"), 64)
    2
  """
  if layout.kind != "padding":
    return 0
  size = round(layout.atom * row_length)
  made = atoms.cut(lengths, layout="padding", atom_size=size, row_length=row_length)
  return made.num_atoms - lengths.size


def atom_sizes(
  part: Part, kind: str, row_length: int, found: Found, lengths: np.ndarray
) -> Exhibit:
  """Which atom of `kind` is best: Figures 1, 2 and 7 to 10, and Table 2."""
  base = Layout(kind)
  layouts = [Layout(kind, atom) for atom in ATOMS if Layout(kind, atom) in found]
  runs = _common_runs(found, layouts)
  names = {layout: f"{layout.atom:g} S" for layout in layouts}
  segments = {x: np.array([segments_of(part, run) for run in runs[x]]) for x in layouts}
  ranks = _ranks(
    {x: segments[x] for x in layouts if x.atom in PAPER_ATOMS.get(row_length, ATOMS)}
  )
  final = {x: segments[x][:, -1] for x in layouts}
  held = {x: np.array([_held_out(run) for run in runs[x]]) for x in layouts}
  nats = {x: [mean_nats(part, run) for run in runs[x]] for x in layouts}
  if_free = {
    x: [mean_nats(part, run, free=ends_at_cuts(lengths, x, row_length)) for run in runs[x]]
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
    span=span(part, runs[layouts[0]][0]),
    title=finding,
  )
  last_epoch = "training perplexity over the last epoch"
  in_nats: dict[str, Any] = {"margin": MARGIN}
  compared = [
    ("final training perplexity", _nats(final), in_nats),
    (last_epoch, nats, in_nats),
    (f"{last_epoch}, even if ends at cuts cost nothing", if_free, in_nats),
    ("held-out perplexity", _nats(held), in_nats),
    ("mean rank in the last epoch", ranks, {"margin": RANKS, "unit": "ranks"}),
  ]
  if kind == "concat":
    del compared[2]  # concat has no ends at cuts
  return part.exhibit(
    FIGURES.get((kind, row_length), f"Rows of {row_length}, {kind}"),
    f"{kind}, rows of {row_length}: perplexity by the size of atoms",
    "in shape",
    finding,
    claim=f"Of all atoms, those of a row have the lowest perplexity ({kind}, rows of "
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
    text=_table_of_atoms(kind, row_length, final, ranks, nats, if_free, held)
    + f"\n\nSeeds: {len(runs[base])}; differences are of logarithms, in nats.",
  )


def _ranks(segments: Mapping[Layout, np.ndarray]) -> dict[Layout, list[float]]:
  """The mean rank of each layout among all, by seed; 1 is the lowest perplexity (A.6)."""
  ranks = scipy.stats.rankdata(np.stack([*segments.values()]), axis=0).mean(2)
  return dict(zip(segments, ranks.tolist(), strict=True))


def _table_of_atoms(kind: str, row_length: int, final, ranks, nats, if_free, held) -> str:
  of_paper = dict(zip(ATOMS, PAPER.get((kind, row_length), _NONE), strict=True))
  printed_ranks = PAPER_RANKS.get((kind, row_length), _NONE)
  of_paper_ranks = dict(zip(ATOMS, printed_ranks, strict=True))
  same_ranks = len(ranks) == len(PAPER_ATOMS.get(row_length, ATOMS))  # among as many
  base = Layout(kind)
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


def concat_and_padding(part: Part, row_lengths: Mapping[int, Found]) -> Exhibit:
  """Table 3 and Figure 3: atoms of a row, concat and padding, and the loss on padding."""
  rows, panels, statements, ratios = [], {}, [], []
  for row_length, found in row_lengths.items():
    runs = _common_runs(found, [layout for layout in NAMES if layout in found])
    panels[row_length] = {NAMES[x]: of_layout for x, of_layout in runs.items()}
    final = {x: np.array([segments_of(part, run)[-1] for run in runs[x]]) for x in runs}
    nats = {x: [mean_nats(part, run) for run in runs[x]] for x in runs}
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
        mean_and_sd([_held_out(run) for run in of_layout], 2),
      ]
      rows.append(row)
    statements += _padding_statements(f"Rows of {row_length}", runs, _nats(final), nats)
  finding = f"Padding takes more steps an epoch than concat: {', '.join(ratios)} times."
  pictures.steps(part.folder / "concat_and_padding.png", panels, title=finding)
  header = ["rows of", "layout", "steps an epoch", "the paper's", "final perplexity"]
  header += ["the paper's", "last epoch", "held out"]
  return part.exhibit(
    "Table 3 and Figure 3",
    "concat and padding with atoms of a row, and whether padding is predicted",
    "in shape",
    finding,
    claim="Padding reaches a lower perplexity than concat, in more steps.",
    statements=statements,
    pictures=["concat_and_padding.png"],
    text=table(header, rows, left=[1])
    + "\n\nThe paper's perplexities are of 124 million parameters, 50,257 tokens and 2 "
    "epochs of WikiText-103 (its Table 3; its figures have others for the same layouts). "
    "It does not say whether end tokens that pad are predicted."
    f"\n\n{NOT_COMPARABLE}\n\n{FEW}",
  )


def _padding_statements(where: str, runs, final, nats) -> list[Statement]:
  steps = [runs[layout][0]["steps_per_epoch"] for layout in (PADDING, CONCAT)]
  held = {x: _nats({x: [_held_out(run) for run in runs[x]]})[x] for x in (CONCAT, PADDING)}
  at_equal_steps = _at_equal(runs[PADDING], runs[CONCAT], by="step")
  last_epoch = "a lower training perplexity over the last epoch than concat"
  return [
    Statement(
      f"{where}: padding takes more steps an epoch than concat",
      "holds" if steps[0] > steps[1] else "fails",
      f"{steps[0]:,.1f} and {steps[1]:,.1f}, counted",
    ),
    *(
      larger(f"{where}: padding {claim}", more, less)
      for claim, more, less in (
        (
          "ends with a lower training perplexity than concat",
          final[CONCAT],
          final[PADDING],
        ),
        (f"has {last_epoch}", nats[CONCAT], nats[PADDING]),
        (
          "that is predicted too ends with a lower one than concat",
          final[CONCAT],
          final[PADDING_ALL],
        ),
        ("ends with a lower held-out perplexity than concat", held[CONCAT], held[PADDING]),
        ("has a higher held-out perplexity than concat at equal steps", *at_equal_steps),
      )
    ),
  ]


def packed(
  part: Part, row_length: int, found: Found, seconds: Mapping[str, Sequence[float]]
) -> Exhibit:
  """How packing compares: held-out perplexity at equal steps, text and time.

  `seconds` has those of a step of each layout, measured in turns.
  """
  layouts = [PACKED, CONCAT, PADDING, PADDING_ALL]
  base = np.array(seconds[PACKED.name])  # in turns: what slows one slows the next
  clock = {x: float(np.median(base) * np.median(seconds[x.name] / base)) for x in layouts}
  runs = {
    x: [_timed(run, clock[x]) for run in of_layout]
    for x, of_layout in _common_runs(found, layouts).items()
  }
  held = {x: np.array([_held_out(run) for run in runs[x]]) for x in layouts}
  statements, rows = [], []
  for layout in layouts[1:]:
    equal = {
      "equal steps": _at_equal(runs[PACKED], runs[layout], by="step"),
      "equal text": tuple(_nats({x: held[x] for x in (PACKED, layout)}).values()),
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
  steps = {x: len(runs[x][0]["nats"]) for x in layouts}
  totals = [
    [
      NAMES[x],
      f"{steps[x]:,}",
      f"{1e3 * clock[x]:.1f} ({_quartiles(seconds[x.name])})",
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
    "in shape",
    finding,
    claim="(Not in the paper.) How isolated packs compare with both layouts.",
    statements=statements,
    pictures=[picture],
    text=f"{table(columns, totals)}\n\n"
    f"{table(header, rows)}\n\n"
    f"Seeds: {len(runs[PACKED])}. All runs share one compiled step. Layouts were timed in "
    "turns, each with its loader: packed's median, times the median ratio to it turn by "
    "turn. At equal steps (and tokens, padding included) and time the longer run is read "
    "where the shorter ends, between evaluations on a part of the held-out text; at equal "
    "text both are read at their ends, on all of it.",
  )


def _timed(run: Run, seconds_a_step: float) -> Run:
  evaluations = [
    point | {"seconds": point["step"] * seconds_a_step} for point in run["evaluations"]
  ]
  return {**run, "evaluations": evaluations}


def _at_equal(
  a: Sequence[Run], b: Sequence[Run], *, by: str
) -> tuple[list[float], list[float]]:
  """Held-out nats of pairs of runs, at the end of the shorter run of each pair."""
  ends = [
    min(run["evaluations"][-1][by] for run in pair) for pair in zip(a, b, strict=True)
  ]
  first, second = (
    [_at(run, end, by) for run, end in zip(runs, ends, strict=True)] for runs in (a, b)
  )
  return first, second


def _at(run: Run, value: float, by: str) -> float:
  """Held-out nats between evaluations, linear in the logarithm of `by`."""
  points = run["evaluations"]
  nats = [math.log(point["perplexity"]) for point in points]
  return float(np.interp(math.log(value), [math.log(x[by]) for x in points], nats))


def _held_out(run: Run) -> float:
  return run["held_out"]["perplexity"]


def _common_runs(found: Found, layouts: Sequence[Layout]) -> dict[Layout, list[Run]]:
  """The runs of some layouts with the seeds that all of them have."""
  seeds = sorted(set.intersection(*(set(found[layout]) for layout in layouts)))
  return {layout: [found[layout][seed] for seed in seeds] for layout in layouts}


def _nats(values: Mapping[Layout, Any]) -> dict[Layout, list[float]]:
  return {layout: np.log(of_layout).tolist() for layout, of_layout in values.items()}


def _quartiles(seconds: Sequence[float]) -> str:
  low, high = np.percentile(seconds, [25, 75])
  return f"{1e3 * low:.1f} to {1e3 * high:.1f}"
