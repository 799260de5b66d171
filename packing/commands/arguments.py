"""Arguments that the commands share."""

from __future__ import annotations

import argparse
import ast

import numpy as np

from packing.commands import inputs
from packing.errors import InputError, check, check_integer
from packing.histogram import (
  MAX_SEQUENCE_LENGTH,
  Histogram,
  histogram_names,
  load_histogram,
)


def add_lengths(command: argparse.ArgumentParser, *, positional: bool = False):
  """Adds the arguments that name the source of the lengths; `read` reads it."""
  group = command.add_argument_group("lengths, from one of")
  source = group.add_mutually_exclusive_group(required=True)
  if positional:
    source.add_argument("dataset", nargs="?", metavar="PATH", help="the same as --lengths")
  source.add_argument(
    "--histogram", metavar="NAME", help=f"built in: {', '.join(histogram_names())}"
  )
  source.add_argument(
    "--histogram-file",
    metavar="F.json",
    help='{"max_sequence_length": S, "counts": [S whole numbers]}',
  )
  source.add_argument(
    "--lengths",
    metavar="PATH",
    help=".npy or text file of integers, or - for standard input; CSV or TSV file with a "
    "column of integers; Arrow or Parquet file with a column of lists or of integers; a "
    "directory of those (Hugging Face save_to_disk, pipeline prepare)",
  )
  group.add_argument(
    "--column",
    metavar="NAME",
    help="column of a table (default: input_ids, tokens, length or the like)",
  )
  group.add_argument(
    "--split", metavar="NAME", help="split of a directory, or all (default: train)"
  )
  add_integer(
    group,
    "--max-sequence-length",
    "S",
    "longest length allowed, in tokens (default: for a folder written by pipeline prepare, "
    "its own; otherwise the longest length found)",
  )
  group.add_argument(
    "--too-long",
    choices=("refuse", "truncate", "drop"),
    default="refuse",
    help="what to do with sequences longer than S (default: refuse)",
  )


def read(options) -> Histogram:
  """Reads the lengths that the arguments of `add_lengths` name."""
  size = options.max_sequence_length
  if size is not None:
    size = check_integer(
      "--max-sequence-length", size, at_least=1, at_most=MAX_SEQUENCE_LENGTH
    )
  named = {"column": options.column, "split": options.split}
  if options.lengths is None:
    inputs.check_unnamed("A histogram", **named)
  if options.histogram is not None:
    histogram = load_histogram(options.histogram)
  elif options.histogram_file is not None:
    histogram = inputs.read_histogram(options.histogram_file)
  else:
    path = options.lengths
    lengths, source = inputs.read_lengths(path, **named)
    if size is not None:
      lengths = _shorten(lengths, size, options.too_long)
    if lengths.size == 0:
      raise InputError(f"{source} holds no sequence to pack; expected at least one.")
    longest = int(lengths.max())
    if longest > MAX_SEQUENCE_LENGTH:
      raise InputError(
        f"{source} has a sequence of {longest} tokens; expected at most "
        f"{MAX_SEQUENCE_LENGTH}. Set --max-sequence-length, and --too-long to truncate or "
        "drop."
      )
    most = max(longest, inputs.prepared_length(path))
    try:
      histogram = Histogram.from_lengths(lengths, max_sequence_length=most, source=source)
    except InputError as error:
      raise InputError(f"{path}: {error}") from error
  return histogram if size is None else _resize(histogram, size, options.too_long)


def _shorten(lengths: np.ndarray, size: int, too_long: str) -> np.ndarray:
  """Truncates or drops lengths above a maximum, also those too long for a histogram."""
  is_long = lengths > size
  if too_long == "drop":
    return lengths[~is_long]
  if too_long == "truncate" and is_long.any():  # else the size may not fit their type
    return np.minimum(lengths, size)
  return lengths


def _resize(histogram: Histogram, size: int, too_long: str) -> Histogram:
  """Changes the maximum sequence length of a histogram."""
  counts = np.zeros(size, np.int64)
  kept = histogram.counts[:size]
  counts[: kept.size] = kept
  beyond = int(histogram.counts[size:].sum())
  if beyond and too_long == "refuse":
    raise InputError(
      f"--max-sequence-length is {size}; the longest sequence has {histogram.longest} "
      f"tokens, and {beyond} of {histogram.num_sequences} are too long. Raise it to "
      f"{histogram.longest}, or set --too-long to truncate or drop."
    )
  if too_long == "truncate":
    counts[-1] += beyond
  return Histogram(counts, source=histogram.source)


def add_geometry(command: argparse.ArgumentParser):
  """Adds the arguments that `geometry` reads: the layout of a row, and the seed."""
  row = "tokens of a row, at least the longest sequence (default: S)"
  add_integer(command, "--row-length", "L", row)
  multiple = "round lengths up to a multiple of N (default: 1)"
  add_integer(command, "--length-multiple", "N", multiple, default=1)
  separator = "tokens between two sequences of a row (default: 0)"
  add_integer(command, "--separator-tokens", "T", separator, default=0)
  add_integer(command, "--seed", "N", "seed of random choices (default: 0)", default=0)


def geometry(options) -> dict[str, int]:
  """The keyword arguments of `pack` from the arguments of `add_geometry`."""
  check_integer("--seed", options.seed, at_least=0)
  names = ("row_length", "length_multiple", "separator_tokens", "seed")
  return {name: getattr(options, name) for name in names}


def add_integer(command, flag: str, metavar: str, text: str, *, default: int | None = None):
  """Adds an argument that takes a whole number."""
  command.add_argument(flag, metavar=metavar, type=int, default=default, help=text)


def parse_depth(flag: str, text: str, *, otherwise: str = "max") -> int | None:
  """Parses a depth limit; None for "max".

  Args:
    flag: the flag that has the limit, for the message.
    text: the limit.
    otherwise: the words that the flag takes instead of a number, for the message.

  Raises:
    InputError: neither a number nor "max".
  """
  if text == "max":
    return None
  try:
    depth = int(text)
  except ValueError:
    depth = 0
  check(depth >= 1, flag, text, f"a whole number of at least 1, or {otherwise}")
  return depth


def parse_option(text: str) -> tuple[str, object]:
  """Parses NAME=VALUE; the value is a Python literal, or otherwise a string."""
  name, separator, value = text.partition("=")
  check(bool(separator) and name.isidentifier(), "--option", text, "NAME=VALUE")
  try:
    return name, ast.literal_eval(value)
  except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
    return name, value  # all that literal_eval may raise
