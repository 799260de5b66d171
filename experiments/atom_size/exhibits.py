"""The tables and figures of the atom-size paper, and where packing stands.

Each function takes what the runs found, draws into a folder and says what came of it.

References:
  Refining Packing and Shuffling Strategies for Enhanced Performance in Generative Language
  Models (the atom-size paper).
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.atom_size import perplexities
from experiments.atom_size import pictures as atom_pictures
from experiments.atom_size.runs import EPOCHS, Arm
from experiments.lab.exhibits import Exhibit, Statement, to_the_digit
from experiments.lab.report import table
from experiments.lab.statistics import larger, paired, throughout
from pipeline.batches import atoms

MARGIN = 0.01  # nats; the paper's atoms of two rows differ by 0.013 from those of one
RANKS = 0.25  # the same for mean ranks
ATOMS = (0.25, 0.5, 1.0, 2.0, 4.0)  # in rows
CONCAT, PADDING, PACKED = Arm("concat"), Arm("padding"), Arm("packed")
PADDING_ALL = Arm("padding", loss_on_padding=True)
NAMES = {
  CONCAT: "concat",
  PADDING: "padding",
  PADDING_ALL: "padding, predicted too",
  PACKED: "packed",
}

Run = Mapping[str, Any]
Found = Mapping[Arm, Mapping[int, Run]]  # of a row length: by arm and seed, the finished

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
  "Perplexities of training rows are not one measure for all layouts. Rows of concat have "
  "tokens of other documents as context; rows of padding lack what comes before their "
  "atom, and each atom ends with an end token where the text goes on, which counts as a "
  "token and can cost less than one of text; with the loss on padding all the others do "
  "too. "
  "Rows of packed have documents, or parts of a row of longer ones, each alone. Held-out "
  "perplexity is computed in one way: each document alone, in windows of a row that move "
  "on by half a row, each token once. That is how packed trains; concat trains with "
  "foreign context too, and padding with an end token where an atom ends: what its model "
  "holds ready for one is lost where the text goes on. The learning rate was chosen for "
  "concat; steps of padding have fewer tokens of text."
)
ELSEWHERE = (
  "What was trained is told at Table 1, what perplexities of training rows and of held-out "
  "text say at Table 3."
)
FEW = (
  "A step has few atoms here, so that parts of one that follow each other fill much of a "
  "step, or all of it; in the paper's 16,384 tokens a step they do not. Documents are "
  "paragraphs in the order of the text: what concat mixes in is often of the same article."
)


@dataclasses.dataclass(frozen=True)
class Study:
  """What all exhibits tell of.

  Attributes:
    command: that makes them.
    recipe: what was trained on what, in a sentence or two.
    quick: whether runs have no whole epochs.
  """

  command: str
  recipe: str
  quick: bool

  def exhibit(self, name: str, title: str, finding: str, **fields) -> Exhibit:
    """One of them, in shape."""
    return Exhibit(name, title, "in shape", finding, self.command, **fields)

  def span(self, run: Run) -> tuple[float, float]:
    """Of what is judged, in epochs: the last one, or all of a quick run."""
    if self.quick:
      return 0.0, len(run["nats"]) / run["steps_per_epoch"]
    return EPOCHS - 1.0, float(EPOCHS)

  def segments(self, run: Run) -> np.ndarray:
    """Perplexity in hundredths of that."""
    quick = {"steps_per_epoch": len(run["nats"]), "epochs": 1}
    whole = {"steps_per_epoch": run["steps_per_epoch"], "epochs": EPOCHS}
    return perplexities.last_epoch(
      run["nats"], run["targets"], **(quick if self.quick else whole)
    )

  def mean_nats(self, run: Run, *, free: int = 0) -> float:
    """Of all tokens of that.

    Args:
      run: what it found.
      free: tokens of an epoch that are left out as if they had cost nothing.
    """
    middles = (np.arange(len(run["nats"])) + 0.5) / run["steps_per_epoch"]
    start, end = self.span(run)
    judged = middles > start
    targets = np.array(run["targets"])[judged]
    nats = float(np.array(run["nats"])[judged] @ targets)
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
  lengths: np.ndarray, row_lengths: Mapping[int, Found], *, tokens: int, study: Study
) -> Exhibit:
  """Whether the loaders make as many steps of an epoch as the token counts foretell.

  Args:
    lengths: tokens of each document.
    row_lengths: what was found, by row length.
    tokens: of a step.
    study: what it is of.
  """
  values = []
  for row_length, found in row_lengths.items():
    for arm, runs in found.items():
      if arm.layout == "packed" or arm.loss_on_padding:
        continue
      size = round(arm.atom * row_length)
      rows = predicted_rows(
        lengths, layout=arm.layout, atom_size=size, row_length=row_length
      )
      predicted = rows / (tokens // row_length)
      made = next(iter(runs.values()))["steps_per_epoch"]
      name = f"rows of {row_length}, {arm.layout}, atoms of {size}"
      values.append(to_the_digit(name, f"{predicted:,.3f}", made))
  text = int((lengths + 1).sum())
  agree = sum(bool(x.agrees) for x in values)
  exhibit = study.exhibit(
    "Table 1, Appendices A.3 and A.9",
    "steps of an epoch, from the token counts and as made",
    f"{agree} of {len(values)} layouts have the steps of an epoch that {lengths.size:,} "
    f"documents with {text:,} tokens, end tokens included, foretell.",
    values=values,
    text="'Paper' is here what its method predicts for this text "
    "(`predicted_rows` in experiments/atom_exhibits.py); 'here' is what the loader gives. "
    "The paper's own steps of concat, 14,060, 7,029 and 7,028 an epoch, are of 115.1 "
    "to 115.2 million tokens at its batches, more than the 114,400,095 'word tokens' that "
    "it names.\n\n"
    f"{study.recipe}",
  )
  return dataclasses.replace(exhibit, agreement="to the digit")


def ends_at_cuts(lengths: np.ndarray, arm: Arm, row_length: int) -> int:
  """End tokens of an epoch that stand where a document is cut and goes on elsewhere.

  Args:
    lengths: int[D]; tokens of each document.
    arm: its layout.
    row_length: S, in tokens.

  Example: of a document of 130 tokens in atoms of 64 the first two end in such a token.

    >>> ends_at_cuts(np.array([130, 35]), Arm("padding"), 64)
    2
  """
  if arm.layout != "padding":
    return 0
  size = round(arm.atom * row_length)
  made = atoms.cut(lengths, layout=arm.layout, atom_size=size, row_length=row_length)
  return made.num_atoms - lengths.size


def atom_sizes(
  layout: str,
  row_length: int,
  found: Found,
  lengths: np.ndarray,
  folder: pathlib.Path,
  *,
  study: Study,
) -> Exhibit:
  """Which atom is best: Figures 1, 2 and 7 to 10, and Table 2.

  Args:
    layout: concat or padding.
    row_length: S, in tokens.
    found: what the runs of that row length found.
    lengths: int[D]; tokens of each document.
    folder: for the picture.
    study: what it is of.
  """
  arms = [Arm(layout, atom) for atom in ATOMS if Arm(layout, atom) in found]
  seeds = _common_seeds(found, arms)
  runs = {arm: [found[arm][seed] for seed in seeds] for arm in arms}
  segments = {arm: np.array([study.segments(run) for run in runs[arm]]) for arm in arms}
  ranked = [arm for arm in arms if arm.atom in PAPER_ATOMS[row_length]]
  ranks = _ranks({arm: segments[arm] for arm in ranked})
  named = {arm: f"{arm.atom:g} S" for arm in arms}
  final = {arm: segments[arm][:, -1] for arm in arms}
  held = {arm: np.array([_held_out(run) for run in runs[arm]]) for arm in arms}
  nats = {arm: [study.mean_nats(run) for run in runs[arm]] for arm in arms}
  cuts = {arm: ends_at_cuts(lengths, arm, row_length) for arm in arms}
  if_free = {
    arm: [study.mean_nats(run, free=cuts[arm]) for run in runs[arm]] for arm in arms
  }
  best, best_held = (
    min(arms, key=lambda arm: np.mean(values[arm])) for values in (nats, held)
  )
  by_epoch, by_text = (
    f"{x:.1f}" for x in (math.exp(np.mean(nats[best])), held[best_held].mean())
  )
  finding = (
    f"Rows of {row_length} tokens, {layout}: atoms of {named[best]} have the lowest "
    f"training perplexity over the last epoch ({by_epoch}), those of {named[best_held]} "
    f"the lowest held-out perplexity ({by_text})."
  )
  if best == best_held:
    finding = (
      f"Rows of {row_length} tokens, {layout}: atoms of {named[best]} have the lowest "
      f"perplexity over the last epoch ({by_epoch}) and on held-out text ({by_text})."
    )
  picture = f"{layout}_{row_length}.png"
  atom_pictures.atoms(
    folder / picture,
    {named[arm]: runs[arm] for arm in arms},
    {named[arm]: segments[arm] for arm in arms},
    {named[arm]: np.array(ranks[arm]) for arm in ranked},
    span=study.span(runs[arms[0]][0]),
    title=finding,
  )
  base = Arm(layout)
  last_epoch = "training perplexity over the last epoch"
  judged = [
    ("final training perplexity", {arm: _nats(final[arm]) for arm in arms}),
    (last_epoch, nats),
    ("held-out perplexity", {arm: _nats(held[arm]) for arm in arms}),
  ]
  if layout == "padding":
    judged.insert(2, (f"{last_epoch}, even if ends at cuts cost nothing", if_free))

  def lowest(what: str, values: Mapping[Arm, list[float]], **unit) -> Statement:
    return throughout(
      f"Atoms of a row have the lowest {what}: all others have more",
      [
        larger(f"atoms of {named[arm]}", values[arm], values[base], **unit)
        for arm in sorted(values, key=lambda arm: np.mean(values[arm]))
        if arm != base
      ],
    )

  statements = [lowest(what, values, margin=MARGIN) for what, values in judged]
  in_ranks = {"margin": RANKS, "unit": "ranks"}
  statements.append(lowest("mean rank in the last epoch", ranks, **in_ranks))
  return study.exhibit(
    FIGURES[layout, row_length],
    f"{layout}, rows of {row_length}: perplexity by the size of atoms",
    finding,
    statements=statements,
    pictures=[picture],
    text=_table_of_atoms(layout, row_length, final, ranks, nats, if_free, held)
    + f"\n\nSeeds: {len(seeds)}; differences are of logarithms, in nats. {ELSEWHERE}",
  )


def _ranks(segments: Mapping[Arm, np.ndarray]) -> dict[Arm, list[float]]:
  """The mean rank of each arm among all, by seed."""
  seeds = len(next(iter(segments.values())))
  by_seed = [
    perplexities.mean_ranks({arm.name: values[seed] for arm, values in segments.items()})
    for seed in range(seeds)
  ]
  return {arm: [ranks[arm.name] for ranks in by_seed] for arm in segments}


def _table_of_atoms(layout: str, row_length: int, final, ranks, nats, if_free, held) -> str:
  of_paper = dict(zip(ATOMS, PAPER[layout, row_length], strict=True))
  of_paper_ranks = dict(zip(ATOMS, PAPER_RANKS[layout, row_length], strict=True))
  same_ranks = len(ranks) == len(PAPER_ATOMS[row_length])  # among as many
  base = Arm(layout)
  rows = []
  for arm in final:
    printed = of_paper[arm.atom]
    ratio = float(printed) / float(of_paper[1.0]) if printed else math.nan
    rows.append(
      [
        f"{arm.atom:g} S",
        _with_sd(final[arm]),
        f"{final[arm].mean() / final[base].mean():.3f}",
        f"{printed} ({ratio:.3f})" if printed else "",
        f"{np.mean(ranks[arm]):.2f}" if arm in ranks else "",
        of_paper_ranks[arm.atom] if same_ranks else "",
        _with_sd(np.exp(nats[arm])),
        _with_sd(np.exp(if_free[arm])),
        _with_sd(held[arm]),
      ]
    )
  header = ["atom", "final perplexity", "its share of 1 S", "the paper's", "rank"]
  header += ["the paper's", "last epoch", "if ends at cuts cost nothing", "held out"]
  return table(header, rows, right=range(1, 9))


def concat_and_padding(
  row_lengths: Mapping[int, Found], folder: pathlib.Path, *, study: Study
) -> Exhibit:
  """Table 3 and Figure 3: atoms of a row, concat and padding, and the loss on padding.

  Args:
    row_lengths: what was found, by row length.
    folder: for the picture.
    study: what it is of.
  """
  rows, panels, statements, told = [], {}, [], []
  for row_length, found in row_lengths.items():
    here = [arm for arm in NAMES if arm in found]
    seeds = _common_seeds(found, here)
    runs = {arm: [found[arm][seed] for seed in seeds] for arm in here}
    panels[row_length] = {NAMES[arm]: runs[arm] for arm in here}
    final = {arm: np.array([study.segments(run)[-1] for run in runs[arm]]) for arm in here}
    nats = {arm: [study.mean_nats(run) for run in runs[arm]] for arm in here}
    steps = {arm: runs[arm][0]["steps_per_epoch"] for arm in here}
    told.append(f"{steps[PADDING] / steps[CONCAT]:.2f} (rows of {row_length})")
    paper = dict(zip((CONCAT, PADDING), PAPER_TABLE_3.get(row_length, ()), strict=False))
    for arm in here:
      of_paper = paper.get(arm)
      rows.append(
        [
          f"{row_length}",
          NAMES[arm],
          f"{steps[arm]:,.1f}",
          f"{of_paper[0] / 2:,.0f}" if of_paper else "",
          _with_sd(final[arm]),
          of_paper[1] if of_paper else "",
          _with_sd(np.exp(nats[arm])),
          _with_sd(np.array([_held_out(run) for run in runs[arm]])),
        ]
      )
    statements += _padding_statements(f"Rows of {row_length}", runs, final, nats)
  finding = f"Padding takes more steps an epoch than concat: {', '.join(told)} times."
  atom_pictures.steps(folder / "concat_and_padding.png", panels, title=finding)
  header = ["rows of", "layout", "steps an epoch", "the paper's", "final perplexity"]
  header += ["the paper's", "last epoch", "held out"]
  return study.exhibit(
    "Table 3 and Figure 3",
    "concat and padding with atoms of a row, and whether padding is predicted",
    finding,
    statements=statements,
    pictures=["concat_and_padding.png"],
    text=table(header, rows, right=(0, *range(2, 8)))
    + "\n\nThe paper's perplexities are those of 124 million parameters, 50,257 tokens and "
    "2 epochs of WikiText-103, by its Table 3; its figures have others of the same "
    "layouts. It does not say whether end tokens that pad are predicted."
    f"\n\n{NOT_COMPARABLE}\n\n{FEW}",
  )


def _padding_statements(where: str, runs, final, nats) -> list[Statement]:
  concat, padding = runs[CONCAT], runs[PADDING]
  steps = [runs[arm][0]["steps_per_epoch"] for arm in (PADDING, CONCAT)]
  ours, theirs = zip(*_at_equal(padding, concat, by="step"), strict=True)
  return [
    Statement(
      f"{where}: padding takes more steps an epoch than concat",
      "holds" if steps[0] > steps[1] else "fails",
      f"{steps[0]:,.1f} and {steps[1]:,.1f}, counted",
    ),
    larger(
      f"{where}: padding ends with a lower training perplexity than concat",
      _nats(final[CONCAT]),
      _nats(final[PADDING]),
    ),
    larger(
      f"{where}: padding has a lower training perplexity over the last epoch than concat",
      nats[CONCAT],
      nats[PADDING],
    ),
    larger(
      f"{where}: padding that is predicted too ends with a lower one than concat",
      _nats(final[CONCAT]),
      _nats(final[PADDING_ALL]),
    ),
    larger(
      f"{where}: padding ends with a lower held-out perplexity than concat",
      _nats([_held_out(run) for run in concat]),
      _nats([_held_out(run) for run in padding]),
    ),
    larger(
      f"{where}: at equal steps padding has a higher held-out perplexity than concat",
      ours,
      theirs,
    ),
  ]


def packed(
  row_length: int,
  found: Found,
  seconds: Mapping[str, Sequence[float]],
  folder: pathlib.Path,
  *,
  study: Study,
) -> Exhibit:
  """Where packing stands: held-out perplexity at equal steps, text and time.

  Args:
    row_length: S, in tokens.
    found: what the runs of that row length found.
    seconds: of a step of each arm, in turns.
    folder: for the picture.
    study: what it is of.
  """
  arms = [PACKED, CONCAT, PADDING, PADDING_ALL]
  seeds = _common_seeds(found, arms)
  base = np.array(seconds[PACKED.name])  # in turns: what slows one slows the next
  clock = {
    arm: float(np.median(base) * np.median(seconds[arm.name] / base)) for arm in arms
  }
  runs = {arm: [_timed(found[arm][seed], clock[arm]) for seed in seeds] for arm in arms}
  statements, rows = [], []
  for arm in arms[1:]:
    at_end = [
      (math.log(_held_out(a)), math.log(_held_out(b)))
      for a, b in zip(runs[PACKED], runs[arm], strict=True)
    ]
    cells = []
    for what, pairs in (
      ("equal steps", _at_equal(runs[PACKED], runs[arm], by="step")),
      ("equal text", at_end),
      ("equal time", _at_equal(runs[PACKED], runs[arm], by="seconds")),
    ):
      ours, theirs = (list(x) for x in zip(*pairs, strict=True))
      cells.append(_difference(theirs, ours))
      if arm != PADDING_ALL:
        claim = (
          f"Rows of {row_length}: at {what} packed has a lower held-out perplexity than "
          f"{NAMES[arm]}"
        )
        statements.append(larger(claim, theirs, ours))
    rows.append([NAMES[arm], *cells])
  held = {arm: np.array([_held_out(run) for run in runs[arm]]) for arm in arms}
  steps = {arm: len(runs[arm][0]["nats"]) for arm in arms}
  totals = [
    [
      NAMES[arm],
      f"{steps[arm]:,}",
      f"{1e3 * clock[arm]:.1f} ({_quartiles(seconds[arm.name])})",
      f"{steps[arm] * clock[arm]:.0f}",
      _with_sd(held[arm]),
    ]
    for arm in arms
  ]
  ends = [
    f"{NAMES[arm]} at {held[arm].mean():.1f} in {steps[arm]:,} steps" for arm in arms[:3]
  ]
  finding = f"Rows of {row_length} tokens, held-out perplexity: {', '.join(ends)}."
  picture = f"packed_{row_length}.png"
  atom_pictures.held_out(
    folder / picture, {NAMES[arm]: runs[arm] for arm in arms}, title=finding
  )
  header = ["more than packed, in nats", "equal steps", "equal text", "equal time"]
  columns = ["layout", "steps", "ms a step (quartiles)", "seconds", "held out"]
  return study.exhibit(
    f"Packed, rows of {row_length}",
    "where packing stands beside concat and padding, atoms of a row",
    finding,
    statements=statements,
    pictures=[picture],
    text=table(columns, totals, right=(1, 2, 3, 4))
    + "\n\n"
    + table(header, rows, right=(1, 2, 3))
    + f"\n\nSeeds: {len(seeds)}. All runs of these rows are one compiled step on rows of "
    "one shape; the clock is that of the layouts in turns, each with its loader: packed's "
    "median, times the median of what others take of it turn by turn. At equal steps (and "
    "tokens, padding included) and time the longer run is read where the shorter ends, "
    "between evaluations on a part of the held-out text; at equal text both at their ends, "
    "on all of it. "
    f"{ELSEWHERE}",
  )


def _timed(run: Run, seconds_a_step: float) -> Run:
  evaluations = [
    point | {"seconds": point["step"] * seconds_a_step} for point in run["evaluations"]
  ]
  return {**run, "evaluations": evaluations}


def _at_equal(a: Sequence[Run], b: Sequence[Run], *, by: str) -> list[tuple[float, float]]:
  """Held-out nats of pairs where the shorter run of each ends."""
  return [
    (_at(x, least, by), _at(y, least, by))
    for x, y in zip(a, b, strict=True)
    for least in [min(run["evaluations"][-1][by] for run in (x, y))]
  ]


def _at(run: Run, value: float, by: str) -> float:
  """Held-out nats on lines between evaluations, over the logarithm: they bend less."""
  points = run["evaluations"]
  nats = [math.log(point["perplexity"]) for point in points]
  return float(np.interp(math.log(value), [math.log(x[by]) for x in points], nats))


def _held_out(run: Run) -> float:
  return run["held_out"]["perplexity"]


def _common_seeds(found: Found, arms: Sequence[Arm]) -> list[int]:
  return sorted(set.intersection(*(set(found[arm]) for arm in arms)))


def _nats(values: Sequence[float] | np.ndarray) -> list[float]:
  return np.log(values).tolist()


def _with_sd(values: np.ndarray) -> str:
  sd = f" ± {values.std(ddof=1):.2f}" if values.size > 1 else ""
  return f"{values.mean():.2f}{sd}"


def _quartiles(seconds: Sequence[float]) -> str:
  low, high = np.percentile(seconds, [25, 75])
  return f"{1e3 * low:.1f} to {1e3 * high:.1f}"


def _difference(a: Sequence[float], b: Sequence[float]) -> str:
  mean = float(np.mean(np.subtract(a, b)))
  if len(a) < 2:
    return f"{mean:+.4f}"
  low, high = paired(a, b).interval()
  return f"{mean:+.4f} ({low:+.4f} to {high:+.4f})"
