"""Every table and figure of the packing paper, in one report.

  python -m experiments.reproduce            # or: make reproduce
  python -m experiments.reproduce --quick
  python -m experiments.reproduce --only packing_tables,residuals

Writes REPORT.md to --workdir, and each part to a folder there. The report shows all parts
made there so far. Plans, runs and measurements are kept, so the same command resumes where
it was stopped. --quick writes to a folder of its own, quick.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
import time

from lab import command, report
from lab import part as parts
from lab.exhibits import Part
from lab.options import add_some
from packing.files import write_text
from training.errors import Stopped

# In the order of the report: the name of each part, and its module in packing_paper.
PARTS = {
  "lengths": "figure_1_lengths",
  "packing_tables": "packs.tables_1_5_6_7_packing",
  "solution_times": "packs.table_1_solution_times",
  "padding": "packs.section_c_padding",
  "strategies": "table_4_strategies",
  "residuals": "packs.section_f_residuals",
  "rounding": "packs.section_r_rounding",
  "longer_rows": "figure_10_longer_rows",
  "model_changes": "section_3_model_changes",
  "unpadding_estimate": "figures_5_6_unpadding",
  "speedups": "timed.table_2_speedups",
  "compiled_steps": "timed.section_c_compiled_steps",
  "greedy_and_sort": "timed.table_1_greedy_and_sort",
  "learning_curves": "figures_3_4_15_to_17_curves",
  "adjustments": "section_3_3_adjustments",
  "other_ways": "section_c_other_ways",
  "other_text": "figures_3_4_other_text",
  "real_weights": "real_weights.figures_3_4_curves",
  "two_phases": "figures_18_19_two_phases",
  "real_phases": "real_weights.figures_18_19_phases",
  "next_sentence": "section_i_next_sentence",
  "downstream": "table_3_downstream",
  "real_downstream": "real_weights.table_3_downstream",
}
# Those that are left out without real data.
REAL = ("other_text", "real_weights", "real_phases", "real_downstream")
COMMAND = "python -m experiments.reproduce --only"


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  parser = command.make_parser(__doc__, "reproduce", workdir="results")
  parser.add_argument("--quick", action="store_true", help="a little of everything")
  add_some(parser, "--only", PARTS)
  command.add_training(parser, seeds="3 to 8, by part; 1 with --quick")
  options = parser.parse_args(arguments)
  return command.run(lambda: reproduce(options))


def reproduce(options: argparse.Namespace) -> int:
  """Makes the parts and the report; returns the exit status."""
  folder = options.workdir / "quick" if options.quick else options.workdir
  failures: dict[str, str] = {}
  folder.mkdir(parents=True, exist_ok=True)
  names = [name for name in PARTS if name in options.only]
  for number, name in enumerate(names, start=1):
    title, start = f"[{number}/{len(names)}] {name}", time.monotonic()
    if name in REAL and options.data is None:
      _say(f"{title}: left out; it needs --data FOLDER")
      continue
    _say(f"{title} ...")
    module = importlib.import_module(f"experiments.packing_paper.{PARTS[name]}")
    line = f"{COMMAND} {name}{' --data FOLDER' * (name in REAL)}"
    part = Part(
      folder / name,
      line + " --quick" * options.quick,
      quick=options.quick,
      seeds=options.seeds,
      jobs=options.jobs,
      data=options.data,
    )
    try:
      by_and_by = inspect.isgeneratorfunction(module.exhibits)
      (parts.make_by_and_by if by_and_by else parts.make)(module.exhibits, part)
    except (Stopped, *parts.MISTAKES) as error:
      failures[name] = str(error)
      _say(f"{title}: failed: {error}")
    else:
      _say(f"{title}: {time.monotonic() - start:.0f} s")
  made = {name: parts.read(folder / name) for name in PARTS}
  text = report.document(made, quick=options.quick, failures=failures)
  write_text(folder / "REPORT.md", text)
  for exhibit in (exhibit for part in made.values() for exhibit in part):
    print(f"{exhibit.name}: {exhibit.state} ({exhibit.agreement})")
  print(f"\nwritten to {folder / 'REPORT.md'}")
  return 1 if failures else 0


def _say(line: str):
  print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
  sys.exit(main())
