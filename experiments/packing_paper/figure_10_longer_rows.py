"""Longer rows: section J with Figure 10, and section Q of the supplement.

Section Q asks what rows longer than the longest sequence gain, on molecules; here the same
ratios of lengths are also tried on texts.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import packing
from lab.exhibits import Exhibit, Part, judged, to_the_digit
from lab.pictures import COLOURS, figure, save
from lab.plans import cached_plan
from lab.table import table

LENGTHS = (128, 384, 512, 1024, 2048)
DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, None)
# Known only from a transcript of Listing 6: a digit may be wrong.
UNCHECKED = ("wikipedia_1024", "wikipedia_2048")
NEEDED = {1024: 6, 2048: 12}  # for perfect packing, "around" so many sequences a pack
ENOUGH = 0.99  # of the theoretical speed-up

# Row length / longest sequence; the paper has 36 / 27 for molecules, 457 / 330 for audio.
RATIOS = {"1": 1.0, "36 / 27": 36 / 27, "457 / 330": 457 / 330, "2": 2.0}
MOLECULE_ROWS = (29, 30, 32, 34, 35, 36, 37, 38, 40, 44)
SHORTER = ("squad_1_1_384", "glue_sst2_128", "glue_cola_128", "wikipedia_512")


def theoretical_speedup(histogram: packing.Histogram) -> float:
  """The speed-up without any padding: the longest length divided by the mean length.

  Example:
    >>> round(theoretical_speedup(packing.load_histogram("squad_1_1_384")), 3)
    2.232
  """
  return histogram.num_sequences * histogram.max_sequence_length / histogram.num_tokens


def depth_needed(curve: Mapping[int, float], limit: float) -> str:
  """The smallest of `DEPTHS` with nearly all of a theoretical speed-up, in words."""
  enough = [depth for depth, speedup in curve.items() if speedup >= ENOUGH * limit]
  if not enough:
    return "never"
  return str(min(enough)) if min(enough) in DEPTHS else "without a limit"


def section_j(part: Part) -> Exhibit:
  """Speed-up by depth at each length; and the optimum at some depths."""
  curves: dict[int, dict[int, float]] = {}
  rows, statements, summary, gaps = [], [], [], []
  for length in LENGTHS:
    name = f"wikipedia_{length}"
    limit = theoretical_speedup(packing.load_histogram(name))
    plans = {depth: cached_plan(part, name, "lpfhp", depth) for depth in DEPTHS}
    best = [cached_plan(part, name, "optimal", depth) for depth in (2, 3, None)]
    factors = {depth: plan.packing_factor for depth, plan in plans.items()}
    curve = {d or plans[d].packing_depth: factor for d, factor in factors.items()}
    needed = depth_needed(curve, limit)
    if length in NEEDED:
      share = factors[NEEDED[length]] / limit
      claim = f"Around {NEEDED[length]} sequences a pack are enough for perfect packing at"
      evidence = (
        f"LPFHP reaches {share:.1%} of the theoretical speed-up with {NEEDED[length]}; "
        f"{ENOUGH:.0%} counts as enough here, and needs: {needed}"
      )
      if name in UNCHECKED:
        evidence += "; the lengths are known only from the paper's listing, not verified"
      statements.append(judged(f"{claim} {length:,} tokens", share >= ENOUGH, evidence))
    curves[length] = curve
    summary.append(f"{length:,} tokens: {needed}")
    gaps += [plan.gap for plan in best]
    numbers = [limit, *(factors[depth] for depth in (2, 3, 8, None))]
    numbers += [plan.packing_factor for plan in best]
    rows.append([f"{length:,}", *(f"{x:.3f}" for x in numbers), needed])
  draw(part.folder / "figure_10.png", curves)
  header = ["length", "theoretical", "LPFHP at 2", "at 3", "at 8", "no limit"]
  header += ["`optimal` at 2", "at 3", "no limit", "depth for 99 %"]
  return part.exhibit(
    "Section J, Figure 10",
    "Speed-ups by LPFHP at longer rows",
    f"The sequences a pack that LPFHP needs for {ENOUGH:.0%} of the theoretical speed-up, "
    f"in rows of {', '.join(summary)} (the paper: around 6 and 12 at 1,024 and 2,048). "
    f"The lengths of {' and '.join(UNCHECKED)} are known only from the paper's listing: a "
    "digit may be wrong, and so may both failures.",
    claim="Longer rows gain more from packing, and need more sequences a pack.",
    statements=statements,
    pictures=["figure_10.png"],
    text="Speed-ups by depth, and the smallest depth at which LPFHP reaches 99 % of the "
    f"theoretical speed-up:\n\n{table(header, rows)}\n\n"
    f"Plans by `optimal` are proven to be within {max(gaps)} of the fewest packs.",
  )


def section_q(part: Part) -> list[Exhibit]:
  """Rows longer than the longest sequence."""
  rows, gains, losses, imperfect, gaps = [], [], [], [], []
  for name in SHORTER:
    histogram = packing.load_histogram(name)
    size = histogram.max_sequence_length
    row, shares, perfect = [name], [], []
    for ratio in RATIOS.values():
      length = round(size * ratio)
      plan = cached_plan(part, name, "optimal", row_length=length)
      shares.append(plan.efficiency)
      gaps.append(plan.gap)
      speedup = histogram.num_sequences * size / plan.num_row_tokens
      more = plan.num_packs - -(-histogram.num_tokens // length)  # than their tokens need
      perfect.append(more == 0)
      row.append(f"{100 * plan.efficiency:.2f} %, {speedup:.3f}, {more:,}")
    gains.append((max(shares[1:]) - shares[0], name))
    losses.append((shares[0] - min(shares[1:]), name))
    if not any(perfect[1:]):
      imperfect.append(name)
    rows.append(row)
  (gain, where), (loss, there) = max(gains), max(losses)
  header = ["histogram", *(f"rows of {ratio} times the longest" for ratio in RATIOS)]
  without = f", not {', '.join(imperfect)}" if imperfect else ""
  perfect_in_longer = judged(
    "There is a longer row with perfect packing: as few rows as their tokens need",
    not imperfect,
    f"of {len(SHORTER)} histograms {len(SHORTER) - len(imperfect)} have one among "
    f"{', '.join(list(RATIOS)[1:])} times the longest sequence{without}; plans are proven "
    f"to be within {max(gaps)} of the fewest packs",
  )
  return [
    part.exhibit(
      "Section Q",
      "Rows longer than the longest sequence",
      f"Rows longer than the longest sequence gain at most {100 * gain:.2f} points of "
      f"efficiency, on {where}, and lose at most {100 * loss:.2f}, on {there}.",
      claim="Rows longer than the longest sequence can make packing perfect.",
      statements=[perfect_in_longer],
      text="Each cell has the efficiency of `optimal` without a depth limit; the speed-up, "
      "counted in tokens, over one sequence in each row of the longest length; and how "
      f"many packs there are beyond those that the tokens need:\n\n{table(header, rows)}",
    ),
    molecules(part),
  ]


def molecules(part: Part) -> Exhibit:
  """QM9's molecules in rows longer than the largest of them."""
  name = "qm9_29"
  histogram = packing.load_histogram(name)
  longest = histogram.max_sequence_length
  rows, speedups = [], {}
  for length in MOLECULE_ROWS:
    plan = cached_plan(part, name, "optimal", row_length=length)
    speedup = speedups[length] = histogram.num_sequences * longest / plan.num_row_tokens
    cells = (f"{plan.num_packs:,}", f"{100 * plan.efficiency:.2f}", f"{speedup:.3f}")
    rows.append([f"{length}", *cells])
  value = to_the_digit("speed-up with rows of 36", "1.6", speedups[36])
  best = max(speedups, key=speedups.__getitem__)
  return part.exhibit(
    "Section Q, QM9",
    "Molecules in rows of 36",
    f"Of the row lengths tried, {best} atoms is the fastest: {speedups[best]:.3f} times as "
    f"fast as one molecule in each row of {longest}; at most "
    f"{theoretical_speedup(histogram):.3f} times is possible.",
    agreement="to the digit",
    claim="Molecules train 1.6 times as fast in rows of 36 atoms.",
    values=[value],
    text=table(["atoms of a row", "packs", "efficiency (%)", "speed-up"], rows, left=())
    + f"\n\nThe paper says that the largest molecule has 27 atoms; here "
    f"{histogram.counts[27:].sum()} of {histogram.num_sequences:,} have more.",
  )


def draw(path: pathlib.Path, curves: Mapping[int, Mapping[int, float]]):
  """The paper's Figure 10: the longer the rows, the more deeper packs gain.

  Args:
    path: of the PNG.
    curves: for each row length in tokens, the speed-up over padding by the most sequences
      that a pack may hold.
  """
  drawing = figure()
  axes = drawing.add_subplot()
  deepest = {length: curve[max(curve)] for length, curve in curves.items()}
  for (length, curve), colour in zip(curves.items(), COLOURS, strict=False):
    label = f"{length:,} tokens: {deepest[length]:.2f}"
    axes.plot(*zip(*sorted(curve.items()), strict=True), "o-", color=colour, label=label)
  axes.set_xscale("log", base=2)
  axes.xaxis.set_major_formatter("{x:g}")
  axes.set(xlabel="most sequences in a pack", ylabel="speed-up over padding")
  axes.legend(reverse=True)
  short, long = min(deepest), max(deepest)
  title = (
    f"Packing by LPFHP gains {deepest[short]:.2f} times at {short:,} tokens and "
    f"{deepest[long]:.2f} times at {long:,}"
  )
  save(drawing, path, title)


def exhibits(part: Part) -> list[Exhibit]:
  """The exhibits of both sections."""
  return [section_j(part), *section_q(part)]
