"""Writes the tables of published measurements into the documents.

  python -m lab.pages                          # from docs/measured
  python -m lab.pages results/packing.json     # first copies these tables to docs/measured

A table of a page follows a comment with its file in docs/measured, its name there, and the
columns that the page shows:

  <!-- table packing.json, step: lengths | packs | slowest -->
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import sys
from collections.abc import Mapping, Sequence

from lab import options
from lab.table import record_table
from packing.files import write_json, write_text

ROOT = pathlib.Path(__file__).parents[1]
MEASURED = ROOT / "docs" / "measured"
_TABLE = re.compile(r"(<!-- table (\S+), (.+?): (.+?) -->\n)(?:\n(?:\|.*\n)+)?")
Tables = Mapping[str, Sequence[Mapping[str, str]]]  # by name, records


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  parser = options.make_parser(__doc__, "lab.pages")
  parser.add_argument("results", nargs="*", type=_results, help="of --json or a study")
  for path, tables in parser.parse_args(arguments).results:
    write_json(MEASURED / path.name, tables)
  for page in sorted(ROOT.glob("docs/*.md")):
    try:
      filled = fill(text := page.read_text())
    except (OSError, LookupError) as error:
      parser.error(f"{page.name} shows a table or a column that is not published: {error}")
    if filled != text:
      write_text(page, filled)
      print(f"wrote {page.relative_to(ROOT)}")
  return 0


def fill(page: str) -> str:
  """A page, with the published tables after their comments.

  Raises:
    KeyError: docs/measured has no such table, or the table no such column.
  """

  def one(found: re.Match) -> str:
    comment, name, table, columns = found.groups()
    records = published(name)[table]
    names = columns.split(" | ")
    rows = [{column: record[column] for column in names} for record in records]
    return f"{comment}\n{record_table(rows, left=_words(rows))}\n"

  return _TABLE.sub(one, page)


def published(name: str) -> Tables:
  """The tables of a file in docs/measured."""
  return json.loads((MEASURED / name).read_text())


def _words(rows: Sequence[Mapping[str, str]]) -> set[str]:
  """The columns without a number."""
  return {name for name in rows[0] if not any(re.match(r"[-+\d]", x[name]) for x in rows)}


def _results(text: str) -> tuple[pathlib.Path, Tables]:
  """The type of an argument: a file of results, and its tables."""
  try:
    return pathlib.Path(text), json.loads(pathlib.Path(text).read_text())["tables"]
  except (OSError, ValueError, LookupError, TypeError) as error:
    raise argparse.ArgumentTypeError(f"{text} has no tables: {error!r}") from None


if __name__ == "__main__":
  sys.exit(main())
