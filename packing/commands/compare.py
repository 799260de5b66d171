"""Algorithms side by side, in the columns of the paper's tables."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import time
from collections.abc import Sequence

from packing.algorithms.progress import Progress
from packing.errors import InputError, UnsolvedError, check_integer
from packing.histogram import Histogram
from packing.pack import ALGORITHMS, check_options, pack
from packing.problem import Geometry
from packing.sorting import sorted_batches

Depth = int | None

FORMATS = ("table", "markdown", "csv", "json")


@dataclasses.dataclass(frozen=True)
class Row:
  """One algorithm at one depth; None where a column does not apply.

  Attributes:
    algorithm: its name; for the least-squares algorithms "... before" is the plan as
      rounded, with sequences that do not exist in its empty slots.
    depth: the limit; "max" for none.
    packing_depth: most sequences in a pack.
    num_strategies: different packs.
    num_packs: packs.
    num_tokens: tokens of all rows, padding included.
    num_padding_tokens: of them, padding.
    efficiency: real tokens / all tokens, a fraction.
    packing_factor: sequences / packs.
    lower_bound: packs that any plan needs; proven.
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


def compare(
  histogram: Histogram,
  *,
  algorithms: Sequence[str],
  depths: Sequence[Depth],
  row_length: int | None = None,
  length_multiple: int = 1,
  separator_tokens: int = 0,
  seed: int = 0,
  batch_size: int = 256,
  options: dict[str, dict] | None = None,
  progress: Progress | None = None,
) -> list[Row]:
  """Runs algorithms at depths.

  The bound in each row is the best that any algorithm of the run proved at that depth:
  with `optimal` among them, every gap is to the proven minimum.

  Args:
    histogram: the lengths.
    algorithms: names from `packing.ALGORITHMS`, and "sorted" for sorted batching.
    depths: limits; None for no limit. "none" and "sorted" run once.
    row_length, length_multiple, separator_tokens, seed: as for `packing.pack`.
    batch_size: of sorted batching.
    options: by algorithm, its options.
    progress: told about each row.

  Returns:
    Rows in the order of the arguments. What an algorithm cannot solve, such as a depth
    that does not fit in memory, is a row with a note.

  Raises:
    InputError: no algorithm, an unknown algorithm or option, or arguments out of range.
  """
  if not algorithms:
    raise InputError(f"There is no algorithm; expected some of {', '.join(ALGORITHMS)}.")
  for name in algorithms:
    given = (options or {}).get(name, {})
    if name != "sorted":
      check_options(name, given)
    elif given:
      raise InputError(f"sorted has no option {next(iter(given))!r}; expected none.")
  check_integer("seed", seed, at_least=0)
  for depth in depths:
    Geometry.for_histogram(
      histogram,
      row_length=row_length,
      max_sequences_per_pack=depth,
      length_multiple=length_multiple,
      separator_tokens=separator_tokens,
    )
  jobs = [
    (name, depth)
    for name in algorithms
    for depth in ([1] if name in ("none", "sorted") else depths)
  ]
  rows = []
  for name, depth in jobs:
    if progress is not None:
      progress.step(f"{name} at depth {'max' if depth is None else depth}")
    if name == "sorted":
      rows.append(_sorted_row(histogram, batch_size, length_multiple))
    else:
      rows += _plan_rows(
        histogram,
        name,
        depth,
        (options or {}).get(name, {}),
        row_length=row_length,
        length_multiple=length_multiple,
        separator_tokens=separator_tokens,
        seed=seed,
      )
    if progress is not None:
      progress.done()
  if all(row.note for row in rows):
    raise InputError(rows[0].note)
  best = {
    depth: max(r.lower_bound for r in rows if r.depth == depth and r.lower_bound)
    for depth in {r.depth for r in rows if r.lower_bound}
  }
  return [
    dataclasses.replace(r, lower_bound=best[r.depth], gap=r.num_packs - best[r.depth])
    if r.lower_bound and r.num_packs
    else r
    for r in rows
  ]


def _plan_rows(histogram, name, depth, options, **geometry) -> list[Row]:
  limit: int | str = "max" if depth is None else depth
  start = time.perf_counter()
  try:
    plan = pack(
      histogram, algorithm=name, max_sequences_per_pack=depth, **geometry, **options
    )
  except UnsolvedError as error:
    return [Row(name, limit, note=str(error))]
  seconds = time.perf_counter() - start
  row = Row(
    algorithm=name,
    depth=limit,
    packing_depth=plan.packing_depth,
    num_strategies=plan.num_strategies,
    num_packs=plan.num_packs,
    num_tokens=plan.num_row_tokens,
    num_padding_tokens=plan.num_padding_tokens,
    efficiency=plan.efficiency,
    packing_factor=plan.packing_factor,
    lower_bound=plan.lower_bound,
    gap=plan.gap,
    seconds=seconds,
  )
  if "num_packs_before" not in plan.details:
    return [row]
  packs = plan.details["num_packs_before"]
  before = dataclasses.replace(
    row,
    algorithm=f"{name} before",
    num_strategies=plan.details["num_strategies_before"],
    num_packs=packs,
    num_tokens=packs * plan.row_length,
    num_padding_tokens=packs * plan.row_length - histogram.num_tokens,
    efficiency=histogram.num_tokens / (packs * plan.row_length),
    packing_factor=plan.num_sequences / packs,
  )
  return [before, row]


def _sorted_row(histogram: Histogram, batch_size: int, length_multiple: int) -> Row:
  start = time.perf_counter()
  batches = sorted_batches(
    histogram, batch_size=batch_size, length_multiple=length_multiple
  )
  return Row(
    algorithm=f"sorted/{batch_size}",
    depth=1,
    packing_depth=1,
    num_tokens=batches.num_tokens,
    num_padding_tokens=batches.num_padding_tokens,
    efficiency=batches.efficiency,
    packing_factor=batches.packing_factor,
    seconds=time.perf_counter() - start,
  )


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


def render(rows: Sequence[Row], *, style: str = "table") -> str:
  """Rows as text: "table" for a terminal, "markdown", "csv" or "json".

  Numbers in CSV and JSON are in full, and efficiency is a fraction; in the other two it
  is in percent, as the papers print it.
  """
  if style not in FORMATS:
    raise InputError(f"format is {style!r}; expected one of {', '.join(FORMATS)}.")
  records = [dataclasses.asdict(row) for row in rows]
  if style == "json":
    return json.dumps(records, indent=1)
  if style == "csv":
    text = io.StringIO()
    writer = csv.DictWriter(text, [*_HEADERS, "note"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().rstrip("\n")
  cells = [[_cell(record, name) for name in _HEADERS] for record in records]
  titles = list(_HEADERS.values())
  widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
  table = [_line(line, widths) for line in [titles, *cells]]
  if style == "markdown":
    rule = ["-" * w if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    lines = [f"| {' | '.join(parts)} |" for parts in [table[0], rule, *table[1:]]]
  else:
    lines = ["  ".join(parts).rstrip() for parts in table]
  notes = [f"{r.algorithm} at depth {r.depth}: {r.note}" for r in rows if r.note]
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
