"""What least squares leaves over, and its weights: sections F.4.4 and F.5, Figures 7 and 8.

--quick leaves out most weights of section F.5 on Wikipedia, which take half a minute each.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

import packing
from lab.exhibits import Exhibit, Part, to_the_digit, within
from lab.pictures import COLOURS, figure, save
from lab.plans import cached_plan
from lab.table import table

WIKIPEDIA, SQUAD = "wikipedia_512", "squad_1_1_384"
SHORTEST = (-4620, -4553, -4612, -4614, -3723, -3936, -3628, -3970)  # lengths 1 to 8
LONGEST = (3628, 3936, 3724, 4613, 4612, 4553, 4619, 0)  # lengths 505 to 512

# Offset and weight: the efficiency that section F.5 prints, in percent.
WEIGHTS = {
  (0, 1.0): "99.746359",
  (8, 0.09): "99.746274",
  (8, 0.0): "99.7519",
  (16, 0.0): "99.38964",
  (16, 0.09): "99.728",
  (256, 0.09): "99.53",
}
DEFAULT = (8, 0.09)  # the algorithm's own: the same plan as in other parts
UNPRINTED = ((4, 0.0), (4, 0.09), (4, 0.9), (8, 0.9))
# The grid on SQuAD; the paper's search found offset 64 and weight 0.002.
OFFSETS, GRID = (32, 64, 128), (0.02, 0.002, 0.0002)
SQUAD_WEIGHTS = {(0, 1.0): "96.94", (8, 0.09): "97.38", (64, 0.002): "98.767"}


def plan_of(part: Part, histogram: str, offset: int, weight: float) -> packing.Plan:
  """A plan by least squares at depth 3, with weights on lengths up to the offset."""
  options: dict[str, Any] = {}
  if (offset, weight) != DEFAULT:
    options = {"residual_offset": offset, "residual_weight": weight}
  return cached_plan(part, histogram, "nnlshp", 3, **options)


def efficiency(plan: packing.Plan) -> float:
  """In percent, as the paper counts it: of the rounded packs, with their empty slots."""
  return 100 * plan.details["efficiency_before"]


def section_f44(part: Part) -> Exhibit:
  """The exhibit of the residual without weights and with them."""
  plans = [plan_of(part, WIKIPEDIA, *weights) for weights in ((0, 1.0), DEFAULT)]
  plain = plans[0]
  # int64[S]; b - A round(x), equation (17).
  residual, weighted = (np.array(plan.details["residual"]) for plan in plans)
  lengths = np.arange(1, residual.size + 1)
  left, missing = np.maximum(residual, 0), np.maximum(-residual, 0)
  padding = float(missing @ lengths)
  share = 100 * left.sum() / plain.num_sequences
  used = plain.details["num_strategies_before"]
  not_349 = "56,799 of them are 0.349 %"
  values = [
    to_the_digit("sequences", "16,279,552", plain.num_sequences),
    within("strategies used", "634", used, tolerance=40),
    within("sequences left over", "56,799", int(left.sum()), tolerance=570),
    within("the same (%)", "0.352", share, tolerance=0.0035, note=not_349),
    within("tokens of empty slots (million)", "7.94", padding / 1e6, tolerance=0.16),
  ]
  for first, printed in ((1, SHORTEST), (505, LONGEST)):
    for length, number in enumerate(printed, start=first):
      here, slack = int(residual[length - 1]), 0.1 * max(abs(number), 100)
      name = f"residual of length {length}"
      values.append(within(name, f"{number:,}", here, tolerance=slack))
  draw(part.folder / "residuals.png", residual, weighted)
  short = int(missing[:8].sum()) / max(int(missing.sum()), 1)
  return part.exhibit(
    "Section F.4.4, Figures 7 and 8",
    "What least squares leaves over",
    f"Without weights {int(left.sum()):,} sequences are left over, and {short:.0%} of the "
    f"empty slots have at most 8 tokens; with weights "
    f"{int(np.maximum(weighted, 0).sum()):,} are left over.",
    agreement="within a tolerance",
    claim="Rounded least squares leaves 0.35 % of the sequences over; weights on the "
    "shortest leave fewer.",
    values=values,
    pictures=["residuals.png"],
  )


def section_f5(part: Part) -> Exhibit:
  """The exhibit of efficiency by weight and offset."""
  values, rows = [], []
  plans: dict[str, list[packing.Plan]] = {WIKIPEDIA: [], SQUAD: []}
  for histogram, printed, unprinted, tolerance in (
    (WIKIPEDIA, WEIGHTS, UNPRINTED, 0.02),
    (SQUAD, SQUAD_WEIGHTS, (), 0.15),
  ):
    best = cached_plan(part, histogram, "optimal", 3)
    wanted = [*printed, *unprinted]
    if part.quick and histogram == WIKIPEDIA:
      wanted = wanted[:2]
    for offset, weight in wanted:
      plan = plan_of(part, histogram, offset, weight)
      plans[histogram].append(plan)
      name = f"{histogram}, offset {offset}, weight {weight:g}"
      if (offset, weight) in printed:
        paper, here = printed[offset, weight], efficiency(plan)
        note = "with a weight of 0 the minimiser is one of many" if weight == 0 else ""
        values.append(within(f"{name} (%)", paper, here, tolerance=tolerance, note=note))
      packs = plan.details["num_packs_before"], plan.num_packs, best.num_packs
      left = np.maximum(plan.details["residual"], 0)
      numbers = *packs, left.sum(), left[-len(LONGEST) :].sum()
      rows.append([name, f"{efficiency(plan):.4f}", *(f"{n:,}" for n in numbers)])
  shares = [efficiency(plan) for plan in plans[WIKIPEDIA]]
  fewest = cached_plan(part, WIKIPEDIA, "optimal", 3).num_packs
  above = min(plan.num_packs for plan in plans[WIKIPEDIA]) - fewest
  header = ["weights", "efficiency (%)", "packs", "without empty slots"]
  header += ["packs of `optimal`", "left over", f"of the {len(LONGEST)} longest lengths"]
  return part.exhibit(
    "Section F.5",
    "Weights of the residual",
    "On Wikipedia the weights change efficiency by at most "
    f"{max(shares) - min(shares):.2f} points; the best weights need {above:,} packs more "
    "than the optimum.",
    agreement="within a tolerance",
    claim="The efficiency of least squares depends little on the weights of its residual.",
    values=values,
    text=table(header, rows),
  )


def squad_grid(part: Part) -> Exhibit:
  """The exhibit of SQuAD's efficiency on a grid of weights and offsets, section F.5."""
  offsets = OFFSETS[-2:] if part.quick else OFFSETS
  plans = {(o, w): plan_of(part, SQUAD, o, w) for o in offsets for w in GRID}
  shares = {at: efficiency(plan) for at, plan in plans.items()}
  (offset, weight), best = max(shares.items(), key=lambda x: x[1])
  paper = float(SQUAD_WEIGHTS[64, 0.002])
  rows = [[f"{o}", *(f"{shares[o, w]:.3f}" for w in GRID)] for o in offsets]
  return part.exhibit(
    "Section F.5, SQuAD",
    "Weights of the residual on a grid",
    f"The best of {len(shares)} weights, offset {offset} and weight {weight:g}, has "
    f"{best:.3f} %; the paper's local optimum, offset 64 and weight 0.002, has "
    f"{shares[64, 0.002]:.3f} % (printed {paper}). The optimum has "
    f"{100 * cached_plan(part, SQUAD, 'optimal', 3).efficiency:.3f} %.",
    claim="A grid search over the weights finds a local optimum at 98.767 %.",
    text=f"Efficiency (%) by offset and weight:\n\n"
    f"{table(['offset', *(f'weight {w:g}' for w in GRID)], rows, left=())}",
  )


def draw(path: pathlib.Path, unweighted: np.ndarray, weighted: np.ndarray):
  """The paper's Figures 7 and 8: the residual r = b - A round(x) by length.

  Residuals are int64[S], below 0 where sequences are missing. `weighted` is the residual
  with less weight on the shortest lengths.
  """
  drawing = figure(9, 6)
  panels = drawing.subplots(2, 1, sharex=True, sharey=True)
  residuals = {"without weights": unweighted, "with weights": weighted}
  for axes, (name, residual) in zip(panels, residuals.items(), strict=True):
    lengths = np.arange(1, residual.size + 1)
    left, missing = residual.clip(min=0), residual.clip(max=0)
    axes.bar(lengths, left, 1, color=COLOURS[1], label=f"{left.sum():,} left over")
    axes.bar(lengths, missing, 1, color=COLOURS[0], label=f"{-missing.sum():,} missing")
    axes.set_yscale("symlog", linthresh=10)
    axes.set(ylabel="sequences (logarithmic)", xlim=(0, residual.size + 1))
    axes.set_title(name, fontsize="small", loc="left")
    axes.legend(loc="upper center", ncols=2)
  panels[1].set_xlabel("tokens of a sequence")
  over = [residual.clip(min=0).sum() for residual in (unweighted, weighted)]
  title = f"Rounded least squares leaves {over[0]:,} sequences over"
  save(drawing, path, f"{title}, with less weight on the shortest {over[1]:,}")


def exhibits(part: Part) -> list[Exhibit]:
  """All exhibits of this part."""
  return [section_f44(part), section_f5(part), squad_grid(part)]
