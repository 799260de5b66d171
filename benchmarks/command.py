"""Options that several benchmarks have, and the file of their numbers."""

from __future__ import annotations

import argparse
import pathlib
import shutil
import tempfile
from typing import Any

import jax

import packing
from lab import options as lab
from lab.options import add
from model import SIZES
from packing.commands.program import Parser, positive
from packing.files import NotWritten, check_writable, write_json

DTYPES = ("float32", "bfloat16")


def make_parser(doc: str | None, module: str) -> Parser:
  """The parser of `benchmarks.MODULE`, with `--json`."""
  parser = lab.make_parser(doc, f"benchmarks.{module}")
  parser.add_argument(
    "--json", type=output_file, metavar="F.json", help="write all numbers to this file"
  )
  return parser


def add_picture(parser: Parser):
  """Adds the option `--picture`."""
  parser.add_argument(
    "--picture", type=picture_file, metavar="F.png", help="draw the results to this file"
  )


def default_dtype() -> str:
  """The dtype that a benchmark computes in on this machine's device."""
  return "float32" if jax.default_backend() == "cpu" else "bfloat16"


def add_dtype(parser: Parser):
  """Adds the option `--dtype` of the computation."""
  add(parser, "--dtype", default_dtype(), "of the computation", choices=DTYPES)


def add_size(parser: Parser, default: str = "mini"):
  """Adds the option `--size`."""
  add(parser, "--size", default, "size of the model", choices=list(SIZES))


def add_histogram(parser: Parser):
  """Adds the option `--histogram`."""
  known = packing.histogram_names()
  add(parser, "--histogram", "wikipedia_512", "of sequence lengths", choices=known)


def add_numbers(parser: Parser, option: str, default: list[int], what: str):
  """Adds an option of several positive numbers, separated by commas."""
  parser.add_argument(
    option,
    type=lambda text: [positive(number) for number in text.split(",")],
    default=default,
    metavar="N,...",
    help=f"{what} (default: {','.join(map(str, default))})",
  )


def add_folder(parser: Parser):
  """Adds the option `--folder`, of files that are made and removed."""
  parser.add_argument("--folder", metavar="DIR", help="where to write; default: TMPDIR")


def check_disk(parser: Parser, folder: str | None, needed: float, remedy: str):
  """Ends the command if `--folder` has too little room for so many bytes."""
  free = shutil.disk_usage(folder or tempfile.gettempdir()).free
  if needed > free:
    parser.error(
      f"{needed / 1e9:.0f} GB of disk are needed, and {free / 1e9:.0f} GB are free. Give "
      f"{remedy}, or another --folder."
    )


def output_file(text: str) -> str:
  """The type of an option: a file that is written at the end. Makes its folder at once."""
  try:
    pathlib.Path(text).parent.mkdir(parents=True, exist_ok=True)
    check_writable(text)
  except NotWritten as error:
    raise argparse.ArgumentTypeError(str(error)) from error
  except OSError as error:
    raise argparse.ArgumentTypeError(f"cannot write {text}: {error}") from error
  return text


def picture_file(text: str) -> str:
  """The type of an option: a picture that is drawn at the end."""
  if not text.endswith((".png", ".svg", ".pdf")):
    raise argparse.ArgumentTypeError(f"found {text}; expected .png, .svg or .pdf")
  return output_file(text)


def write(options: argparse.Namespace, machine: str, **results: Any):
  """Writes the results, the machine and the options to the file of `--json`, if given."""
  if options.json:
    record = {"machine": machine, "options": vars(options)}
    write_json(options.json, record | results)
