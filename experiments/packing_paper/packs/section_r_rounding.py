"""Rounding of least squares, what it leaves over, coarser lengths, and other algorithms.

Sections 3.1.2, R and S, the end of section G.1, and F.2. --quick has only SQuAD.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.optimize

import packing
from lab.exhibits import Exhibit, Part, judged
from lab.machine import machine
from lab.plans import cached_plan, measured_once
from lab.table import table
from packing.algorithms.nnls import packing_matrix

WIKIPEDIA, SQUAD = "wikipedia_512", "squad_1_1_384"
DEPTH = 3
OFFSET, WEIGHT = 8, 0.09  # of NNLSHP, section F.4.5
STRICT = 1e6  # w-bar of section S


def solve(histogram: packing.Histogram, algorithm: str) -> np.ndarray:
  """float64[P]; how often each strategy is used, before rounding.

  Args:
    histogram: lengths 1 to the row length.
    algorithm: "nnlshp", equation (18), or "ennlshp", equations (23) and (24).
  """
  size, counts = histogram.max_sequence_length, histogram.counts.astype(float)
  matrix, weights = packing_matrix(size, DEPTH).astype(float), np.ones(size)
  if algorithm == "nnlshp":
    weights[:OFFSET] = WEIGHT
    return scipy.optimize.nnls(weights[:, None] * matrix, weights * counts)[0]
  weights = np.arange(1.0, size + 1)
  blocks = [
    [weights[:, None] * matrix, np.zeros((size, size))],
    [STRICT * matrix, -STRICT * np.eye(size)],
  ]
  target = np.concatenate([weights * counts, STRICT * counts])
  return scipy.optimize.nnls(np.block(blocks), target)[0][: matrix.shape[1]]


def rounded(part: Part, name: str, algorithm: str) -> dict[str, Any]:
  """What rounding makes of a solution; measured once.

  Returns:
    `fractional`, the packs before rounding; for each of "nearest" and "up", the packs, the
    sequences left over, and the empty slots; and `changed`, the sequences by which rounding
    to the nearest number changes what is packed, summed over lengths.
  """
  histogram = packing.load_histogram(name)

  def make() -> dict[str, Any]:
    usage = solve(histogram, algorithm)
    matrix = packing_matrix(histogram.max_sequence_length, DEPTH)
    found: dict[str, Any] = {"fractional": float(usage.sum())}
    found["changed"] = float(np.abs(matrix @ (np.rint(usage) - usage)).sum())
    for how, whole in (("nearest", np.rint(usage)), ("up", np.ceil(usage))):
      residual = histogram.counts - matrix @ whole.astype(np.int64)
      left = int(residual.clip(min=0).sum())
      empty = int(-residual.clip(max=0).sum())
      found[how] = {"packs": int(whole.sum()) + left, "left": left, "empty": empty}
    return found

  return measured_once(part, f"{name}-{algorithm}", [histogram.sha256, machine()], make)


def rounding(part: Part) -> Exhibit:
  """The exhibit of rounding to the nearest number, and up."""
  names = (SQUAD,) if part.quick else (WIKIPEDIA, SQUAD)
  made = {(n, a): rounded(part, n, a) for n in names for a in ("nnlshp", "ennlshp")}
  rows = []
  for (name, algorithm), found in made.items():
    least = cached_plan(part, name, "optimal", DEPTH).num_packs
    for how in ("nearest", "up"):
      packs, left, empty = (found[how][x] for x in ("packs", "left", "empty"))
      cells = [f"{x:,}" for x in (packs, left, empty, packs - least)]
      rows.append([f"{name}, {algorithm}, {how}", f"{found['fractional']:,.1f}", *cells])
  worst = made[names[0], "nnlshp"]
  header = ["", "packs before rounding", "packs", "left over", "empty slots"]
  extended = made[names[0], "ennlshp"]
  gain = extended["nearest"]["packs"] - extended["up"]["packs"]
  more = f"{abs(gain):,} packs {'fewer' if gain > 0 else 'more'}"
  return part.exhibit(
    "Sections 3.1.2 and S, rounding",
    "Repeat counts rounded to the nearest number, and up",
    f"Rounding to the nearest number changes what NNLSHP packs by {worst['changed']:,.0f} "
    f"sequences. Rounding ENNLSHP up needs {more}.",
    claim="Rounding costs a few hundred sequences at worst; rounding up would leave none "
    "over.",
    statements=[
      judged(
        "Rounding to the nearest number changes at most 1,000 sequences",
        worst["changed"] <= 1000,
        f"{worst['changed']:,.0f} of {packing.load_histogram(names[0]).num_sequences:,}",
      ),
      judged(
        "Rounded up, ENNLSHP leaves no sequence over",
        all(made[n, "ennlshp"]["up"]["left"] == 0 for n in names),
        ", ".join(f"{made[n, 'ennlshp']['up']['left']:,} on {n}" for n in names),
      ),
    ],
    text=table([*header, "more than the optimum"], rows)
    + "\n\nEach sequence left over has a row of its own; empty slots count as padding.",
  )


def leftovers(part: Part) -> Exhibit:
  """The exhibit of best-fit on what NNLSHP leaves over, section R."""
  rows, shares = [], []
  for name in (SQUAD,) if part.quick else (WIKIPEDIA, SQUAD):
    plans = [
      cached_plan(part, name, "nnlshp", DEPTH),
      cached_plan(part, name, "nnlshp", DEPTH, leftovers="best_fit"),
      cached_plan(part, name, "lpfhp"),
      cached_plan(part, name, "optimal", DEPTH),
    ]
    packs = [plan.details.get("num_packs_before", plan.num_packs) for plan in plans]
    rows.append([name, *(f"{x:,}" for x in packs)])
    shares.append((packs[0] - packs[1]) / (packs[0] - packs[3]))
  header = ["", "a row for each", "best-fit", "LPFHP, no limit", "`optimal`, depth 3"]
  return part.exhibit(
    "Section R, leftovers",
    "Best-fit on the sequences that NNLSHP leaves over",
    "Best-fit on the leftovers gains "
    f"{' and '.join(f'{share:.0%}' for share in shares)} of what NNLSHP has more than the "
    f"optimum, on {' and '.join(row[0] for row in rows)}.",
    claim="With best-fit on the remains NNLSHP packs about as well as LPFHP.",
    text=f"Packs, with the empty slots of least squares:\n\n{table(header, rows)}",
  )


def even_lengths(part: Part) -> Exhibit:
  """The exhibit of lengths rounded up to even numbers, and of depth 4, section G.1."""
  name = SQUAD if part.quick else WIKIPEDIA
  halves = packing.Histogram(packing.load_histogram(name).counts.reshape(-1, 2).sum(1))
  exact = [cached_plan(part, name, "optimal", depth).num_packs for depth in (3, 4)]
  even = [
    cached_plan(part, f"{name}-even", "optimal", depth, lengths=halves).num_packs
    for depth in (3, 4)
  ]
  squares = [
    cached_plan(part, f"{name}-even", "nnlshp", depth, lengths=halves).details
    for depth in ((3,) if part.quick else (3, 4))
  ]
  cost, gain = even[0] / exact[0] - 1, 1 - exact[1] / exact[0]
  rows = [
    ["`optimal`, exact lengths", *(f"{x:,}" for x in exact)],
    ["`optimal`, even lengths", *(f"{x:,}" for x in even)],
    ["NNLSHP, even lengths", *(f"{x['num_packs_before']:,}" for x in squares)],
  ]
  rows[-1] += [""] * (3 - len(rows[-1]))
  return part.exhibit(
    "Section G.1, even lengths",
    "Lengths rounded up to even numbers, and depth 4",
    f"Even lengths cost {cost:.2%} more packs at depth 3. Depth 4 saves {gain:.2%} with "
    "exact lengths. With even ones it is small enough for least squares, which then needs "
    f"{squares[-1]['num_packs_before']:,} packs.",
    claim="With even lengths only, least squares could pack longer rows or at depth 4; "
    "depth 3 is enough.",
    statements=[
      judged(
        "Depth 4 brings less than 0.5 % over depth 3",
        gain < 0.005,
        f"{exact[1]:,} packs at depth 4 and {exact[0]:,} at depth 3, {gain:.2%} fewer",
      )
    ],
    text=table([name, "depth 3", "depth 4"], rows),
  )


def relatives(part: Part) -> Exhibit:
  """The exhibit of harmonic-k and of modified first-fit-decreasing (MFFD), section F.2."""
  rows, more = [], []
  for name in (SQUAD,) if part.quick else (WIKIPEDIA, SQUAD, "glue_sst2_128"):
    plans = [cached_plan(part, name, "harmonic", classes=k) for k in (3, 6, 12)]
    others = ("mffd", "ffd", "spfhp", "optimal")
    plans += [cached_plan(part, name, algorithm) for algorithm in others]
    packs = [plan.num_packs for plan in plans]
    rows.append([name, *(f"{x:,}" for x in packs)])
    more.append([x / packs[-1] - 1 for x in packs])
  worst = np.max(more, axis=0)
  header = ["", "harmonic-3", "-6", "-12", "MFFD", "FFD", "SPFHP", "`optimal`"]
  return part.exhibit(
    "Section F.2",
    "Harmonic-k and modified first-fit-decreasing",
    f"MFFD needs at most {worst[3]:.1%} more packs than the optimum, first-fit-decreasing "
    f"{worst[4]:.1%}, SPFHP {worst[5]:.1%}, harmonic-12 {worst[2]:.1%}.",
    claim="Harmonic-k and MFFD come closest to the paper's algorithms.",
    text=f"Packs, without a depth limit:\n\n{table(header, rows)}",
  )


def exhibits(part: Part) -> list[Exhibit]:
  """All exhibits of this part."""
  return [rounding(part), leftovers(part), even_lengths(part), relatives(part)]
