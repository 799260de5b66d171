"""Pictures of a run, and of several.

  python -m training.plots RUN [RUN ...] --by steps|sequences|hours

lays runs over each other.
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Sequence

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from training.command import Parser
from training.errors import ConfigError
from training.record.files import read_json_lines

PACKS_SHOWN = 40
# --by: the field of a line of metrics.jsonl, what of it is one on the axis, the label
AXES = {
  "steps": ("step", 1, "steps"),
  "sequences": ("sequences", 1, "sequences trained on"),
  "hours": ("seconds", 3600, "hours of training"),
}
_COUNTERS = (
  "step",
  "seconds",
  "sequences",
  "sequences_trained",
  "real_tokens",
  "compilations",
)
_LABELS = {
  "loss": "loss in nats",
  "mlm_loss": "masked-token loss in nats",
  "nsp_loss": "next-sentence loss in nats",
  "mlm_accuracy": "masked-token accuracy",
  "nsp_accuracy": "next-sentence accuracy",
  "causal_loss": "next-token loss in nats",
  "causal_accuracy": "next-token accuracy",
  "score": "score of the task",
}
_PADDING = "0.88"
_LEGEND = 7  # entries that fit under a picture
_TRAIN, _HELD_OUT, _BASELINE = "tab:blue", "tab:orange", "tab:gray"


def plot_packing(
  path: str | pathlib.Path,
  lengths: np.ndarray,
  segment_ids: np.ndarray,
  *,
  efficiency: float,
):
  """Draws the lengths of the sequences, and how the packs are filled.

  Args:
    path: of the PNG.
    lengths: int[num_sequences], in tokens.
    segment_ids: int32[B, S] of some packs; the first 40 are drawn.
    efficiency: real tokens / all tokens of the whole plan, a fraction.
  """
  row_length = segment_ids.shape[1]
  figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
  bins = np.arange(1, row_length + 2) - 0.5
  left.hist(lengths, bins, color=_TRAIN)
  left.set_yscale("log")
  left.spines[["top", "right"]].set_visible(False)
  left.axvline(
    lengths.mean(), color=_BASELINE, linestyle="--", label=f"mean {lengths.mean():.0f}"
  )
  left.legend(frameon=False, loc="upper right")
  left.set(
    xlabel="length in tokens", ylabel="sequences", title=f"{lengths.size:,} sequences"
  )
  shown = segment_ids[:PACKS_SHOWN]
  depth = int(segment_ids.max())
  shades = [_PADDING, *plt.colormaps["viridis"](np.linspace(0.15, 0.9, depth))]
  right.imshow(
    shown,
    cmap=matplotlib.colors.ListedColormap(shades),
    vmin=-0.5,
    vmax=depth + 0.5,
    aspect="auto",
    interpolation="nearest",
  )
  names = ["padding", *(f"sequence {i}" for i in range(1, depth + 1))]
  handles = [
    matplotlib.patches.Patch(color=c, label=n) for c, n in zip(shades, names, strict=True)
  ]
  if len(handles) > _LEGEND:  # of many, what the two ends of the colours are
    handles = [*handles[:2], handles[-1]]
  figure.legend(
    handles=handles, loc="outside lower right", ncols=len(handles), frameon=False
  )
  right.set(
    xlabel="position in the row, in tokens",
    ylabel="pack",
    title=f"{len(shown)} packs; {efficiency:.1%} of all tokens are real",
  )
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
    path: of the PNG.
    train: lines of `metrics.jsonl`.
    evaluation: lines of `eval.jsonl`.
    metric: a number in these lines, or in those of `eval.jsonl` alone.
    loss: what the loss is called.
  """
  figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
  for axis, name in zip(axes, ("loss", metric), strict=True):
    for lines, legend, style in (
      (train, "training", {"color": _TRAIN, "alpha": 0.8}),
      (evaluation, "held out", {"color": _HELD_OUT, "marker": "o", "markersize": 5}),
    ):
      points = [(line["step"], line[name]) for line in lines if name in line]
      if points:
        axis.plot(*zip(*points, strict=True), label=legend, **style)
  if evaluation and metric == "mlm_accuracy":
    axes[1].axhline(
      evaluation[-1]["unigram_mlm_accuracy"],
      color=_BASELINE,
      linestyle="--",
      label="always the commonest token",
    )
  for axis, name in zip(axes, ("loss", metric), strict=True):
    describe(axis, name, "steps")  # after all lines, whose ends it takes
    axis.legend(frameon=False)
  axes[0].set_ylabel(loss)
  save(figure, path)


class RunError(ValueError):
  """A folder or a metric that cannot be drawn; says what is there."""


def plot_runs(
  path: str | pathlib.Path,
  folders: Sequence[str | pathlib.Path],
  *,
  by: str = "steps",
  metric: str = "mlm_accuracy",
):
  """Lays the curves of runs over each other: training light, held out strong.

  Args:
    path: of the PNG.
    folders: of the runs.
    by: what the axis counts; a key of `AXES`.
    metric: a number in the lines of `metrics.jsonl` or `eval.jsonl`.

  Raises:
    RunError: a folder has no run, or not the metric; lists what is there.
  """
  field, unit, label = AXES[by]
  names = _names([pathlib.Path(folder) for folder in folders])
  runs = {name: _read(folder, metric) for name, folder in names.items()}
  figure, axis = plt.subplots(figsize=(8, 4.8), layout="constrained")
  drawn = []
  for (name, (train, held_out)), colour in zip(
    runs.items(), colours(len(runs)), strict=True
  ):
    at = {line["step"]: line[field] / unit for line in train}
    for kind, lines, style in (
      ("training", train, {"alpha": 0.35, "linewidth": 1}),
      ("held out", held_out, {"marker": "o", "markersize": 4}),
    ):
      points = [(at[x["step"]], x[metric]) for x in lines if metric in x]
      if points:
        drawn.append(kind)
        axis.plot(*zip(*points, strict=True), color=colour, **style)
    axis.plot([], [], color=colour, label=name)
  describe(axis, metric, label)
  both = len(set(drawn)) == 2
  title = "light: training, strong: held out" if both else drawn[0]
  axis.set_title(title, fontsize="medium", loc="right")
  axis.legend(frameon=False)
  save(figure, path)


def describe(axis, metric: str, label: str):
  """Labels, grid and limits of an axis, once all is drawn that is its.

  Args:
    axis: of Matplotlib.
    metric: what it shows.
    label: of the other axis.
  """
  axis.set(xlabel=label, ylabel=label_of(metric))
  axis.grid(alpha=0.3)
  axis.spines[["top", "right"]].set_visible(False)
  axis.set_xlim(left=0)
  if label != AXES["hours"][2]:
    axis.xaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,.0f}"))
    axis.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
  if is_fraction(metric):
    lowest, highest = axis.dataLim.intervaly
    margin = 0.05 * (highest - min(lowest, 0))  # a correlation may be below 0
    if margin > 0:
      axis.set_ylim(lowest - margin if lowest < 0 else 0, highest + margin)
    axis.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1))


def label_of(metric: str) -> str:
  """What a metric is called on an axis."""
  return _LABELS.get(metric, metric.replace("_", " "))


def is_fraction(metric: str) -> bool:
  """Whether a metric is shown in percent."""
  return metric.endswith(("accuracy", "share")) or metric in ("padding", "score")


def colours(count: int) -> list:
  """As many as there are, told from each other as well as may be."""
  if count <= 10:
    return list(plt.colormaps["tab10"](np.arange(count)))
  return list(plt.colormaps["turbo"](np.linspace(0.05, 0.95, count)))


def _names(folders: Sequence[pathlib.Path]) -> dict[str, pathlib.Path]:
  """The folders by their names, or where these are not unique by their paths."""
  names = {folder.absolute().name: folder for folder in folders}
  return names if len(names) == len(folders) else {str(x): x for x in folders}


def _read(folder: pathlib.Path, metric: str) -> tuple[list[dict], list[dict]]:
  """The lines of `metrics.jsonl` and `eval.jsonl`."""
  if not folder.is_dir():
    raise RunError(f"Expected the folder of a run, found nothing at {folder}.")
  train, held_out = (
    read_json_lines(folder / name) for name in ("metrics.jsonl", "eval.jsonl")
  )
  if not train:
    below = " ".join(sorted(str(path.parent) for path in folder.glob("*/metrics.jsonl")))
    raise RunError(
      f"Expected a run in {folder}, found no line in {folder / 'metrics.jsonl'}."
      + (f" There are runs below it: {below}." if below else "")
    )
  known = {
    name
    for lines in (train, held_out)
    for name, value in (lines[-1] if lines else {}).items()
    if isinstance(value, int | float) and name not in _COUNTERS
  }
  if metric not in known:
    raise RunError(
      f"{folder} has no metric {metric!r}; expected one of {', '.join(sorted(known))}."
    )
  return train, held_out


def _usual_metric(folder: pathlib.Path) -> str:
  """What says how good a run is."""
  lines = read_json_lines(folder / "eval.jsonl") if folder.is_dir() else []
  known = [name for name in ("score", "causal_accuracy") if lines and name in lines[-1]]
  return known[0] if known else "mlm_accuracy"


def save(figure, path: str | pathlib.Path):
  """Writes a figure, whole or not at all, and closes it.

  Args:
    figure: of Matplotlib.
    path: of the PNG.
  """
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  partial = path.with_name(f".{path.name}")
  figure.savefig(partial, dpi=130, format="png")
  os.replace(partial, path)
  plt.close(figure)


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  parser = Parser(prog="python -m training.plots", description="Lays runs over each other.")
  parser.add_argument("runs", nargs="+", metavar="RUN", help="the folder of a run")
  parser.add_argument("--by", choices=AXES, default="steps", help="what the axis counts")
  parser.add_argument(
    "--metric", help="such as loss; mlm_accuracy, of tasks score, if not given"
  )
  parser.add_argument("--out", help="the PNG; METRIC_by_AXIS.png if not given")
  options = parser.parse_args(arguments)
  try:
    metric = options.metric or _usual_metric(pathlib.Path(options.runs[0]))
    path = pathlib.Path(options.out or f"{metric}_by_{options.by}.png")
    plot_runs(path, options.runs, by=options.by, metric=metric)
  except (RunError, ConfigError, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  print(f"written to {path}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
