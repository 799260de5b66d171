"""Pictures of the atom-size study, one finding each."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping, Sequence

import matplotlib.ticker
import numpy as np

from experiments.atom_size.perplexities import smooth
from lab.pictures import COLOURS, band, figure, legend_below, save
from lab.studies.study import Results

_ALPHA = 0.98  # of the moving average
_COLOURS = dict(zip(("0.25 S", "0.5 S", "1 S", "2 S", "4 S"), COLOURS, strict=False))
_CUT_OFF = 0.1  # of a run, at its beginning, where all curves fall from far above


def atoms(
  path: pathlib.Path,
  arms: Mapping[str, Results],
  segments: Mapping[str, np.ndarray],
  ranks: Mapping[str, np.ndarray],
  *,
  epochs: int,
  title: str,
):
  """Figures 1, 2, 7 to 10: whole runs, the last epoch, final perplexities, and ranks.

  Args:
    path: of the PNG.
    arms: runs by the names of their atoms.
    segments: of each arm float[seeds, segments], the perplexity in the last epoch.
    ranks: of each arm that is ranked float[seeds], 1 for the best.
    epochs: of a run.
    title: what the picture shows.
  """
  whole = figure(9, 7)
  (full, last), (final, rank) = whole.subplots(2, 2)
  for name, runs in arms.items():
    y = _curve(runs)
    x = np.arange(1, y.size + 1) / runs[0]["steps_per_epoch"]
    full.plot(x, y, color=_COLOURS[name], label=name)
    y = smooth(segments[name].mean(0), 0.6)
    x = np.linspace(epochs - 1, epochs, y.size)
    last.plot(x, y, color=_COLOURS[name], label=name)
  for axes, of_arms in (
    (final, {name: segments[name][:, -1] for name in arms}),
    (rank, ranks),
  ):
    names, values = list(of_arms), list(of_arms.values())
    means = [float(x.mean()) for x in values]
    colours = [_COLOURS[name] for name in names]
    axes.bar(range(len(names)), means, color=colours, alpha=0.7)
    for place, of_arm in enumerate(values):
      if len(of_arm) > 1:
        axes.plot([place] * len(of_arm), of_arm, "o", color="#333333", markersize=3)
      top = (place, of_arm.max())
      axes.annotate(
        f"{means[place]:.4g}",
        top,
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        va="bottom",
      )
    axes.set_xticks(range(len(names)), names)
    axes.margins(y=0.12)
  _limits(full, [_curve(runs) for runs in arms.values()])
  full.set(xlabel="epochs", ylabel="training perplexity, moving average")
  last.set(xlabel="epochs", ylabel="last epoch, smoothed")
  final.set(xlabel="atom", ylabel="final perplexity")
  rank.set(xlabel="atom", ylabel="mean rank in the last epoch")
  full.legend(fontsize="small", title="atom")
  for axes in whole.axes:
    axes.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(6))
  save(whole, path, title)


def steps(path: pathlib.Path, panels: Mapping[int, Mapping[str, Results]], *, title: str):
  """Figure 3: training perplexity over steps, a panel of layouts for each row length."""
  columns = min(3, len(panels))
  rows = math.ceil(len(panels) / columns)
  whole = figure(3.6 * columns, 3.3 * rows + 0.6)
  grid = whole.subplots(rows, columns, squeeze=False).flat
  for axes, (row_length, arms) in zip(grid, panels.items(), strict=False):
    for (name, runs), colour in zip(arms.items(), COLOURS, strict=False):
      y = _curve(runs)
      axes.plot(np.arange(1, y.size + 1), y, color=colour, label=name)
    _limits(axes, [_curve(runs) for runs in arms.values()])
    axes.set(xlabel="steps", title=f"rows of {row_length}")
  for axes in grid[len(panels) :]:
    axes.remove()
  for axes in grid[: len(panels) : columns]:
    axes.set_ylabel("perplexity, moving average")
  legend_below(whole, columns=2)
  save(whole, path, title)


def held_out(path: pathlib.Path, arms: Mapping[str, Results], *, title: str):
  """Held-out perplexity over steps, text and time (the `seconds` of evaluations)."""
  whole = figure(11, 4.2)
  by_step, by_text, by_time = whole.subplots(1, 3, sharey=True)
  lowest = []
  for (name, runs), colour in zip(arms.items(), COLOURS, strict=False):
    points = [run["evaluations"] for run in runs]
    y = np.array([[x["perplexity"] for x in one] for one in points])
    lowest.append(y.min())
    steps = np.array([point["step"] for point in points[0]])
    for axes, x in (
      (by_step, steps),
      (by_text, steps / runs[0]["steps_per_epoch"]),
      (by_time, np.array([point["seconds"] for point in points[0]])),
    ):
      band(axes, x, y, colour, name, marker="o")
  by_step.set(xlabel="steps", ylabel="held-out perplexity")
  by_text.set(xlabel="epochs: equal text")
  by_time.set(xlabel="seconds of training")
  by_step.set_ylim(min(lowest) * 0.95, min(lowest) * 2)
  by_step.legend(fontsize="small")
  for axes in (by_step, by_text, by_time):
    axes.set_xlim(left=0)
  save(whole, path, title)


def _curve(runs: Results) -> np.ndarray:
  """float[T]: training perplexity over steps, of the averaged loss of all seeds."""
  return np.exp(np.mean([smooth(run["nats"], _ALPHA) for run in runs], axis=0))


def _limits(axes, curves: Sequence[np.ndarray]):
  """Cuts off the beginning, where all curves fall from far above."""
  late = [y[int(_CUT_OFF * y.size) :] for y in curves]
  axes.set_ylim(min(y.min() for y in late) * 0.95, np.median([y[0] for y in late]) * 1.05)
