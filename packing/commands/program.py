"""How a command line reports a mistake and prints its result."""

from __future__ import annotations

import argparse
import sys


class Parser(argparse.ArgumentParser):
  """Reports a wrong command line in one line that names --help; exit status 2."""

  def error(self, message):
    message = " ".join(message.split()).rstrip(".")
    self.exit(2, f"error: {message}. See {self.prog} --help.\n")


def positive(text: str) -> int:
  """Parses a whole number of at least 1; for the `type` of an argparse option.

  Example:
    >>> positive("3")
    3
    >>> positive("0")
    Traceback (most recent call last):
    argparse.ArgumentTypeError: expected a whole number of at least 1, found 0
  """
  if not text.isdecimal() or int(text) < 1:
    raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {text}")
  return int(text)


def print_result(text: str, status: int = 0) -> int:
  """Prints a result; returns `status`, or 1 if standard output cannot be written."""
  try:
    print(text, flush=True)
  except BrokenPipeError:
    sys.stderr.close()  # the reader stopped reading
    return 1
  except OSError as error:
    sys.stdout = None  # nothing more can be written
    return fail(1, f"Cannot write the result: {error.strerror}.")
  return status


def fail(status: int, message: str) -> int:
  """Prints an error in one line; returns the exit status."""
  print(f"error: {' '.join(message.split())}", file=sys.stderr)
  return status
