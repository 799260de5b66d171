"""Draws the curves of several runs in one picture.

python -m training.plots RUN [RUN ...] --by steps|sequences|hours
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence

from matplotlib import pyplot as plt

from training.command import Parser
from training.errors import ConfigError
from training.record import plots
from training.record.files import read_json_lines

# By value of --by: a field of metrics.jsonl, how much of it is 1 on the axis, the label.
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


def plot_runs(
  path: str | pathlib.Path,
  folders: Sequence[str | pathlib.Path],
  *,
  by: str = "steps",
  metric: str = "mlm_accuracy",
):
  """Draws the curves of runs in one picture: training light, held out strong.

  Args:
    path: the PNG to write.
    folders: folders of the runs.
    by: what the horizontal axis counts; a key of `AXES`.
    metric: a number in the lines of `metrics.jsonl` or `eval.jsonl`.

  Raises:
    ConfigError: a folder holds no run, or its run lacks the metric; the message lists what
      there is.
  """
  field, unit, label = AXES[by]
  names = _names([pathlib.Path(folder) for folder in folders])
  runs = {name: _read(folder, metric) for name, folder in names.items()}
  figure, axis = plt.subplots(figsize=(8, 4.8))
  drawn = []
  for (name, (train, held_out)), colour in zip(
    runs.items(), plots.colours(len(runs)), strict=True
  ):
    at = {line["step"]: line[field] / unit for line in train}
    for kind, lines, style in (
      ("training", train, {"alpha": 0.35, "linewidth": 1}),
      ("held out", held_out, {"marker": "o", "markersize": 4}),
    ):
      # If a line of metrics.jsonl was lost, its evaluation has no place on the axis.
      points = [
        (at[x["step"]], x[metric]) for x in lines if metric in x and x["step"] in at
      ]
      if points:
        drawn.append(kind)
        axis.plot(*zip(*points, strict=True), color=colour, **style)
    axis.plot([], [], color=colour, label=name)
  if not drawn:
    raise ConfigError(f"Expected lines of metrics.jsonl for {metric!r}, found none.")
  plots.describe(axis, metric, label)
  both = len(set(drawn)) == 2
  title = "light: training, strong: held out" if both else drawn[0]
  axis.set_title(title, loc="right")
  axis.legend()
  plots.save(figure, path)


def _names(folders: Sequence[pathlib.Path]) -> dict[str, pathlib.Path]:
  """The folders, keyed by their names, or by their paths if two names are equal."""
  names = {folder.absolute().name: folder for folder in folders}
  return names if len(names) == len(folders) else {str(x): x for x in folders}


def _read(folder: pathlib.Path, metric: str) -> tuple[list[dict], list[dict]]:
  """The lines of `metrics.jsonl` and `eval.jsonl`."""
  if not folder.is_dir():
    raise ConfigError(f"Expected the folder of a run, found nothing at {folder}.")
  train, held_out = (
    read_json_lines(folder / name) for name in ("metrics.jsonl", "eval.jsonl")
  )
  if not train:
    below = " ".join(sorted(str(path.parent) for path in folder.glob("*/metrics.jsonl")))
    raise ConfigError(
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
    raise ConfigError(
      f"{folder} has no metric {metric!r}; expected one of {', '.join(sorted(known))}."
    )
  return train, held_out


def _usual_metric(folder: pathlib.Path) -> str:
  """The metric that ranks runs of this kind."""
  lines = read_json_lines(folder / "eval.jsonl") if folder.is_dir() else []
  known = [name for name in ("score", "causal_accuracy") if lines and name in lines[-1]]
  return known[0] if known else "mlm_accuracy"


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  parser = Parser(
    prog="python -m training.plots",
    description="Draws the curves of several runs in one picture.",
  )
  parser.add_argument("runs", nargs="+", metavar="RUN", help="the folder of a run")
  parser.add_argument(
    "--by", choices=AXES, default="steps", help="what the axis counts (default: steps)"
  )
  parser.add_argument(
    "--metric",
    help="such as loss (default: mlm_accuracy; causal_accuracy of a causal model, score of "
    "a task)",
  )
  parser.add_argument("--out", help="the PNG to write (default: METRIC_by_AXIS.png)")
  options = parser.parse_args(arguments)
  try:
    metric = options.metric or _usual_metric(pathlib.Path(options.runs[0]))
    path = pathlib.Path(options.out or f"{metric}_by_{options.by}.png")
    plot_runs(path, options.runs, by=options.by, metric=metric)
  except (ConfigError, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  print(f"written to {path}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
