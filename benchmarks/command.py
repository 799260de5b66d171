"""The command line of all benchmarks; a user's mistakes are reported before any work."""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

import jax

import packing
from model import SIZES
from model.files import write_json
from packing.commands.program import Parser, positive
from training import memory

DTYPES = ("float32", "bfloat16")


def make_parser(description: str | None) -> Parser:
  """A parser with `--json` that prints the description unchanged."""
  parser = Parser(
    description=description,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,  # some options are looked for before they are parsed
  )
  parser.add_argument(
    "--json", type=output_file, metavar="F.json", help="write all numbers to this file"
  )
  return parser


def add_picture(parser: argparse.ArgumentParser):
  """Adds the option `--picture`."""
  parser.add_argument(
    "--picture", type=picture_file, metavar="F.png", help="draw the results to this file"
  )


def add(
  parser: argparse.ArgumentParser, name: str, default: Any, help: str = "", **options: Any
):
  """Adds an option whose help ends with its default; by default, a positive integer."""
  shown = ",".join(map(str, default)) if isinstance(default, list) else default
  text = f"{help} (default: {shown})" if help else f"default: {shown}"
  parser.add_argument(name, default=default, help=text, **options or {"type": positive})


def add_dtype(parser: argparse.ArgumentParser):
  """Adds the option `--dtype` of the computation."""
  parser.add_argument(
    "--dtype",
    choices=DTYPES,
    default="float32" if jax.default_backend() == "cpu" else "bfloat16",
    help="default: float32 on a CPU, else bfloat16",
  )


def add_size(parser: argparse.ArgumentParser, default: str = "mini"):
  """Adds the option `--size`."""
  add(parser, "--size", default, "size of the model", choices=list(SIZES))


def add_histogram(parser: argparse.ArgumentParser):
  """Adds the option `--histogram`."""
  known = packing.histogram_names()
  add(parser, "--histogram", "wikipedia_512", "of sequence lengths", choices=known)


def some_of(known: Iterable[str]) -> Callable[[str], list[str]]:
  """The type of an option: some of these names, in any order, each once.

  Example:
    >>> some_of(["red", "blue"])("blue,red")
    ['blue', 'red']
    >>> some_of(["red", "blue"])("green")
    Traceback (most recent call last):
    argparse.ArgumentTypeError: there is no 'green'; expected some of red,blue
  """
  known = list(known)

  def name(text: str) -> str:
    if text not in known:
      raise argparse.ArgumentTypeError(
        f"there is no {text!r}; expected some of {','.join(known)}"
      )
    return text

  return lambda text: list(dict.fromkeys(map(name, text.split(","))))


def output_file(text: str) -> str:
  """The type of an option: a file that is written at the end. Makes its folder at once."""
  path = pathlib.Path(text)
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    path.open("a").close()
    if new:
      path.unlink()
  except OSError as error:
    raise argparse.ArgumentTypeError(f"cannot write {text}: {error.strerror}") from error
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


def run(main: Callable[[], None]) -> int:
  """Runs a benchmark; returns the exit status. Ctrl-C prints one line and no traceback.

  Freed memory is kept, as in training.
  """
  memory.keep()
  try:
    main()
  except KeyboardInterrupt:
    print("Stopped before the end.", file=sys.stderr)
    return 130
  return 0
