"""Tables in Markdown."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Mapping, Sequence


def table(
  header: Iterable[str], rows: Iterable[Iterable[str]], *, right: Container[int] = ()
) -> str:
  """A table of cells; the columns `right` are aligned to the right.

  Example:
    >>> print(table(["name", "n"], [["a", "1"]], right=[1]))
    | name | n |
    |---|---:|
    | a | 1 |
  """
  titles = list(header)
  rule = "".join("---:|" if i in right else "---|" for i in range(len(titles)))
  return "\n".join([_line(titles), f"|{rule}", *map(_line, rows)])


def record_table(records: Sequence[Mapping[str, str]], *, left: Container[str]) -> str:
  """A table of records; columns except `left` are aligned to the right. "" for no record.

  Example:
    >>> print(record_table([{"name": "a", "n": "1"}, {"name": "b"}], left=["name"]))
    | name | n |
    |---|---:|
    | a | 1 |
    | b |  |
  """
  titles = list(dict.fromkeys(title for record in records for title in record))
  right = [i for i, title in enumerate(titles) if title not in left]
  rows = ([record.get(title, "") for title in titles] for record in records)
  return table(titles, rows, right=right) if records else ""


def print_table(records: Iterable[Mapping[str, str]], *, left: Container[str]):
  """Prints each record as soon as it is made, above a progress bar if there is one."""
  import tqdm

  for number, record in enumerate(records):
    lines = record_table([record], left=left).splitlines()
    tqdm.tqdm.write("\n".join(lines[2:] if number else lines))
    sys.stdout.flush()


def _line(cells: Iterable[str]) -> str:
  return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
