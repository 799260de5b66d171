"""The pictures of a run, and functions that other pictures share."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from packing import Histogram
from packing.commands.pictures import draw_rows
from packing.files import whole_file

plt.style.use("packing.pictures")

PACKS_SHOWN = 24  # so that rows can be told apart
_LABELS = {
  "loss": "loss in nats",
  "mlm_accuracy": "masked-token accuracy",
  "causal_accuracy": "next-token accuracy",
  "score": "score of the task",
}
_TRAIN, _HELD_OUT, _BASELINE = "C0", "C1", "0.3"


def plot_packing(
  path: str | pathlib.Path,
  histogram: Histogram,
  segment_ids: np.ndarray,
  *,
  efficiency: float,
):
  """Draws a histogram of the sequences' lengths, and how packs are filled.

  Args:
    path: the PNG to write.
    histogram: of the sequences' lengths.
    segment_ids: int32[B, S] of some packs; the first 24 are drawn.
    efficiency: real tokens / all tokens of the whole plan, a fraction.
  """
  row_length = segment_ids.shape[1]
  figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2))
  bins = np.arange(1, row_length + 2) - 0.5
  lengths = np.arange(1, histogram.longest + 1)
  weights = histogram.counts[: lengths.size]
  mean = histogram.num_tokens / histogram.num_sequences
  left.hist(lengths, bins, weights=weights, color=_TRAIN)
  left.set_yscale("log")
  left.axvline(mean, color="black", linestyle="--")
  left.set(
    xlabel="length in tokens",
    ylabel="sequences",
    title=f"{histogram.num_sequences:,} sequences, {mean:.0f} tokens on average (line)",
  )
  rows, number = [], 0
  for row in segment_ids[:PACKS_SHOWN]:
    starts = np.flatnonzero(np.diff(row, prepend=0))
    ends = np.append(starts[1:], row_length)
    found = [x for x in zip(starts, ends, strict=True) if row[x[0]]]  # 0 is padding
    rows.append([(a, b - a, number + i) for i, (a, b) in enumerate(found)])
    number += len(found)
  draw_rows(right, rows, row_length)
  shown = "1 pack" if len(rows) == 1 else f"{len(rows)} packs"
  right.set_title(f"{shown}; {efficiency:.1%} of the plan's tokens are real")
  save(figure, path)


def plot_learning_curve(
  path: str | pathlib.Path,
  train: list[dict],
  evaluation: list[dict],
  *,
  metric: str = "mlm_accuracy",
  loss: str = "loss in nats",
):
  """Draws the loss and a metric over steps.

  Args:
    path: the PNG to write.
    train: lines of `metrics.jsonl`.
    evaluation: lines of `eval.jsonl`.
    metric: a number in all these lines, or only in those of `eval.jsonl`.
    loss: the label of the loss.
  """
  figure, axes = plt.subplots(1, 2, figsize=(11, 4.2))
  for axis, name in zip(axes, ("loss", metric), strict=True):
    for lines, legend, style in (
      (train, "training", {"color": _TRAIN, "alpha": 0.8}),
      (evaluation, "held out", {"color": _HELD_OUT, "marker": "o", "markersize": 5}),
    ):
      points = [(line["step"], line[name]) for line in lines if name in line]
      plot_curve(axis, points, label=legend, **style)
  if evaluation and metric == "mlm_accuracy":
    axes[1].axhline(
      evaluation[-1]["unigram_mlm_accuracy"],
      color=_BASELINE,
      linestyle="--",
      label="most-frequent-token baseline",
    )
  for axis, name in zip(axes, ("loss", metric), strict=True):
    describe(axis, name)  # after all lines are drawn, which set its limits
    axis.legend()
  axes[0].set_ylabel(loss)
  save(figure, path)


def plot_curve(axis, points: Sequence[tuple[float, float]], **style):
  """Plots a curve; a single point, which has no line, as a dot.

  Args:
    axis: Matplotlib's axes.
    points: its x and y; none for an empty curve.
    **style: for Matplotlib's `plot`.

  Returns:
    Matplotlib's line, for a legend.
  """
  dot = {"marker": "o", "markersize": 5} if len(points) == 1 else {}
  x, y = zip(*points, strict=True) if points else ((), ())
  (line,) = axis.plot(x, y, **{**dot, **style})
  return line


def describe(axis, metric: str):
  """Sets labels, grid and limit of a metric's plot over steps, after it is drawn."""
  axis.set(xlabel="steps", ylabel=label_of(metric))
  axis.grid()
  axis.set_xlim(left=0)
  axis.xaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,.0f}"))
  axis.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(6, integer=True))
  if is_fraction(metric):
    axis.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1))


def label_of(metric: str) -> str:
  """The label of a metric on an axis."""
  return _LABELS.get(metric, metric.replace("_", " "))


def is_fraction(metric: str) -> bool:
  """Whether a metric is shown in percent."""
  return metric.endswith("accuracy") or metric == "score"


def colours(count: int) -> list:
  """`count` colours that differ as much as possible."""
  known = plt.rcParams["axes.prop_cycle"].by_key()["color"]
  if count <= len(known):
    return known[:count]
  return list(plt.colormaps["viridis"](np.linspace(0, 0.9, count)))


def save(figure, path: str | pathlib.Path):
  """Writes Matplotlib's figure as a PNG, whole or not at all, and closes it."""
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  with whole_file(path) as file:
    figure.savefig(file, format="png")
  plt.close(figure)
