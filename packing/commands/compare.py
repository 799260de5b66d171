"""python -m packing compare: algorithms side by side."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from typing import Any

from packing.algorithms.progress import Progress
from packing.batches import sorted_batches
from packing.commands import arguments
from packing.commands.table import Result, table
from packing.errors import InputError, UnsolvedError, check_integer
from packing.histogram import Histogram
from packing.pack import ALGORITHMS, check_options, pack
from packing.problem import Geometry

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
    raise InputError(f"There is no algorithm; expected some of {', '.join(ALGORITHMS)}.")
  depths = [arguments.parse_depth(text.strip()) for text in options.depths.split(",")]
  for name in algorithms:
    if name != "sorted":
      check_options(name, {})
  geometry: dict[str, Any] = arguments.geometry(options)
  seed = geometry.pop("seed")
  check_integer("batch_size", options.batch_size, at_least=1)
  histogram = arguments.read(options)
  for depth in depths:
    Geometry.for_histogram(histogram, max_sequences_per_pack=depth, **geometry)
  results: list[Result] = []
  with Progress() as progress:
    for name in algorithms:
      for depth in [1] if name in ("none", "sorted") else depths:
        progress.step(f"{name} at depth {'max' if depth is None else depth}")
        if name == "sorted":
          multiple = options.length_multiple
          results.append(_sorted_result(histogram, options.batch_size, multiple))
        else:
          results += _plan_results(histogram, name, depth, seed=seed, **geometry)
  if all(result.note for result in results):
    raise InputError(results[0].note)
  best: dict[int | str, int] = {}
  for r in results:
    best[r.depth] = max(best.get(r.depth, 0), r.lower_bound or 0)
  results = [
    dataclasses.replace(r, lower_bound=best[r.depth], gap=r.num_packs - best[r.depth])
    if r.lower_bound and r.num_packs
    else r
    for r in results
  ]
  if options.json:
    return json.dumps([dataclasses.asdict(result) for result in results], indent=1)
  return table(results)


def _plan_results(histogram, name, depth, **options) -> list[Result]:
  limit: int | str = "max" if depth is None else depth
  start = time.perf_counter()
  try:
    plan = pack(histogram, algorithm=name, max_sequences_per_pack=depth, **options)
  except UnsolvedError as error:
    return [Result(name, limit, note=str(error))]
  seconds = time.perf_counter() - start
  columns: dict[str, Any] = {
    "depth": limit,
    "num_tokens": plan.num_row_tokens,
    "seconds": seconds,
  }
  for field in dataclasses.fields(Result):  # the others are attributes of the plan
    if hasattr(plan, field.name):
      columns[field.name] = getattr(plan, field.name)
  result = Result(**columns)
  if "num_packs_before" not in plan.details:
    return [result]
  packs = plan.details["num_packs_before"]
  before = dataclasses.replace(
    result,
    algorithm=f"{name} before",
    num_strategies=plan.details["num_strategies_before"],
    num_packs=packs,
    num_tokens=packs * plan.row_length,
    num_padding_tokens=packs * plan.row_length - histogram.num_tokens,
    efficiency=histogram.num_tokens / (packs * plan.row_length),
    packing_factor=plan.num_sequences / packs,
  )
  return [before, result]


def _sorted_result(histogram: Histogram, batch_size: int, length_multiple: int) -> Result:
  start = time.perf_counter()
  batches = sorted_batches(
    histogram, batch_size=batch_size, length_multiple=length_multiple
  )
  return Result(
    algorithm=f"sorted/{batch_size}",
    depth=1,
    packing_depth=1,
    num_tokens=batches.num_tokens,
    num_padding_tokens=batches.num_padding_tokens,
    efficiency=batches.efficiency,
    packing_factor=batches.packing_factor,
    seconds=time.perf_counter() - start,
  )
