"""Draws a sweep: the results of its arms, and the curves of their runs."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

import matplotlib.ticker
import numpy as np
from matplotlib import pyplot as plt

from launch.record import plots

Lines = Sequence[Mapping]  # lines of eval.jsonl


def draw(
  path: str | pathlib.Path,
  arms: Mapping[str, Sequence[Lines]],
  *,
  metric: str = "mlm_accuracy",
):
  """Draws a panel of the arms' results and one of their curves.

  Args:
    path: the PNG to write.
    arms: the lines of each run, by arm, in the order shown.
    metric: a number in the lines.
  """
  height = max(4.0, 0.5 * len(arms) + 1.5)
  figure, (left, right) = plt.subplots(1, 2, figsize=(11, height), width_ratios=(4, 5))
  for row, (runs, colour) in enumerate(
    zip(arms.values(), plots.colours(len(arms)), strict=True)
  ):
    _plot_points(left, [lines[-1][metric] for lines in runs], row, colour)
    _plot_curves(right, runs, metric, colour)
  plots.describe(right, metric)
  left.set_yticks(range(len(arms)), [arm.replace(",", "\n") for arm in arms])
  for tick, colour in zip(left.get_yticklabels(), plots.colours(len(arms)), strict=True):
    tick.set_color(colour)
  left.set_ylim(len(arms) - 0.5, -0.5)
  left.grid(axis="x")
  if plots.is_fraction(metric):
    left.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(4))
    left.xaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1))
  label = f"held-out {plots.label_of(metric)}"
  left.set_xlabel(f"{label} at the end")
  right.set_ylabel(label)
  left.set_title("each run (dot) and the mean (bar)", fontsize="small", loc="left")
  title = "each run (light) and the mean (strong)"
  right.set_title(title, fontsize="small", loc="left")
  plots.save(figure, path)


def _plot_points(axis, values: Sequence[float], row: int, colour):
  rows = np.full(len(values), row)
  axis.plot(values, rows, "o", color=colour, alpha=0.5, clip_on=False)
  axis.plot(np.mean(values), row, "|", color=colour, markersize=22, markeredgewidth=2.5)


def _plot_curves(axis, runs: Sequence[Lines], metric: str, colour):
  """Plots the curves of an arm's runs, and their mean at the steps that all have."""
  found = [{line["step"]: line[metric] for line in lines} for lines in runs]
  for curve in found:
    plots.plot_curve(axis, list(curve.items()), color=colour, alpha=0.25, linewidth=1)
  common = sorted(set.intersection(*map(set, found)))
  means = [float(np.mean([curve[step] for curve in found])) for step in common]
  plots.plot_curve(axis, list(zip(common, means, strict=True)), color=colour, linewidth=2)
