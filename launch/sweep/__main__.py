"""Trains the runs of a grid from one file, and tabulates their results.

  python -m launch.sweep configs/sweeps/ablations.py

The file has `get_sweep()`, which returns for example

    {
      "config": "configs/quickstart.py",  # the config that all runs start from
      "overrides": {"train.steps": 600},  # for all runs
      "grid": {"model.attention_mask": ["segment", "none"], "seed": [0, 1, 2]},
    }

With "arms", {name: {field: value}}, each arm is run at every point of the grid. Runs that
differ only in `seed` are one arm of the table. train.py trains each run in its own folder.
Finished runs are skipped, so the same command continues a stopped sweep.

On a CPU, --jobs=4 trains four runs at a time, each on a quarter of the cores. The same bits
need the same number of cores, so --jobs changes the digits; `sweep.json` names the cores.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from launch import workdir
from launch.door import ROOT
from launch.record.metrics import read_json_lines
from launch.settings import RunSettings
from launch.sweep import jobs
from launch.sweep import picture as sweep_picture
from launch.sweep.file import Run, Sweep, load_sweep
from launch.sweep.table import BASELINES, COLUMNS, differences, pooled, records, table
from packing import InputError
from packing.commands.program import Parser, fail, positive
from packing.files import write_json, write_text
from training.errors import ConfigError

# The metric that the picture shows, by a figure of the runs' summaries.
_METRICS = {
  "best_score": "score",
  "eval_mlm_accuracy": "mlm_accuracy",
  "eval_causal_accuracy": "causal_accuracy",
}


def is_finished(folder: pathlib.Path, settings: RunSettings) -> bool:
  """Whether a run of these settings has finished in the folder."""
  try:
    workdir.check_same(folder, settings.given)
  except InputError:
    return False  # no run, or one with another config, which train.py will refuse
  return workdir.read_summary(folder) is not None


def make_job(
  sweep: Sweep, run: Run, folder: pathlib.Path, options: Sequence[str] = ()
) -> jobs.Job:
  """The job that trains a run in its own folder, with output to `train.log` there."""
  command = [
    *jobs.ends_with_parent(ROOT / "train.py"),
    f"--config={sweep.config_file}",
    f"--workdir={folder}",
    *(f"--config.{field}={value}" for field, value in run.fields.items()),
    *options,
  ]
  done = functools.partial(is_finished, folder, run.settings)
  return jobs.Job(run.name, command, folder / "train.log", done)


def tabulate(sweep: Sweep, folder: pathlib.Path, failures: Mapping[str, str]) -> list[dict]:
  """The results of the arms, over their finished runs.

  Args:
    sweep: the sweep.
    folder: the folder that holds those of the runs.
    failures: the last line of each failed run, by the run's name.

  Returns:
    For each arm: its name `arm`; `point`, its fields; `n`, the number of finished runs; the
    result of `pooled` for each of `COLUMNS` that the runs have; and `runs`, each with
    `name`, `fields`, `finished`, `figures` if it is finished, and `error` if it failed.
  """
  arms: dict[str, list[Run]] = {}
  for run in sweep.runs:
    arms.setdefault(run.arm, []).append(run)
  return [_row(arm, runs, folder, failures) for arm, runs in arms.items()]


def _row(
  arm: str, runs: Sequence[Run], folder: pathlib.Path, failures: Mapping[str, str]
) -> dict[str, Any]:
  found = []
  for run in runs:
    done = is_finished(folder / run.name, run.settings)
    one: dict[str, Any] = {"name": run.name, "fields": dict(run.fields), "finished": done}
    if summary := workdir.read_summary(folder / run.name) if done else None:
      names = [*COLUMNS, *BASELINES.values(), "cores", "parameters_digest"]
      one["figures"] = {name: summary[name] for name in names if name in summary}
    if run.name in failures:
      one["error"] = failures[run.name]
    found.append(one)
  figures = [one["figures"] for one in found if one["finished"]]
  row: dict[str, Any] = {"arm": arm, "point": dict(runs[0].point), "n": len(figures)}
  for name in COLUMNS:
    if values := [some[name] for some in figures if name in some]:
      row[name] = pooled(values)
  return row | {"runs": found}


def write(folder: pathlib.Path, arms: Sequence[Mapping], failures: Mapping[str, str]):
  """Writes `sweep.json`, `sweep.md` and, once a run is finished, `sweep.png`."""
  write_json(folder / "sweep.json", {"arms": arms, "tables": records(arms)})
  failed = "".join(f"\n- {name}: {error}" for name, error in failures.items())
  write_text(
    folder / "sweep.md",
    f"{described(arms)}\n" + (f"\nFailed:\n{failed}\n" if failed else ""),
  )
  if not any(row["n"] for row in arms):
    return
  first = next(row for row in arms if row["n"])
  figure, metric = next(pair for pair in _METRICS.items() if pair[0] in first)
  curves = {  # of the runs that have the metric; others have another task
    row["arm"]: [
      read_json_lines(folder / run["name"] / "eval.jsonl")
      for run in row["runs"]
      if run["finished"] and figure in run["figures"]
    ]
    for row in arms
  }
  curves = {arm: lines for arm, lines in curves.items() if lines}
  best = figure.startswith("best_")
  sweep_picture.draw(folder / "sweep.png", curves, metric=metric, best=best)


def described(arms: Sequence[Mapping]) -> str:
  """The table of the results of `tabulate`, in Markdown, with what it shows."""
  best = any("best_score" in row for row in arms)
  text = (
    f"Held-out results at the end{' (best score: of all evaluations)' if best else ''}: "
    "mean ± standard deviation\nof n runs. Most-frequent baseline: the score of always "
    f"predicting that token, or label.\n\n{table(arms)}"
  )
  if compared := differences(arms):
    text += (
      f"\n\nHow much more than {arms[0]['arm']}, in runs with the same seed: mean and "
      f"95 % interval;\nof percentages, in points.\n\n{compared}"
    )
  return text


def _parser() -> argparse.ArgumentParser:
  parser = Parser(
    prog="python -m launch.sweep",
    description="Trains the runs of a grid from one file, and tabulates their results.",
    epilog="--config.FIELD=VALUE sets a field of all runs. The exit status is 1 if a run "
    "failed. The same command continues with the runs that are not finished.",
    allow_abbrev=False,
  )
  parser.add_argument("file", help="such as configs/sweeps/ablations.py")
  parser.add_argument(
    "--workdir", help="the folder for the runs (default: runs/sweeps/NAME)"
  )
  parser.add_argument(
    "--jobs",
    type=positive,
    default=1,
    help="runs at a time, each on its own share of the cores (default: 1)",
  )
  parser.add_argument("--json", action="store_true", help="print one JSON object")
  parser.add_argument("--dry-run", action="store_true", help="only list the runs")
  return parser


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  options, fields = _parser().parse_known_args(arguments)
  folder = pathlib.Path(
    options.workdir or pathlib.Path("runs", "sweeps", pathlib.Path(options.file).stem)
  )
  failures: dict[str, str] = {}
  kept = ""  # what is said of a stopped sweep
  try:
    for field in fields:
      if not field.startswith("--config.") or "=" not in field:
        raise ConfigError(f"Expected --config.FIELD=VALUE, found {field!r}.")
    sweep = load_sweep(options.file, fields)
    if not options.dry_run:
      queue = [make_job(sweep, run, folder / run.name, fields) for run in sweep.runs]
      try:
        jobs.run_all(queue, jobs=options.jobs, failures=failures)
      except KeyboardInterrupt:
        write(folder, tabulate(sweep, folder, failures), failures)
        kept = f"{folder / 'sweep.md'} has what is finished. "
        raise
    arms = tabulate(sweep, folder, failures)
    if not options.dry_run:
      write(folder, arms, failures)
  except (InputError, OSError) as error:
    return fail(2, str(error))
  except KeyboardInterrupt:
    print(f"{kept}Stopped. Run the same command again to continue.", file=sys.stderr)
    return 130
  if options.json:
    print(json.dumps({"workdir": str(folder), "arms": arms}))
  elif options.dry_run:
    for run in (run for row in arms for run in row["runs"]):
      print(f"{run['name']}{' (finished)' if run['finished'] else ''}")
  else:
    print(f"\n{described(arms)}\n\nwritten to {folder}: sweep.md, sweep.json, sweep.png")
  return 1 if failures else 0


if __name__ == "__main__":
  signal.signal(signal.SIGTERM, signal.default_int_handler)
  sys.exit(main())
