"""Writes the tables of published measurements into the documents.

  python -m lab.pages                            # from docs/measured
  python -m lab.pages results/packing_step.json  # first copies its tables to docs/measured

The file is that of a benchmark's --json or of a study. A table of a page follows a comment
with its file in docs/measured, its name there, and the columns that the page shows:

  <!-- table packing_step.json, step: lengths | pack_step | slowest -->
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
_TABLE = re.compile(r"(<!-- table (\S+), (.+?): (.+?) -->\n)(?:\n(?:\|.*\n)+)?")
Tables = Mapping[str, Sequence[Mapping[str, str]]]  # by name, records


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns the exit status. Writes nothing if a page refuses."""
  parser = options.make_parser(__doc__, "lab.pages")
  parser.add_argument("results", nargs="*", type=_results, help="of --json or a study")
  results = dict(parser.parse_args(arguments).results)
  texts = {page: page.read_text() for page in sorted(ROOT.glob("docs/*.md"))}
  shown: dict[str, set[str]] = {}  # tables, by file
  for found in _TABLE.finditer("".join(texts.values())):
    shown.setdefault(found[2], set()).add(found[3])
  if unknown := sorted(results.keys() - shown):
    parser.error(f"no page shows {unknown[0]}; the pages show {', '.join(sorted(shown))}")
  results = {
    name: {title: rows for title, rows in made.items() if title in shown[name]}
    for name, made in results.items()
  }
  tables = published(ROOT) | results
  filled = {}
  for page, text in texts.items():
    try:
      filled[page] = fill(text, tables)
    except KeyError as error:
      parser.error(f"{page.name} shows {error.args[0]}, which is not published")
  for name, made in results.items():
    write_json(ROOT / "docs" / "measured" / name, made)
  for page in [page for page in texts if filled[page] != texts[page]]:
    write_text(page, filled[page])
    print(f"wrote {page.relative_to(ROOT)}")
  return 0


def published(root: pathlib.Path = ROOT) -> dict[str, Tables]:
  """The tables of the files in docs/measured, by the file's name."""
  files = sorted(root.glob("docs/measured/*.json"))
  return {path.name: json.loads(path.read_text()) for path in files}


def fill(page: str, tables: Mapping[str, Tables]) -> str:
  """A page, with the tables after their comments.

  Raises:
    KeyError: a file, a table or a column that is not there.
  """

  def one(found: re.Match) -> str:
    comment, name, table, columns = found.groups()
    records, names = tables[name][table], columns.split(" | ")
    if missing := set(names) - {column for record in records for column in record}:
      raise KeyError(min(missing))
    rows = [{column: record.get(column, "") for column in names} for record in records]
    return f"{comment}\n{record_table(rows, left=_words(rows))}\n"

  return _TABLE.sub(one, page)


def _words(rows: Sequence[Mapping[str, str]]) -> set[str]:
  """The columns without a number."""
  return {name for name in rows[0] if not any(re.match(r"[-+\d]", x[name]) for x in rows)}


def _results(text: str) -> tuple[str, Tables]:
  """The type of an argument: a file of results; returns its name and its tables."""
  try:
    return pathlib.Path(text).name, json.loads(pathlib.Path(text).read_text())["tables"]
  except (OSError, ValueError, LookupError, TypeError) as error:
    raise argparse.ArgumentTypeError(f"{text} has no tables: {error!r}") from None


if __name__ == "__main__":
  sys.exit(main())
