"""The command line of training benchmarks: mistakes are reported before any work."""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable, Iterable

from training.command import Parser


def make_parser(description: str | None) -> Parser:
  """A parser that shows the description as it is written."""
  return Parser(
    description=description, formatter_class=argparse.RawDescriptionHelpFormatter
  )


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

  def names(text: str) -> list[str]:
    found = list(dict.fromkeys(text.split(",")))
    if unknown := [name for name in found if name not in known]:
      raise argparse.ArgumentTypeError(
        f"there is no {unknown[0]!r}; expected some of {','.join(known)}"
      )
    return found

  return names


def output_file(text: str) -> str:
  """The type of an option: where to write at the end. Its folder is made at once."""
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


def run(main: Callable[[], None]) -> int:
  """Runs a benchmark; returns the exit status. Ctrl-C is one line, not a traceback."""
  try:
    main()
  except KeyboardInterrupt:
    print("Stopped before the end.", file=sys.stderr)
    return 130
  return 0
