"""The results of algorithms as a table, in the columns of the paper's tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


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


def table(results: Sequence[Result]) -> str:
  """Results as a table for a terminal, with efficiency in percent, as in the papers."""
  records = [dataclasses.asdict(result) for result in results]
  lines = [[*_HEADERS.values()], *([_cell(r, name) for name in _HEADERS] for r in records)]
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  printed = []
  for first, *others in lines:
    cells = [cell.rjust(w) for cell, w in zip(others, widths[1:], strict=True)]
    printed.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
  notes = [f"{r.algorithm} at depth {r.depth}: {r.note}" for r in results if r.note]
  return "\n".join(printed + ([""] if notes else []) + notes)


def _cell(record: dict, name: str) -> str:
  value = record[name]
  if value is None:
    return "-"
  if name == "efficiency":
    return f"{100 * value:.3f}"
  if name in ("packing_factor", "seconds"):
    return f"{value:.3f}"
  return str(value)
