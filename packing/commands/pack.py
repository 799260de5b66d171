"""python -m packing pack: makes one plan, with its certificate and files."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from packing import files
from packing.algorithms.progress import Progress
from packing.commands import arguments
from packing.errors import short_repr
from packing.pack import ALGORITHMS, check_options, pack
from packing.plan import Plan

HELP = "make one plan, and say how far it is from the proven minimum"
EXAMPLES = """examples:
  python -m packing pack --histogram wikipedia_512 --max-sequences-per-pack 3
  python -m packing pack --lengths lengths.npy --max-sequence-length 512 \\
      --algorithm optimal --output plan.json
  python -m packing pack --histogram squad_1_1_384 --algorithm nnlshp \\
      --max-sequences-per-pack 3 --option residual_offset=64 --option residual_weight=0.002
"""


def add_arguments(command: argparse.ArgumentParser):
  arguments.add_lengths(command)
  arguments.add_geometry(command)
  command.add_argument(
    "--algorithm",
    metavar="A",
    default="auto",
    help=f"one of {', '.join(ALGORITHMS)} (default: auto)",
  )
  command.add_argument(
    "--max-sequences-per-pack",
    metavar="M",
    default="max",
    help="depth limit; max for no limit, auto for the smallest limit that costs at most "
    "0.5 %% more packs (default: %(default)s)",
  )
  command.add_argument(
    "--option",
    metavar="NAME=VALUE",
    action="append",
    default=[],
    help="option of the algorithm, such as effort=30 (may be repeated)",
  )
  command.add_argument("--output", metavar="F.json", help="write the plan to this file")
  command.add_argument("--json", action="store_true", help="print one JSON object")


def run(options) -> str:
  """Makes and writes the plan; returns the text to print."""
  # Reading lengths may take long. Depth, names of options, seed and output file are checked
  # before it; `pack` checks the rest.
  limit = options.max_sequences_per_pack
  flag = "--max-sequences-per-pack"
  depth: int | str | None = "auto"
  if limit != "auto":
    depth = arguments.parse_depth(flag, limit, otherwise="max, or auto")
  own: dict[str, Any] = dict(map(arguments.parse_option, options.option))
  check_options(options.algorithm, own)
  geometry: dict[str, Any] = arguments.geometry(options)
  if options.output is not None:
    files.check_writable(options.output)
  histogram = arguments.read(options)
  start = time.perf_counter()
  with Progress() as progress:
    progress.step(f"{options.algorithm} at depth {limit}")
    plan = pack(
      histogram,
      algorithm=options.algorithm,
      max_sequences_per_pack=depth,
      progress=progress,
      **geometry,
      **own,
    )
  seconds = time.perf_counter() - start
  if options.output is not None:
    plan.save(options.output)
  if progress.stopped:
    options.status = 130
    print(
      f"interrupted: the best plan so far has {plan.num_packs:,} packs; at least "
      f"{plan.lower_bound:,} are needed.",
      file=sys.stderr,
    )
  if options.json:
    return json.dumps(_summary(plan) | {"seconds": seconds})
  details = [
    f"{name}: {short_repr(value) if isinstance(value, list) else value}"
    for name, value in plan.details.items()
  ]
  return "\n".join([str(plan.certificate()), *details, f"seconds: {seconds:.3f}"])


def _summary(plan: Plan) -> dict:
  depth = plan.max_sequences_per_pack
  return {
    "algorithm": plan.algorithm,
    "max_sequence_length": plan.histogram.max_sequence_length,
    "row_length": plan.row_length,
    "max_sequences_per_pack": "max" if depth == plan.row_length else depth,
    "length_multiple": plan.length_multiple,
    "separator_tokens": plan.separator_tokens,
    "num_sequences": plan.num_sequences,
    "num_packs": plan.num_packs,
    "lower_bound": plan.lower_bound,
    "gap": plan.gap,
    "num_strategies": plan.num_strategies,
    "num_tokens": plan.num_row_tokens,
    "num_real_tokens": plan.histogram.num_tokens,
    "num_padding_tokens": plan.num_padding_tokens,
    "efficiency": plan.efficiency,
    "packing_factor": plan.packing_factor,
    "packing_depth": plan.packing_depth,
    "histogram_sha256": plan.histogram.sha256,
    "details": plan.details,
  }
