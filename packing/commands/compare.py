"""python -m packing compare: algorithms side by side."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from packing.algorithms.progress import Progress
from packing.batches import sorted_batches
from packing.commands import arguments
from packing.errors import InputError, UnsolvedError, check, check_integer
from packing.histogram import Histogram
from packing.pack import ALGORITHMS, pack
from packing.problem import Geometry

# Headers by column. "ALGORITHM before" is the rounded plan of a least-squares algorithm, in
# which some slots are for sequences that do not exist. What does not apply is None.
_COLUMNS = {
  "algorithm": "algorithm",
  "depth": "depth",  # the limit; "max" for none
  "packing_depth": "used",  # the most sequences in a pack
  "num_strategies": "strategies",  # different packs
  "num_packs": "packs",
  "num_tokens": "tokens",  # of all rows, padding included
  "num_padding_tokens": "padding tokens",
  "efficiency": "efficiency (%)",  # real tokens / all tokens; a fraction in JSON
  "packing_factor": "packing factor",  # sequences / rows that the tokens fill
  "lower_bound": "bound",  # proven, on the packs of any plan
  "gap": "gap",  # packs above the bound
  "seconds": "seconds",  # to make the plan
  "note": "",  # why there is no plan; printed below the table
}
HELP = "run algorithms side by side at several depths"
EXAMPLES = """examples:
  python -m packing compare --histogram wikipedia_512 --algorithms lpfhp \\
      --depths 1,2,3,4,8,16,max
  python -m packing compare --lengths dataset.parquet --max-sequence-length 512 \\
      --algorithms none,sorted,greedy,spfhp,lpfhp,optimal
"""


def add_arguments(command: argparse.ArgumentParser):
  arguments.add_lengths(command)
  arguments.add_geometry(command)
  command.add_argument(
    "--algorithms",
    metavar="A,B,...",
    default="none,sorted,spfhp,lpfhp,optimal",
    help=f"some of sorted, {', '.join(ALGORITHMS)} (default: %(default)s)",
  )
  command.add_argument(
    "--depths",
    metavar="M,M,...",
    default="2,3,4,8,max",
    help="depth limits; max for no limit (default: %(default)s)",
  )
  about = "sequences in a batch of sorted batching (default: 256)"
  arguments.add_integer(command, "--batch-size", "B", about, default=256)
  command.add_argument("--json", action="store_true", help="print a JSON list")


def run(options) -> str:
  """Compares the algorithms; returns the text to print.

  The bound of each result is the best that any of the algorithms proved at that depth. If
  an algorithm cannot solve a problem, for example because it needs too much memory, its
  result has a note instead of a plan. "none" and "sorted" run once.
  """
  algorithms = [name.strip() for name in options.algorithms.split(",") if name.strip()]
  if not algorithms:
    raise InputError(
      f"--algorithms is empty; expected some of sorted, {', '.join(ALGORITHMS)}."
    )
  depths = [
    arguments.parse_depth("A limit of --depths", text.strip())
    for text in options.depths.split(",")
  ]
  known = ("sorted", *ALGORITHMS)
  for name in algorithms:
    check(name in known, "A name in --algorithms", name, f"one of {', '.join(known)}")
  geometry: dict[str, Any] = arguments.geometry(options)
  seed = geometry.pop("seed")
  check_integer("batch_size", options.batch_size, at_least=1)
  histogram = arguments.read(options)
  row = 0
  for depth in depths:
    one = Geometry.for_histogram(histogram, max_sequences_per_pack=depth, **geometry)
    row = one.row_length  # the same at each depth
  results: list[dict[str, Any]] = []
  with Progress() as progress:
    for name in algorithms:
      for depth in [1] if name in ("none", "sorted") else depths:
        progress.step(f"{name} at depth {'max' if depth is None else depth}")
        if name == "sorted":
          batch, multiple = options.batch_size, options.length_multiple
          results.append(_sorted_result(histogram, batch, multiple, row))
        else:
          results += _plan_results(histogram, name, depth, seed=seed, **geometry)
  if all(result["note"] for result in results):
    raise InputError(results[0]["note"])
  best: dict[int | str, int] = {}
  for r in results:
    best[r["depth"]] = max(best.get(r["depth"], 0), r["lower_bound"] or 0)
  for r in results:
    if r["lower_bound"] and r["num_packs"]:
      r |= {"lower_bound": best[r["depth"]], "gap": r["num_packs"] - best[r["depth"]]}
  return json.dumps(results, indent=1) if options.json else _table(results)


def _result(algorithm: str, source: Any = None, **columns: Any) -> dict[str, Any]:
  """A result; columns that are not given are attributes of the source, or None."""
  found = {name: getattr(source, name, None) for name in _COLUMNS}
  return found | {"note": ""} | columns | {"algorithm": algorithm}


def _plan_results(histogram, name, depth, **options) -> list[dict[str, Any]]:
  limit: int | str = "max" if depth is None else depth
  start = time.perf_counter()
  try:
    plan = pack(histogram, algorithm=name, max_sequences_per_pack=depth, **options)
  except UnsolvedError as error:
    return [_result(name, depth=limit, note=str(error))]
  seconds = time.perf_counter() - start
  tokens = plan.num_row_tokens
  result = _result(name, plan, depth=limit, num_tokens=tokens, seconds=seconds)
  if "num_packs_before" not in plan.details:
    return [result]
  packs = plan.details["num_packs_before"]
  before = result | {
    "algorithm": f"{name} before",
    "num_strategies": plan.details["num_strategies_before"],
    "num_packs": packs,
    "num_tokens": packs * plan.row_length,
    "num_padding_tokens": packs * plan.row_length - histogram.num_tokens,
    "efficiency": histogram.num_tokens / (packs * plan.row_length),
    "packing_factor": plan.num_sequences / packs,
  }
  return [before, result]


def _sorted_result(
  histogram: Histogram, batch_size: int, multiple: int, row_length: int
) -> dict[str, Any]:
  """The result of sorted batches, with the packing factor of rows as long as the plans'."""
  start = time.perf_counter()
  batches = sorted_batches(histogram, batch_size=batch_size, length_multiple=multiple)
  seconds = time.perf_counter() - start
  factor = histogram.num_sequences * row_length / batches.num_tokens
  own = {"depth": 1, "packing_depth": 1, "seconds": seconds, "packing_factor": factor}
  return _result(f"sorted/{batch_size}", batches, **own)


def _table(results: list[dict[str, Any]]) -> str:
  """Results for a terminal, with efficiency in percent, as in the papers."""
  names = list(_COLUMNS)[:-1]
  lines = [[_COLUMNS[name] for name in names]]
  lines += [[_cell(name, result[name]) for name in names] for result in results]
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  printed = []
  for first, *others in lines:
    cells = [cell.rjust(w) for cell, w in zip(others, widths[1:], strict=True)]
    printed.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
  notes = [f"{r['algorithm']} at depth {r['depth']}: {r['note']}" for r in results]
  notes = [note for note, r in zip(notes, results, strict=True) if r["note"]]
  return "\n".join(printed + ([""] if notes else []) + notes)


def _cell(name: str, value: Any) -> str:
  if value is None:
    return "-"
  if name == "efficiency":
    return f"{100 * value:.3f}"
  return f"{value:.3f}" if name in ("packing_factor", "seconds") else str(value)
