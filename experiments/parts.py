"""Parts of the reproduction: each makes some exhibits in a folder of its own."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.machine import machine
from experiments import report
from experiments.exhibits import Exhibit
from packing import InputError
from training.command import Parser, Stopped
from training.config import ConfigError
from training.record.files import write_json, write_text
from training.sweep.file import SweepError

# From a folder and whether it is to be quick to the exhibits of the part.
Maker = Callable[..., list[Exhibit]]

# What a maker raises where its input is wrong.
MISTAKES = (InputError, ConfigError, SweepError, OSError)

_FILE = "exhibits.json"


def make(
  maker: Maker, folder: pathlib.Path, *, quick: bool = False, **options: Any
) -> list[Exhibit]:
  """Makes the exhibits of a part, and writes them down.

  What takes long is kept, by what it was made from: runs and measurements by the part
  itself, plans beside it. So this is quick where all of them are there, and never out of
  date.

  Args:
    maker: called as maker(folder, quick=quick, **options).
    folder: of the part, for its pictures and what it keeps.
    quick: whether less is enough.
    **options: of the part; None for its default.
  """
  options = {name: value for name, value in options.items() if value is not None}
  folder.mkdir(parents=True, exist_ok=True)
  exhibits = maker(folder, quick=quick, **options)
  sections = [report.section(exhibit, folder=".") for exhibit in exhibits]
  text = [f"# {folder.resolve().name}", f"Machine: {machine()}."]
  text += [report.QUICK] if quick else []
  text += [report.summary(exhibits), *sections]
  write_text(folder / "exhibits.md", "\n\n".join(text) + "\n")
  write_json(folder / _FILE, [dataclasses.asdict(exhibit) for exhibit in exhibits])
  return exhibits


def read(folder: pathlib.Path) -> list[Exhibit]:
  """The exhibits that a part made last; none where it has made none."""
  path = folder / _FILE
  found = json.loads(path.read_text()) if path.exists() else []
  return [Exhibit.from_dict(x) for x in found]


def main(
  doc: str | None,
  maker: Maker,
  *,
  name: str,
  add_options: Callable[[Parser], None] = lambda parser: None,
  arguments: Sequence[str] | None = None,
) -> int:
  """The command of a part; returns the exit status.

  Args:
    doc: of its module, to show as help.
    maker: of its exhibits.
    name: of its module.
    add_options: adds those of the part.
    arguments: of the command line; sys.argv's if not given.
  """
  if arguments is None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
  title, _, rest = (doc or "").partition("\n\n")
  parser = Parser(
    prog=f"python -m experiments.{name}",
    description=title,
    epilog=rest,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    "--workdir",
    type=pathlib.Path,
    help=f"where to write; results/{name}, or results/quick/{name} with --quick",
  )
  parser.add_argument("--quick", action="store_true", help="less of all")
  parser.add_argument("--json", action="store_true", help="print one JSON object")
  add_options(parser)
  options = vars(parser.parse_args(arguments))
  workdir, as_json = options.pop("workdir"), options.pop("json")
  if workdir is None:
    workdir = pathlib.Path("results", *["quick"][: options["quick"]], name)
  try:
    exhibits = make(maker, workdir, **options)
  except MISTAKES as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  except Stopped as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  except KeyboardInterrupt:
    print("Stopped. Run the same command again to continue.", file=sys.stderr)
    return 130
  if as_json:
    print(json.dumps([dataclasses.asdict(exhibit) for exhibit in exhibits]))
  else:
    print("\n\n".join(report.section(exhibit, folder=".") for exhibit in exhibits))
  return 0
