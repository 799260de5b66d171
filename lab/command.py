"""Options that several studies have, and how a study is run, written and printed."""

from __future__ import annotations

import argparse
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from lab import options as lab
from lab import part as parts
from lab import real_data, report
from lab.exhibits import Part
from lab.part import MISTAKES, Maker
from packing.commands.program import Parser, positive
from packing.files import write_json, write_text
from training.compiler import cores


def make_parser(doc: str | None, module: str, *, workdir: str) -> Parser:
  """The parser of `experiments.MODULE`, with the option --workdir."""
  parser = lab.make_parser(doc, f"experiments.{module}")
  lab.add(parser, "--workdir", pathlib.Path(workdir), "where to write", type=pathlib.Path)
  return parser


def add_data(parser: Parser):
  """Adds the option --data."""
  parser.add_argument(
    "--data",
    metavar="FOLDER",
    default=os.environ.get(real_data.VARIABLE) or None,
    help="real data, listed in lab/real_data.py (default: ISOPACK_DATA)",
  )


def add_training(parser: Parser, *, seeds: str = ""):
  """Adds the options of commands that train; --seeds only if its default is given."""
  add_data(parser)
  lab.add(parser, "--jobs", len(cores()), "runs at a time")
  if seeds:
    about = f"runs of each arm (default: {seeds})"
    parser.add_argument("--seeds", type=positive, help=about)


def run(work: Callable[[], int | None], *, resumes: bool = True) -> int:
  """`options.run` with the mistakes of a part."""
  return lab.run(work, mistakes=MISTAKES, resumes=resumes)


def run_study(
  make: Callable[[], Mapping[str, Any]],
  path: pathlib.Path,
  *,
  tables: Callable[[Mapping[str, Any]], str],
  records: Callable[[Mapping[str, Any]], Mapping[str, list[dict[str, str]]]],
  draw: Callable[[pathlib.Path, Mapping[str, Any]], None],
) -> int:
  """Makes a result, writes it and prints its tables; returns `run`'s status.

  The result is written to PATH.json with the `records` of the tables that documents show,
  its tables, in Markdown, to PATH.md, and its pictures to the same folder.
  """

  def work():
    result = make()
    write_json(path.with_suffix(".json"), dict(result) | {"tables": records(result)})
    write_text(path.with_suffix(".md"), tables(result) + "\n")
    draw(path.parent, result)
    print(tables(result))

  return run(work, resumes=False)


def run_part(
  maker: Maker, options: argparse.Namespace, command: str, folder: str = ""
) -> int:
  """Makes the exhibits of a study and prints them; returns `run`'s status.

  Args:
    maker: makes the exhibits.
    options: from a parser with the options of `add_training`.
    command: that makes the study, as its exhibits name it.
    folder: of the study, in that of --workdir.
  """
  seeds, folder_of_it = getattr(options, "seeds", None), options.workdir / folder
  part = Part(folder_of_it, command, seeds=seeds, jobs=options.jobs, data=options.data)

  def work():
    made = parts.make(maker, part)
    print("\n\n".join(report.section(exhibit, folder=".") for exhibit in made))

  return run(work)
