"""Pictures of learning curves over seeds, one finding each.

All functions take the path of the PNG and a title, which says what the picture shows. Arms
are given by their names in words.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

import matplotlib.ticker
import numpy as np

from lab.pictures import COLOURS, PERCENT, band, figure, legend_below, save
from lab.statistics import MARGIN
from lab.studies.paired_run import held_out
from lab.studies.study import Results

_SMOOTHED = 5  # points of a training curve are averaged; their noise is alike in all arms


def curves(
  path: pathlib.Path,
  arms: Mapping[str, Results],
  *,
  title: str,
  way: str = "own",
  over: str = "sequences",
):
  """The training loss, and the held-out loss minus that of the first arm.

  Held-out sequences are evaluated in one `way`, "own" or "alone"; the horizontal axis is
  `over`, a counter of the runs, "sequences" or "real_tokens".
  """
  drawing = figure(height=5.5)
  left, right = drawing.subplots(1, 2)
  base = next(iter(arms.values()))
  for (name, runs), colour in zip(arms.items(), COLOURS, strict=False):
    x = _counted(runs, "curve", over)
    y = [_smooth([point["mlm_loss"] for point in run["curve"]]) for run in runs]
    band(left, x, y, colour, name)
    if runs is not base:
      # In short runs, some arms are evaluated once more than others.
      common = min(len(of[0]["evaluations"]) for of in (base, runs))
      x = _counted(runs, "evaluations", over)[:common]
      apart = [
        np.subtract(held_out(runs, at=at, way=way), held_out(base, at=at, way=way))
        for at in range(common)
      ]
      band(right, x, np.transpose(apart), colour, name, marker="o")
  right.axhspan(-MARGIN, MARGIN, color="grey", alpha=0.15, linewidth=0)
  right.axhline(0, color=COLOURS[0])
  left.set_ylabel("training loss of masked tokens, nats")
  right.set_ylabel("difference of the held-out loss, nats")
  first = f"minus the first arm, paired by seed; grey: within {MARGIN} nats"
  right.set_title(first, fontsize="small")
  left.set_title("mean and range of the seeds", fontsize="small")
  for axes in (left, right):
    axes.set_xlabel(f"{over.replace('_', ' ')} trained on")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(5))
  late = len(base[0]["curve"]) // 20
  losses = [point["mlm_loss"] for run in base for point in run["curve"][late:]]
  left.set_ylim(min(losses) - 0.05, max(losses) + 0.05)  # all start far above
  legend_below(drawing, columns=2)
  save(drawing, path, title)


def by_time(
  path: pathlib.Path,
  arms: Mapping[str, Results],
  *,
  sequences_per_second: Mapping[str, float],
  title: str,
):
  """Held-out loss and accuracy over the time of training, by sequences a second."""
  drawing = figure(height=5.5)
  left, right = drawing.subplots(1, 2)
  for (name, runs), colour in zip(arms.items(), COLOURS, strict=False):
    minutes = _counted(runs, "evaluations") / sequences_per_second[name] / 60
    for axes, metric in ((left, "mlm_loss"), (right, "mlm_accuracy")):
      y = [[one["own"][metric] for one in run["evaluations"]] for run in runs]
      band(axes, minutes, y, colour, name, marker="o")
  left.set_ylabel("held-out loss of masked tokens, nats")
  right.set_ylabel("held-out accuracy of masked tokens")
  right.yaxis.set_major_formatter(PERCENT(1))
  for axes in (left, right):
    axes.set_xlabel("minutes of training, from steps timed alone")
    axes.set_xlim(left=0)
  legend_below(drawing, columns=2)
  save(drawing, path, title)


def bars(
  path: pathlib.Path, arms: Mapping[str, Sequence[float]], *, label: str, title: str
):
  """The values of each arm by seed, and their mean."""
  drawing = figure()
  axes = drawing.add_subplot()
  for row, ((name, values), colour) in enumerate(zip(arms.items(), COLOURS, strict=False)):
    axes.plot(values, [row] * len(values), "o", color=colour, alpha=0.6)
    axes.plot(np.mean(values), row, "|", color=colour, markersize=28, markeredgewidth=2.5)
    axes.annotate(name, (np.mean(values), row - 0.3), color=colour, ha="center")
  axes.set(xlabel=label, ylim=(len(arms) - 0.5, -0.7), yticks=[])
  save(drawing, path, title)


def spread(path: pathlib.Path, counts: Mapping[str, Mapping[int, int]], *, title: str):
  """The share of steps by number of sequences; `counts` has the steps of each name."""
  drawing = figure()
  axes = drawing.add_subplot()
  for (name, steps), colour in zip(counts.items(), COLOURS, strict=False):
    numbers, counts_of = list(steps), np.array(list(steps.values()))
    shares = counts_of / counts_of.sum()
    axes.bar(numbers, shares, width=0.9, color=colour, alpha=0.7, label=name)
    axes.axvline(numbers @ shares, color=colour, linestyle="--")
  axes.set(xlabel="sequences of a step", ylabel="share of the steps", xlim=0)
  axes.yaxis.set_major_formatter(PERCENT(1, decimals=0))
  axes.legend()
  save(drawing, path, title)


def by_length(
  path: pathlib.Path, lengths: Sequence[str], differences: np.ndarray, *, title: str
):
  """Bars: the loss after training on the loss of packs minus that of sequences.

  There is a dot for each seed.

  Args:
    path, title: as in all functions.
    lengths: of the groups, in tokens.
    differences: float[seeds, groups], nats.
  """
  drawing = figure()
  axes = drawing.add_subplot()
  mean = differences.mean(0)
  colours = [COLOURS[1] if x > 0 else COLOURS[0] for x in mean]
  axes.bar(lengths, mean, width=0.6, color=colours, alpha=0.7)
  axes.plot(lengths, differences.T, "o", color="#555555", markersize=4)
  axes.axhline(0, color="#555555", linewidth=0.8)
  axes.set_xlabel("length of the sequence, tokens")
  axes.set_ylabel("held-out loss: packs minus sequences, nats")
  save(drawing, path, title)


def _counted(runs: Results, which: str, counter: str = "sequences") -> np.ndarray:
  """A counter at each of "curve" or "evaluations", the mean over seeds."""
  return np.mean([[one[counter] for one in run[which]] for run in runs], axis=0)


def _smooth(values: Sequence[float]) -> np.ndarray:
  """A moving average over a few points, over fewer at the ends."""
  window = np.ones(min(_SMOOTHED, len(values)))
  total = np.convolve(values, window, mode="same")
  return total / np.convolve(np.ones(len(values)), window, mode="same")
