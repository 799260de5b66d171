"""Tables in Markdown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TypeVar

Record = TypeVar("Record")


def table(
  header: Iterable[str], rows: Iterable[Iterable[str]], *, left: Container[int] = (0,)
) -> str:
  """A table of cells; columns except `left` are aligned to the right.

  Example:
    >>> print(table(["name", "n"], [["a", "1"]]))
    | name | n |
    |---|---:|
    | a | 1 |
  """
  titles = list(header)
  rule = "".join("---|" if i in left else "---:|" for i in range(len(titles)))
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
  columns = [i for i, title in enumerate(titles) if title in left]
  rows = ([record.get(title, "") for title in titles] for record in records)
  return table(titles, rows, left=columns) if records else ""


def print_table(
  records: Iterable[Record],
  row: Callable[[Record], Mapping[str, str] | None],
  *,
  left: Container[str],
) -> list[Record]:
  """Prints each record's row, if it has one, as soon as it is made; returns all records.

  Rows are printed above a progress bar if there is one.
  """
  import tqdm  # imported late: benchmarks.accelerator runs without it

  made, printed = [], False
  for record in records:
    made.append(record)
    if cells := row(record):
      lines = record_table([cells], left=left).splitlines()
      tqdm.tqdm.write("\n".join(lines[2:] if printed else lines))
      sys.stdout.flush()
      printed = True
  return made


def _line(cells: Iterable[str]) -> str:
  return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
