"""Pictures of learning curves over seeds, one finding each."""

from __future__ import annotations

import pathlib
import textwrap
from collections.abc import Mapping, Sequence

import matplotlib.ticker
import numpy as np

from experiments.lab.statistics import MARGIN
from experiments.lab.study import Results, held_out
from experiments.load_balance import pictures as load_balance_pictures
from experiments.load_balance.pictures import COLOURS, figure

_SMOOTHED = 5  # points of a training curve; each is noisy in the same way in all arms


def curves(
  path: pathlib.Path, arms: Mapping[str, Results], *, title: str, way: str = "own"
):
  """Training loss over sequences; and on held-out text, how far from the first arm.

  Args:
    path: of the PNG.
    arms: by their names in words; the first is what the others are compared with.
    title: what the picture shows.
    way: how held-out sequences are judged, "own" or "alone".
  """
  whole = figure()
  left, right = whole.subplots(1, 2)
  base = next(iter(arms.values()))
  for (name, runs), colour in zip(arms.items(), COLOURS, strict=False):
    x = _mean([[point["sequences"] for point in run["curve"]] for run in runs])
    y = [_smooth([point["mlm_loss"] for point in run["curve"]]) for run in runs]
    _band(left, x, y, colour, name)
    if runs is not base:
      x = _mean([[one["sequences"] for one in run["evaluations"]] for run in runs])
      count = len(base[0]["evaluations"])
      apart = [
        np.subtract(held_out(runs, at=at, way=way), held_out(base, at=at, way=way))
        for at in range(count)
      ]
      _band(right, x, np.transpose(apart), colour, name, marker="o")
  right.axhspan(-MARGIN, MARGIN, color="grey", alpha=0.15, linewidth=0)
  right.axhline(0, color=COLOURS[0])
  left.set_ylabel("training loss of masked tokens, nats")
  right.set_ylabel("difference of the held-out loss, nats")
  told = f"from the first of the legend, by seed; grey: {MARGIN} nats"
  right.set_title(told, fontsize="small", loc="left")
  left.set_title("mean, least and most of the seeds", fontsize="small", loc="left")
  for axes in (left, right):
    _sequences(axes)
  late = len(base[0]["curve"]) // 20
  shown = [point["mlm_loss"] for run in base for point in run["curve"][late:]]
  left.set_ylim(min(shown) - 0.05, max(shown) + 0.05)  # all begin far above
  left.legend(frameon=False, fontsize="small")
  _save(left, path, title)


def by_time(
  path: pathlib.Path,
  arms: Mapping[str, Results],
  *,
  sequences_per_second: Mapping[str, float],
  title: str,
):
  """Held-out loss and accuracy over the time of training.

  Args:
    path: of the PNG.
    arms: by their names in words.
    sequences_per_second: of each, measured alone.
    title: what the picture shows.
  """
  whole = figure()
  left, right = whole.subplots(1, 2)
  for (name, runs), colour in zip(arms.items(), COLOURS, strict=False):
    counts = _mean([[one["sequences"] for one in run["evaluations"]] for run in runs])
    minutes = counts / sequences_per_second[name] / 60
    for axes, metric in ((left, "mlm_loss"), (right, "mlm_accuracy")):
      y = [[one["own"][metric] for one in run["evaluations"]] for run in runs]
      _band(axes, minutes, y, colour, name, marker="o")
  left.set_ylabel("held-out loss of masked tokens, nats")
  right.set_ylabel("held-out accuracy of masked tokens")
  right.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1))
  for axes in (left, right):
    axes.set_xlabel("minutes of training, from steps timed alone")
    axes.set_xlim(left=0)
    _plain(axes)
  left.legend(frameon=False, fontsize="small")
  _save(left, path, title)


def bars(
  path: pathlib.Path, arms: Mapping[str, Sequence[float]], *, label: str, title: str
):
  """A value of each arm: every seed, and their mean.

  Args:
    path: of the PNG.
    arms: values by seed, by the arms' names in words.
    label: of the values.
    title: what the picture shows.
  """
  axes = figure().add_subplot()
  for row, ((name, values), colour) in enumerate(zip(arms.items(), COLOURS, strict=False)):
    axes.plot(values, [row] * len(values), "o", color=colour, alpha=0.6)
    axes.plot(np.mean(values), row, "|", color=colour, markersize=28, markeredgewidth=2.5)
    axes.annotate(name, (np.mean(values), row - 0.3), color=colour, ha="center")
  axes.set(xlabel=label, ylim=(len(arms) - 0.5, -0.7), yticks=[])
  _plain(axes)
  _save(axes, path, title)


def spread(
  path: pathlib.Path,
  counts: Mapping[str, Mapping[int, int]],
  *,
  title: str,
):
  """How many steps have how many sequences.

  Args:
    path: of the PNG.
    counts: by what the steps are called, the steps by number of sequences.
    title: what the picture shows.
  """
  axes = figure().add_subplot()
  for (name, steps), colour in zip(counts.items(), COLOURS, strict=False):
    total = sum(steps.values())
    numbers = sorted(steps)
    shares = [steps[n] / total for n in numbers]
    axes.bar(numbers, shares, width=0.9, color=colour, alpha=0.7, label=name)
    mean = sum(n * share for n, share in zip(numbers, shares, strict=True))
    axes.axvline(mean, color=colour, linestyle="--")
  axes.set(xlabel="sequences of a step", ylabel="share of the steps", xlim=0)
  axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1, decimals=0))
  axes.legend(frameon=False)
  _save(axes, path, title)


def by_length(
  path: pathlib.Path,
  lengths: Sequence[str],
  differences: np.ndarray,
  *,
  label: str,
  title: str,
):
  """Bars of a difference, with a dot for each seed.

  Args:
    path: of the PNG.
    lengths: of the groups, in tokens.
    differences: float[seeds, groups], nats.
    label: of the difference.
    title: what the picture shows.
  """
  axes = figure().add_subplot()
  places = np.arange(len(lengths))
  mean = differences.mean(0)
  colours = [COLOURS[1] if x > 0 else COLOURS[0] for x in mean]
  axes.bar(places, mean, width=0.6, color=colours, alpha=0.7)
  for values in differences:
    axes.plot(places, values, "o", color="#555555", markersize=4)
  axes.axhline(0, color="#555555", linewidth=0.8)
  axes.set_xticks(places, lengths)
  axes.set(xlabel="length of the sequence, tokens", ylabel=label)
  _save(axes, path, title)


def _save(axes, path: pathlib.Path, title: str):
  load_balance_pictures.save(axes, path, textwrap.fill(title.removesuffix("."), 115))


def _mean(rows: Sequence[Sequence[float]]) -> np.ndarray:
  return np.mean(np.array(rows, float), axis=0)


def _smooth(values: Sequence[float]) -> np.ndarray:
  """The mean of a few points around each, of fewer at the ends."""
  window = np.ones(min(_SMOOTHED, len(values)))
  total = np.convolve(values, window, mode="same")
  return total / np.convolve(np.ones(len(values)), window, mode="same")


def _band(axes, x, rows, colour: str, name: str, *, marker: str = ""):
  rows = np.array(rows, float)
  axes.plot(x, rows.mean(0), color=colour, label=name, marker=marker, markersize=3)
  if len(rows) > 1:
    axes.fill_between(x, rows.min(0), rows.max(0), color=colour, alpha=0.2, linewidth=0)


def _sequences(axes):
  axes.set_xlabel("sequences trained on")
  axes.set_xlim(left=0)
  axes.xaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,.0f}"))
  axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(5))
  _plain(axes)


def _plain(axes):
  axes.spines[["top", "right"]].set_visible(False)
  axes.grid(alpha=0.3)
