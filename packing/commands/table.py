"""The results of algorithms as a table, in the columns of the paper's tables."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

FORMATS = ("table", "markdown", "json")


@dataclasses.dataclass(frozen=True)
class Result:
  """The result of one algorithm at one depth; a column that does not apply is None.

  Attributes:
    algorithm: the name of the algorithm. For the least-squares algorithms, "... before" is
      the rounded plan, in which some slots are for sequences that do not exist.
    depth: the depth limit; "max" for no limit.
    packing_depth: the most sequences in a pack of the plan.
    num_strategies: the number of different packs.
    num_packs: the number of packs.
    num_tokens: tokens of all rows, padding included.
    num_padding_tokens: how many of them are padding.
    efficiency: real tokens / all tokens, a fraction.
    packing_factor: sequences / packs.
    lower_bound: a proven lower bound on the packs of any plan.
    gap: packs above the bound.
    seconds: time to make the plan.
    note: why there is no plan.
  """

  algorithm: str
  depth: int | str
  packing_depth: int | None = None
  num_strategies: int | None = None
  num_packs: int | None = None
  num_tokens: int | None = None
  num_padding_tokens: int | None = None
  efficiency: float | None = None
  packing_factor: float | None = None
  lower_bound: int | None = None
  gap: int | None = None
  seconds: float | None = None
  note: str = ""


_HEADERS = {
  "algorithm": "algorithm",
  "depth": "depth",
  "packing_depth": "used",
  "num_strategies": "strategies",
  "num_packs": "packs",
  "num_tokens": "tokens",
  "num_padding_tokens": "padding tokens",
  "efficiency": "efficiency (%)",
  "packing_factor": "packing factor",
  "lower_bound": "bound",
  "gap": "gap",
  "seconds": "seconds",
}


def render(results: Sequence[Result], *, style: str = "table") -> str:
  """Formats results as "table" for a terminal, "markdown" or "json".

  JSON has all digits, and efficiency as a fraction. The other two have efficiency in
  percent, as in the papers.
  """
  records = [dataclasses.asdict(result) for result in results]
  if style == "json":
    return json.dumps(records, indent=1)
  cells = [[_cell(record, name) for name in _HEADERS] for record in records]
  titles = list(_HEADERS.values())
  widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
  table = [_line(line, widths) for line in [titles, *cells]]
  if style == "markdown":
    rule = ["-" * w if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    lines = [f"| {' | '.join(parts)} |" for parts in [table[0], rule, *table[1:]]]
  else:
    lines = ["  ".join(parts).rstrip() for parts in table]
  notes = [f"{r.algorithm} at depth {r.depth}: {r.note}" for r in results if r.note]
  return "\n".join(lines + ([""] if notes else []) + notes)


def _cell(record: dict, name: str) -> str:
  value = record[name]
  if value is None:
    return "-"
  if name == "efficiency":
    return f"{100 * value:.3f}"
  if name in ("packing_factor", "seconds"):
    return f"{value:.3f}"
  return str(value)


def _line(cells: list[str], widths: list[int]) -> list[str]:
  return [
    cell.ljust(width) if i == 0 else cell.rjust(width)
    for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
  ]
