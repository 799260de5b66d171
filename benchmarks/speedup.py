"""The speed-up of packing in training, and its share of the machine's peak.

    python -m benchmarks.speedup
    python -m benchmarks.speedup --row-lengths 128 --size tiny --rounds 5
    python -m benchmarks.speedup --size base --tokens 65536     on an accelerator

Sequences have the lengths of the paper's histograms of Wikipedia. Packed rows are drawn
from the optimal plan. Unpacked rows hold one sequence each, a random part of those in the
packed rows, and are trained by an ordinary model, with a padding mask, the row's positions,
one [CLS] and the mean loss over tokens. Both kinds are whole training steps with LAMB and
the same number of rows, from batches already on the device. Each round has sequences of its
own and runs every step and products of large matrices, in random order; each is awaited.
Ratios are taken per round and reported as medians and quartiles.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

import jax

import packing
from benchmarks import command
from lab.machine import machine_and_device
from lab.options import add, run, some_of
from lab.statistics import spread
from lab.table import print_table, record_table
from lab.timing.speedup import KINDS, measure
from lab.timing.steps import MEASURED, not_run_lines
from launch.record.flops import peak_of
from model import IMPLEMENTATIONS

# By row length, the packing factor and the realised speed-up in the paper: Table 2,
# BERT-base, and for 512 tokens Table 1, NNLSHP at depth 3.
PAPER = {128: (1.17, 1.15), 384: (1.70, 1.68), 512: (2.00, 1.913)}


def speedup_row(record: dict) -> dict[str, str] | None:
  """A row of the table; None if the implementation did not run."""
  if "not_run" in record:
    return None
  model = {kind: record["flops"][kind]["model"] for kind in KINDS}
  paper = "not printed"
  if record["row_length"] in PAPER:
    factor, realised = PAPER[record["row_length"]]
    paper = f"{factor:.2f}, {realised}, {realised / factor:.3f}"
  return {
    "S": str(record["row_length"]),
    "attention": record["attention"],
    "p, plan": f"{record['plan_factor']:.3f}",
    "p, batches": f"{record['batch_factor']:.3f}",
    "speed-up": spread(record["speedup"], 3),
    "over p of the batches": spread(record["over_factor"], 3),
    "operations, unpacked : packed": f"{model['unpacked'] / model['packed']:.3f}",
    "beside the fastest unpacked": spread(record["over_fastest"], 3),
    "unpacked : itself": spread(record["noise"], 3),
    "paper: p, speed-up, ratio": paper,
  }


def _share_row(record: dict, kind: str) -> dict[str, str]:
  """A row of the table of shares: a step's operations, and its share of the peak."""
  model, seconds = record["flops"][kind]["model"], record["seconds"][kind]["median"]
  return {
    "S": str(record["row_length"]),
    "attention": record["attention"],
    "step": kind,
    "GFLOP": f"{model / 1e9:.2f}",
    "seconds": f"{seconds:.4f}",
    "GFLOP/s": f"{model / seconds / 1e9:,.1f}",
    "product, GFLOP/s": f"{record['product_rate']['median'] / 1e9:,.1f}",
    "share": spread(record["share"][kind], 3),
  }


def main(arguments: list[str] | None = None):
  parser = command.make_parser(__doc__, "speedup")
  names = [name for name in packing.histogram_names() if name.startswith("wikipedia_")]
  known = [name.removeprefix("wikipedia_") for name in names]
  about, usual = f"some of {','.join(known)}", ["128", "384", "512"]
  add(parser, "--row-lengths", usual, about, type=some_of(known))
  command.add_size(parser)
  add(parser, "--depth", 3, "most sequences in a pack")
  add(parser, "--tokens", 4096, "most tokens in a step, B x S")
  add(parser, "--rounds", 15)
  some = some_of(IMPLEMENTATIONS)
  add(parser, "--implementations", list(MEASURED), "of attention", type=some)
  command.add_dtype(parser)
  options = parser.parse_args(arguments)
  longest = max(map(int, options.row_lengths))
  if options.tokens < longest:
    parser.error(f"--tokens is {options.tokens}; expected at least a row, {longest}")
  peak = peak_of(jax.devices()[:1], dtype=options.dtype)
  machine = machine_and_device()
  print(machine)
  print(
    f"Peak, as in training's logs: {peak.flops / 1e9:,.0f} GFLOP/s ({peak.source})\n\n"
    f"BERT-{options.size}, {options.dtype}, {options.tokens} tokens a step at most, "
    f"depth {options.depth}, {options.rounds} rounds, wall-clock time\n\n"
    "Realised speed-up\n"
  )
  left = ("attention", "paper: p, speed-up, ratio")
  records = print_table(_measure_all(options), speedup_row, left=left)
  shares = [_share_row(x, kind) for x in records if "flops" in x for kind in KINDS]
  rows = [row for record in records if (row := speedup_row(record))]
  tables = {"speed-up": rows, "share": shares}
  command.write(
    options, machine, tables=tables, peak=dataclasses.asdict(peak), steps=records
  )
  if reasons := not_run_lines(records):
    print(f"\n{reasons}")
  shown = record_table(shares, left=("attention", "step"))
  print(f"\nShare of the machine's peak\n\n{shown}")


def _measure_all(options) -> Iterator[dict[str, Any]]:
  """The records of each row length."""
  for row_length in options.row_lengths:
    histogram = packing.load_histogram(f"wikipedia_{row_length}")
    plan = packing.pack(
      histogram, algorithm="optimal", max_sequences_per_pack=options.depth
    )
    yield from measure(
      plan,
      size=options.size,
      dtype=options.dtype,
      implementations=options.implementations,
      rows=options.tokens // plan.row_length,
      rounds=options.rounds,
    )


if __name__ == "__main__":
  sys.exit(run(main))
