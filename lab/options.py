"""The command line of benchmarks and studies; mistakes are reported before any work."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Any

from packing.commands.program import Parser, positive
from training import memory
from training.errors import Stopped


def make_parser(doc: str | None, module: str) -> Parser:
  """A parser whose help is `doc`, the docstring of a module, "benchmarks.packing" say."""
  return Parser(
    prog=f"python -m {module}",
    description=doc,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,  # some options are looked for before they are parsed
  )


def add(parser: Parser, name: str, default: Any, help: str = "", **options: Any):
  """Adds an option whose help ends with its default; by default, a positive integer."""
  shown = ",".join(map(str, default)) if isinstance(default, list) else default
  text = f"{help} (default: {shown})" if help else f"default: {shown}"
  parser.add_argument(name, default=default, help=text, **options or {"type": positive})


def add_some(parser: Parser, name: str, known: Iterable[str]):
  """Adds an option for some of these names, by default all."""
  names = list(known)
  about = f"some of {','.join(names)} (default: all)"
  parser.add_argument(name, type=some_of(names), default=names, metavar="NAMES", help=about)


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

  def parse(text: str) -> list[str]:
    for name in text.split(","):
      if name not in known:
        raise argparse.ArgumentTypeError(
          f"there is no {name!r}; expected some of {','.join(known)}"
        )
    return list(dict.fromkeys(text.split(",")))

  return parse


def run(
  work: Callable[[], int | None],
  *,
  mistakes: tuple[type[Exception], ...] = (),
  resumes: bool = False,
) -> int:
  """Does the work of a command; returns the exit status, that of the work or 0.

  A user's mistake prints one line and gives status 2; failed work prints one line and gives
  status 1; Ctrl-C and SIGTERM give status 130, and print whether the same command resumes.
  Freed memory is kept, as in training, for steps that are timed in this process.
  """
  memory.keep()
  signal.signal(signal.SIGTERM, signal.default_int_handler)
  try:
    return work() or 0
  except Stopped as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  except mistakes as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    hint = " Run the same command again to resume." if resumes else ""
    print(f"Stopped.{hint}", file=sys.stderr)
    return 130
