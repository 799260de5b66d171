"""Draws a sweep: the results of its arms, and the curves of their runs."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Mapping, Sequence

import matplotlib.ticker
import numpy as np
from matplotlib import pyplot as plt

from launch.record import plots

Lines = Sequence[Mapping]  # lines of eval.jsonl
_STYLES = ("-", "--", "-.", ":")  # curves that lie on each other are still seen
_LEGEND_WIDTH = 90  # characters of a line of the legend


def draw(
  path: str | pathlib.Path,
  arms: Mapping[str, Sequence[Lines]],
  *,
  metric: str = "mlm_accuracy",
  best: bool = False,
):
  """Draws a panel of the arms' results and one of their curves.

  Runs that were evaluated only once have no curve; then there is only the first panel.

  Args:
    path: the PNG to write.
    arms: the lines of each run, by arm, in the order shown.
    metric: a number in the lines.
    best: whether a run's result is its highest number, not its last.
  """
  colours = plots.colours(len(arms))
  label = f"held-out {plots.label_of(metric)}"
  has_curves = any(len(lines) > 1 for runs in arms.values() for lines in runs)
  height = max(4.0, 0.5 * len(arms) + 1.5)
  columns = max(1, min(len(arms), _LEGEND_WIDTH // (max(map(len, arms)) + 6)))
  lines = -(-len(arms) // columns)  # of the legend
  if has_curves:
    size = 11, height + 0.25 + 0.25 * lines
    figure, (left, right) = plt.subplots(1, 2, figsize=size, width_ratios=(4, 5))
  else:
    figure, left = plt.subplots(figsize=(6, height))
  for row, (runs, colour) in enumerate(zip(arms.values(), colours, strict=True)):
    numbers = [[line[metric] for line in lines] for lines in runs]
    results = [max(run) if best else run[-1] for run in numbers]
    _plot_points(left, results, row, colour)
  left.set_yticks(range(len(arms)), [arm.replace(",", "\n") for arm in arms])
  left.set_ylim(len(arms) - 0.5, -0.5)
  left.grid(axis="x")
  if plots.is_fraction(metric):
    left.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(4))
    left.xaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1))
  left.set_xlabel(f"{label} {'at its best' if best else 'at the end'}")
  left.set_title("each run (dot) and the mean (bar)", fontsize="small", loc="left")
  if has_curves:
    means = [
      _plot_curves(right, runs, metric, color=colour, linestyle=style)
      for runs, colour, style in zip(
        arms.values(), colours, itertools.cycle(_STYLES), strict=False
      )
    ]
    plots.describe(right, metric)
    right.set_ylabel(label)
    title = "each run (thin) and the mean (thick)"
    right.set_title(title, fontsize="small", loc="left")
    figure.legend(means, list(arms), loc="outside lower center", ncols=columns)
  plots.save(figure, path)


def _plot_points(axis, values: Sequence[float], row: int, colour):
  rows = np.full(len(values), row)
  axis.plot(values, rows, "o", color=colour, alpha=0.5, clip_on=False)
  axis.plot(np.mean(values), row, "|", color=colour, markersize=22, markeredgewidth=2.5)


def _plot_curves(axis, runs: Sequence[Lines], metric: str, **style):
  """Plots the curves of an arm's runs, and their mean at their common steps; returns it."""
  found = [{line["step"]: line[metric] for line in lines} for lines in runs]
  for curve in found:
    plots.plot_curve(axis, list(curve.items()), alpha=0.25, linewidth=1, **style)
  common = sorted(set.intersection(*map(set, found)))
  means = [float(np.mean([curve[step] for curve in found])) for step in common]
  return plots.plot_curve(axis, list(zip(common, means, strict=True)), linewidth=2, **style)
