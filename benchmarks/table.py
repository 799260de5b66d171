"""Tables in Markdown."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence


def table(
  header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()
) -> str:
  """A table in Markdown.

  Args:
    header: titles of the columns.
    rows: cells.
    right: columns that are aligned to the right.

  Example:
    >>> print(table(["name", "n"], [["a", "1"]], right=[1]))
    | name | n |
    |---|---:|
    | a | 1 |
  """
  return "\n".join(_lines(header, rows, right))


def print_table(
  header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()
):
  """Prints each row as soon as it is made, above a progress bar if there is one."""
  import tqdm

  for line in _lines(header, rows, right):
    tqdm.tqdm.write(line)
    sys.stdout.flush()


def _lines(
  header: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int]
) -> Iterator[str]:
  rule = "".join("---:|" if i in right else "---|" for i in range(len(header)))
  yield _line(header)
  yield f"|{rule}"
  yield from map(_line, rows)


def _line(cells: Iterable[str]) -> str:
  return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
