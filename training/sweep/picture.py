"""Draws a sweep: the results of its runs, by each field of the grid."""

from __future__ import annotations

import pathlib
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.ticker
import numpy as np
from matplotlib import pyplot as plt

from training.record import plots

Lines = Sequence[Mapping]  # lines of eval.jsonl
Runs = Mapping[Any, Lines]  # keyed by all fields of the runs except the one shown


def draw(
  path: str | pathlib.Path,
  fields: Mapping[str, Mapping[str, Runs]],
  *,
  metric: str = "mlm_accuracy",
):
  """Draws two panels per field: the results of its runs, and its effect.

  The second panel of a single field shows the curves of its runs. If there are several
  fields, it shows the differences between runs that differ in nothing else.

  Args:
    path: the PNG to write.
    fields: runs by field and by value, in the order shown. Differences are to the first
      value.
    metric: a number in the lines.
  """
  heights = [max(1.5, 0.5 * len(values) + 0.6) for values in fields.values()]
  alone = len(fields) == 1
  figure, rows = plt.subplots(
    len(fields),
    2,
    figsize=(11, sum(heights) + 1.5),
    squeeze=False,
    height_ratios=heights,
    width_ratios=(4, 5) if alone else (5, 4),
  )
  for (left, right), (field, values) in zip(rows, fields.items(), strict=True):
    ends = [{key: x[-1][metric] for key, x in runs.items()} for runs in values.values()]
    _plot_ends(left, ends)
    if alone:
      _plot_curves(right, list(values.values()), metric)
    else:
      _plot_differences(right, ends)
    _name(left, field, list(values))
    for axis in [left] if alone else [left, right]:
      axis.set_ylim(len(values) - 0.5, -0.5)
      axis.grid(axis="x")
      if plots.is_fraction(metric):
        axis.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(6))
        axis.xaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1))
  label = f"held-out {plots.label_of(metric)}"
  left.set_xlabel(f"{label} at the end")
  if alone:
    right.set_ylabel(label)
  else:
    right.set_xlabel("difference from the first value")
  for axis, title in (
    (rows[0, 0], "each run (dot) and the mean (bar)"),
    (
      rows[0, 1],
      "each run (light) and the mean (strong)"
      if alone
      else "each pair of runs that differ in nothing else (dot), mean (bar)",
    ),
  ):
    axis.set_title(title, fontsize="small", loc="left")
  figure.align_ylabels(rows[:, 0])
  plots.save(figure, path)


def _name(axis, field: str, values: Sequence[str]):
  """Labels the rows with the values of a field, in their colours."""
  axis.set_ylabel(textwrap.fill(field.replace("_", " "), 16))
  axis.set_yticks(range(len(values)), values)
  for tick, colour in zip(axis.get_yticklabels(), plots.colours(len(values)), strict=True):
    tick.set_color(colour)


def _plot_ends(axis, ends: Sequence[Mapping[Any, float]]):
  """Of the runs of each value."""
  for row, (end, colour) in enumerate(zip(ends, plots.colours(len(ends)), strict=True)):
    _plot_points(axis, list(end.values()), row, colour)


def _plot_differences(axis, ends: Sequence[Mapping[Any, float]]):
  """Plots the differences of each value's runs from those of the first value."""
  axis.axvline(0, color=plots.colours(len(ends))[0])
  for row, (end, colour) in enumerate(zip(ends, plots.colours(len(ends)), strict=True)):
    if found := [end[key] - ends[0][key] for key in end if row and key in ends[0]]:
      _plot_points(axis, found, row, colour)
  axis.set_yticks([])


def _plot_points(axis, values: Sequence[float], row: int, colour):
  rows = np.full(len(values), row)
  axis.plot(values, rows, "o", color=colour, alpha=0.5, clip_on=False)
  axis.plot(np.mean(values), row, "|", color=colour, markersize=22, markeredgewidth=2.5)


def _plot_curves(axis, values: Sequence[Runs], metric: str):
  """Plots the curves of each value's runs, and their mean at the steps that all have."""
  for runs, colour in zip(values, plots.colours(len(values)), strict=True):
    found = [{line["step"]: line[metric] for line in lines} for lines in runs.values()]
    for curve in found:
      axis.plot(list(curve), list(curve.values()), color=colour, alpha=0.25, linewidth=1)
    common = sorted(set.intersection(*map(set, found)))
    means = [np.mean([curve[step] for curve in found]) for step in common]
    axis.plot(common, means, color=colour, linewidth=2)
  plots.describe(axis, metric, "steps")
