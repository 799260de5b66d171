"""Options and exit statuses that the commands of experiments share."""

from __future__ import annotations

import argparse
import os
import pathlib
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from experiments.lab import part as lab
from experiments.lab import real_data, report
from experiments.lab.part import MISTAKES, Maker, Part
from launch.sweep.jobs import cores
from packing.commands.program import Parser, positive
from packing.files import write_json, write_text
from training import memory
from training.errors import Stopped


def make_parser(doc: str | None, module: str, *, workdir: str) -> Parser:
  """A parser with the options that all commands have: --quick and --workdir.

  `doc` is the docstring of `module`, such as "experiments.reproduce"; it is shown as help.
  """
  title, _, rest = (doc or "").partition("\n\n")
  parser = Parser(
    prog=f"python -m {module}",
    description=title,
    epilog=rest,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  parser.add_argument("--quick", action="store_true", help="a little of everything")
  parser.add_argument(
    "--workdir",
    type=pathlib.Path,
    default=workdir,
    help=f"where to write (default: {workdir})",
  )
  return parser


def add_data(parser: Parser):
  """Adds the option --data."""
  parser.add_argument(
    "--data",
    metavar="FOLDER",
    default=os.environ.get(real_data.VARIABLE) or None,
    help="real data, listed in experiments/lab/real_data.py (default: ISOPACK_DATA)",
  )


def add_training(parser: Parser):
  """Adds the options of commands that train: --data and --jobs."""
  add_data(parser)
  parser.add_argument(
    "--jobs",
    type=positive,
    default=len(cores()),
    help="runs at a time (default: one for each core)",
  )


def folder_of(options: argparse.Namespace) -> pathlib.Path:
  """The folder of --workdir; with --quick, a folder in it."""
  return options.workdir / "quick" if options.quick else options.workdir


def make_part(options: argparse.Namespace, command: str, folder: str = "") -> Part:
  """The part that the options ask for.

  Args:
    options: from a parser with the options above, and perhaps --seeds.
    command: that makes the part.
    folder: of the part, in `folder_of(options)`.
  """
  return Part(
    folder_of(options) / folder,
    command,
    quick=options.quick,
    seeds=getattr(options, "seeds", None),
    jobs=options.jobs,
    data=options.data,
  )


def run(work: Callable[[], int]) -> int:
  """Does the work of a command; returns the exit status.

  A user's mistake prints one line and gives status 2; failed work prints one line and gives
  status 1; Ctrl-C and SIGTERM give status 130. Freed memory is kept, as in training, for
  steps that are timed in this process.
  """
  memory.keep()
  signal.signal(signal.SIGTERM, signal.default_int_handler)
  try:
    return work()
  except (Stopped, *MISTAKES) as error:
    print(f"error: {error}", file=sys.stderr)
    return 1 if isinstance(error, Stopped) else 2
  except KeyboardInterrupt:
    print("Stopped. Run the same command again to continue.", file=sys.stderr)
    return 130


def run_study(
  results: Iterator[Mapping[str, Any]],
  path: pathlib.Path,
  *,
  tables: Callable[[Mapping[str, Any]], str],
  draw: Callable[[pathlib.Path, Mapping[str, Any]], None],
) -> int:
  """Writes each result as soon as it is made, prints the last; returns `run`'s status.

  Each result includes the one before. It is written to PATH.json, its tables, in Markdown,
  to PATH.md, and its pictures to the same folder.
  """

  def work() -> int:
    for result in results:
      write_json(path.with_suffix(".json"), result)
      write_text(path.with_suffix(".md"), tables(result) + "\n")
      draw(path.parent, result)
    print(tables(result))
    return 0

  return run(work)


def run_part(maker: Maker, part: Part) -> int:
  """Makes the exhibits of a part and prints them; returns `run`'s status."""

  def work() -> int:
    made = lab.make(maker, part)
    print("\n\n".join(report.section(exhibit, folder=".") for exhibit in made))
    return 0

  return run(work)
