"""Longer rows: section J with Figure 10, and section Q of the supplement.

  python -m experiments.longer_rows

Section J packs Wikipedia at 128 to 2,048 tokens by LPFHP, to several depths. Section Q asks
what rows longer than the longest sequence give; its molecules are not at hand, so the same
ratios of lengths are tried on the histograms that are.
"""

from __future__ import annotations

import pathlib
import sys

import packing
from experiments.lab import part as parts
from experiments.lab.exhibits import Exhibit, Statement, Value
from experiments.lab.plans import cached_plan, plans_folder
from experiments.lab.report import table
from experiments.packing_paper.length_pictures import speedup_by_depth

COMMAND = "python -m experiments.longer_rows"

LENGTHS = (128, 384, 512, 1024, 2048)
DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, None)
NEEDED = {1024: 6, 2048: 12}  # sequences a pack, "around", for perfect packing
ENOUGH = 0.99  # of the theoretical speed-up

# Rows over the longest sequence: the paper's molecules 36 / 27, its audio 457 / 330.
RATIOS = {"1": 1.0, "36 / 27": 36 / 27, "457 / 330": 457 / 330, "2": 2.0}
SHORTER = ("squad_1_1_384", "glue_sst2_128", "glue_cola_128", "wikipedia_512")


def theoretical_speedup(histogram: packing.Histogram) -> float:
  """Of doing without padding: the longest length over the mean one.

  Example:
    >>> round(theoretical_speedup(packing.load_histogram("squad_1_1_384")), 3)
    2.232
  """
  return histogram.num_sequences * histogram.max_sequence_length / histogram.num_tokens


def depth_needed(curve: dict[int, float], limit: float) -> str:
  """The least depth of `DEPTHS` that gives nearly all of a limit, in words."""
  enough = [depth for depth, speedup in curve.items() if speedup >= ENOUGH * limit]
  if not enough:
    return "never"
  return str(min(enough)) if min(enough) in DEPTHS else "without a limit"


def section_j(folder: pathlib.Path) -> Exhibit:
  """Speed-up by depth at each length; and the optimum at some depths."""
  curves: dict[int, dict[int, float]] = {}
  rows, statements, told, gaps = [], [], [], []
  for length in LENGTHS:
    name = f"wikipedia_{length}"

    def plan(algorithm: str, depth: int | None, name: str = name) -> packing.Plan:
      return cached_plan(
        plans_folder(folder), name, algorithm=algorithm, max_sequences_per_pack=depth
      )

    limit = theoretical_speedup(packing.load_histogram(name))
    plans = {depth: plan("lpfhp", depth) for depth in DEPTHS}
    curves[length] = {
      depth or found.packing_depth: found.packing_factor for depth, found in plans.items()
    }
    needed = depth_needed(curves[length], limit)
    if length in NEEDED:
      depth = NEEDED[length]
      share = plans[depth].packing_factor / limit
      statements.append(
        Statement(
          f"Around {depth} sequences a pack are enough for perfect packing at {length:,} "
          "tokens",
          "holds" if share >= ENOUGH else "fails",
          f"LPFHP comes to {share:.1%} of the theoretical speed-up with {depth}; "
          f"{ENOUGH:.0%}, which counts as enough here, it reaches with: {needed}",
        )
      )
    told.append(f"{length:,} tokens: {needed}")
    best = {depth: plan("optimal", depth) for depth in (2, 3, None)}
    gaps += [x.gap for x in best.values()]
    rows.append(
      [
        f"{length:,}",
        f"{limit:.3f}",
        *(f"{plans[depth].packing_factor:.3f}" for depth in (2, 3, 8, None)),
        *(f"{found.packing_factor:.3f}" for found in best.values()),
        needed,
      ]
    )
  picture = folder / "figure_10.png"
  speedup_by_depth(picture, curves)
  header = ["length", "theoretical", "LPFHP at 2", "at 3", "at 8", "no limit"]
  header += ["`optimal` at 2", "at 3", "no limit", "depth for 99 %"]
  return Exhibit(
    name="Section J, Figure 10",
    title="Speed-ups by LPFHP at longer rows",
    agreement="in shape",
    finding=f"Sequences a pack with which LPFHP reaches {ENOUGH:.0%} of the theoretical "
    f"speed-up, in rows of {', '.join(told)} (the paper: around 6 and 12 at 1,024 and "
    "2,048).",
    command=COMMAND,
    statements=statements,
    pictures=[picture.name],
    text="Speed-ups by depth, and the least depth with which LPFHP comes to 99 % of the "
    "theoretical one:\n\n"
    + table(header, rows, right=range(1, len(header)))
    + f"\n\nPlans by `optimal` are proven to be within {max(gaps)} of the fewest packs.",
  )


def section_q(folder: pathlib.Path) -> list[Exhibit]:
  """Rows longer than the longest sequence."""
  rows = []
  gains, losses, imperfect, gaps = [], [], [], []
  for name in SHORTER:
    histogram = packing.load_histogram(name)
    size = histogram.max_sequence_length
    cells = [name]
    shares, perfect = [], []
    for told, ratio in RATIOS.items():
      row_length = round(size * ratio)
      plan = cached_plan(
        plans_folder(folder),
        name,
        algorithm="optimal",
        max_sequences_per_pack="max",
        row_length=row_length,
      )
      shares.append(plan.efficiency)
      gaps.append(plan.gap)
      speedup = histogram.num_sequences * size / plan.num_row_tokens
      fewest = -(-histogram.num_tokens // row_length)  # rows that hold as many tokens
      if plan.num_packs == fewest:
        perfect.append(told)
      cells.append(
        f"{100 * plan.efficiency:.2f} %, {speedup:.3f}, {plan.num_packs - fewest:,}"
      )
    gains.append((max(shares[1:]) - shares[0], name))
    losses.append((shares[0] - min(shares[1:]), name))
    if not set(perfect) - {"1"}:
      imperfect.append(name)
    rows.append(cells)
  (gain, where), (loss, there) = max(gains), max(losses)
  header = ["histogram", *(f"rows of {ratio} times the longest" for ratio in RATIOS)]
  return [
    Exhibit(
      name="Section Q",
      title="Rows longer than the longest sequence",
      agreement="in shape",
      finding=f"Rows longer than the longest sequence gain {100 * gain:.2f} points of "
      f"efficiency at most, on {where}, and lose {100 * loss:.2f} at most, on {there}.",
      statements=[
        Statement(
          "A longer row can be chosen such that packing is perfect: as few rows as their "
          "tokens need",
          "fails" if imperfect else "holds",
          f"of {len(SHORTER)} histograms {len(SHORTER) - len(imperfect)} have one among "
          f"{', '.join(list(RATIOS)[1:])} times the longest sequence"
          + (f", not {', '.join(imperfect)}" if imperfect else "")
          + f"; plans are proven to be within {max(gaps)} of the fewest packs",
        )
      ],
      command=COMMAND,
      text="Efficiency by `optimal` without a limit of depth, speed-up over one sequence a "
      "row of the longest length, by tokens, and packs more than their tokens need:\n\n"
      + table(header, rows, right=range(1, len(header))),
    ),
    Exhibit(
      name="Section Q, QM9",
      title="Molecules in rows of 36 instead of 27",
      agreement="not run here",
      finding="The sizes of QM9's molecules are not at hand.",
      command="python -m packing pack --lengths qm9.npy --max-sequence-length 27 "
      "--row-length 36",
      values=[Value("speed-up with rows of 36", "1.6", "not run")],
    ),
  ]


def exhibits(folder: pathlib.Path, *, quick: bool = False) -> list[Exhibit]:
  """Both; quick or not."""
  del quick
  return [section_j(folder), *section_q(folder)]


if __name__ == "__main__":
  sys.exit(parts.main(__doc__, exhibits, name="longer_rows"))
