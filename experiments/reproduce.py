"""Every table and figure of the packing paper, in one report.

  python -m experiments.reproduce            # or: make reproduce
  python -m experiments.reproduce --quick
  python -m experiments.reproduce --only packing_tables,residuals

Writes REPORT.md to --workdir, and each part into a folder there; the report has all parts
that were made there. Plans, runs and measurements are kept: the same command goes on where
it was stopped. --quick goes to a folder of its own.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import signal
import sys
import time

from benchmarks.machine import machine
from experiments import parts, report
from training.command import Parser, Stopped
from training.record.files import write_text

# In the order of the report; each is a module of experiments that has `exhibits`.
PARTS = (
  "lengths",
  "packing_tables",
  "strategies",
  "residuals",
  "longer_rows",
  "model_changes",
  "unpadding_estimate",
  "speedups",
  "learning_curves",
  "other_text",
  "two_phases",
  "next_sentence",
  "downstream",
)


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  options = _parser().parse_args(arguments)
  if arguments is None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
  folder = options.workdir / "quick" if options.quick else options.workdir
  failures: dict[str, str] = {}
  try:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(options.only, start=1):
      title = f"[{number}/{len(options.only)}] {name}"
      start = time.monotonic()
      module = importlib.import_module(f"experiments.{name}")
      given = {"wikitext": options.wikitext} if name == "other_text" else {}
      try:
        parts.make(module.exhibits, folder / name, quick=options.quick, **given)
      except (Stopped, *parts.MISTAKES) as error:
        failures[name] = str(error)
        _say(f"{title}: failed: {error}")
        continue
      _say(f"{title}: {time.monotonic() - start:.0f} s")
    made = {name: parts.read(folder / name) for name in PARTS}
    text = report.document(made, machine=machine(), quick=options.quick, failures=failures)
    write_text(folder / "REPORT.md", text)
  except OSError as error:
    _say(f"error: {error}")
    return 2
  except KeyboardInterrupt:
    _say("Stopped. Run the same command again to continue.")
    return 130
  found = {
    exhibit.name: {"must agree": exhibit.agreement, "does": exhibit.state}
    for exhibits in made.values()
    for exhibit in exhibits
  }
  if options.json:
    told = {"report": str(folder / "REPORT.md"), "exhibits": found, "failures": failures}
    print(json.dumps(told))
  else:
    for name, state in found.items():
      print(f"{name}: {state['does']} ({state['must agree']})")
    print(f"\nwritten to {folder / 'REPORT.md'}")
  return 1 if failures else 0


def _parser() -> Parser:
  title, _, rest = (__doc__ or "").partition("\n\n")
  parser = Parser(
    prog="python -m experiments.reproduce",
    description=title,
    epilog=rest,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    "--only",
    type=_some_parts,
    default=list(PARTS),
    metavar="PARTS",
    help=f"separated by commas, of {','.join(PARTS)}",
  )
  parser.add_argument(
    "--wikitext",
    metavar="FOLDER",
    help="with test.txt and valid.txt of WikiText-2, for the part other_text",
  )
  parser.add_argument("--quick", action="store_true", help="less of all")
  parser.add_argument(
    "--workdir", type=pathlib.Path, default="results", help="where to write; results"
  )
  parser.add_argument("--json", action="store_true", help="print one JSON object")
  return parser


def _some_parts(text: str) -> list[str]:
  names = text.split(",")
  for name in names:
    if name not in PARTS:
      raise argparse.ArgumentTypeError(
        f"there is no part {name!r}; expected some of {', '.join(PARTS)}"
      )
  return [name for name in PARTS if name in names]


def _say(line: str):
  print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
  sys.exit(main())
