"""Load balance: un-padding, sorting, bucketing and packing on 1 to 16,384 devices.

  python -m experiments.load_balance            # a quarter of an hour
  python -m experiments.load_balance --quick    # or: make balance
  python -m experiments.load_balance --workdir results/simulated \\
      --coefficients results/load_balance/coefficients.json

Training steps are timed on this machine, the cost of a step is fitted to them, and steps of
many such devices are simulated, with the lengths of Wikipedia. Then a step is sharded over
the cores of this machine, a device each, and is timed packed and un-padded. Writes
load_balance.md, load_balance.json, a picture, coefficients.json, and the same of the
sharded step (sharded_step.md, ...) to --workdir.

The paper's estimate (section E) is a part of the report, unpadding_estimate.
"""

from __future__ import annotations

import functools
import pathlib
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import tqdm

import packing
from experiments.load_balance import gumbel, measured, sharded, sharded_tables, tables
from experiments.load_balance.cost import Coefficients, Network, read_coefficients
from experiments.load_balance.simulation import Lengths, Way, simulate, summarise
from experiments.load_balance.ways import PADDING, UNPADDING, make_ways
from lab import command
from packing.files import write_json
from training.compiler import cores

HISTOGRAM = "wikipedia_512"
DEPTHS = (2, 3, "max")  # most sequences in a pack; the last is that of most tables
BATCH = 32  # sequences of a device, section E; the batch of most tables
MOST_DEVICES = 8  # of a measured step
FITTED = "coefficients.json"


class Scale(NamedTuple):
  """How much is simulated and measured."""

  devices: tuple[int, ...]
  batches: tuple[int, ...]  # sequences of a device
  sequences: int  # drawn for each number of devices and batch, about
  rounds: int  # of the steps to which the cost is fitted
  steps: int  # of each method, sharded over the cores of this machine


DEVICES = (1, 4, 16, 64, 256, 1024, 4096, 16384)
FULL = Scale(DEVICES, (1, 4, 16, BATCH, 64, 256), 2**22, 9, 24)
QUICK = Scale(DEVICES[:6], (4, BATCH), 2**18, 3, 8)


def simulate_grid(
  ways: Mapping[str, Way], lengths: Lengths, network: Network, scale: Scale
) -> list[dict[str, Any]]:
  """A row for each way, number of devices and batch; speed-ups are over the first way."""
  rows = []
  cells = [(n, b) for b in scale.batches for n in scale.devices]
  for n, b in tqdm.tqdm(cells, desc="simulating", disable=None):
    steps = simulate(ways, lengths, devices=n, batch=b, sequences=scale.sequences)
    summaries = {way: summarise(x, network) for way, x in steps.items()}
    base = next(iter(summaries.values())).sequences_per_second
    for way, summary in summaries.items():
      row = {"way": way, "devices": n, "batch": b} | summary._asdict()
      rows.append(row | {"speedup": summary.sequences_per_second / base})
  return rows


def check_paper_method(
  ways: Mapping[str, Way], lengths: Lengths, sequences: int
) -> dict[str, Any]:
  """Applies section E to the simulated speed-ups of 8 devices, and simulates the others.

  Returns the distributions, how well the first fits, and a row for each number of devices.
  """
  both = {name: ways[name] for name in (PADDING, UNPADDING)}
  speedups = {}
  for n in (2**k for k in range(gumbel.MOST.bit_length())):
    steps = simulate(both, lengths, devices=n, batch=BATCH, sequences=sequences)
    slowest = {name: x.seconds.max(1) for name, x in steps.items()}
    speedups[n] = slowest[PADDING] / slowest[UNPADDING]
  observed = speedups[gumbel.DEVICES]
  several = gumbel.fit(observed)
  one = gumbel.infer_one_device(several)
  rows = [
    {
      "devices": n,
      "simulated": float(values.mean()),
      "estimated": gumbel.mean_of_slowest(one, n),
    }
    for n, values in speedups.items()
  ]
  return {
    "several": several._asdict(),
    "steps": observed.size,
    "fit": gumbel.goodness_of_fit(observed, several),
    "one": one._asdict(),
    "rows": rows,
  }


def run(workdir: pathlib.Path, coefficients: str | None, scale: Scale) -> dict[str, Any]:
  """The result of the simulation.

  Without a file of coefficients, they are measured and written to `FITTED`.

  Raises:
    InputError: the file has no coefficients.
  """
  given = None if coefficients is None else read_coefficients(coefficients)
  workdir.mkdir(parents=True, exist_ok=True)
  lengths = Lengths(packing.load_histogram(HISTOGRAM))
  plans = {str(depth): make_plan(lengths, depth) for depth in DEPTHS}
  device = given or measured.measure_device(rounds=scale.rounds)
  if given is None:
    write_json(workdir / FITTED, device)
  costs = Coefficients(**device["coefficients"])
  network = Network(4 * device["parameters"])
  ways = make_ways(costs, lengths, plans)
  return {
    "device": device,
    "histogram": HISTOGRAM,
    "network": network._asdict(),
    "exchange_seconds": {n: network.seconds(n) for n in scale.devices},
    "packing": f"packing, depth {DEPTHS[-1]}",
    "packing_factors": {depth: plan.packing_factor for depth, plan in plans.items()},
    "batch": BATCH,
    "paper_method": check_paper_method(ways, lengths, scale.sequences),
    "rows": simulate_grid(ways, lengths, network, scale),
  }


def run_sharded(workdir: pathlib.Path, scale: Scale, *, devices: int) -> dict[str, Any]:
  """The measured steps, with what is expected of more devices of this cost."""
  costs = Coefficients(**read_coefficients(workdir / FITTED)["coefficients"])
  lengths = Lengths(packing.load_histogram(HISTOGRAM))
  expect = functools.partial(sharded.expect, costs, lengths, sequences=scale.sequences)
  numbers = sorted({*scale.devices[1:], devices} - {1})
  expected = {n: expect(devices=n) for n in numbers}
  found = None
  if devices > 1:
    plan = make_plan(lengths, DEPTHS[-1])
    found = sharded.measure(costs, lengths, plan, devices=devices, steps=scale.steps)
  return {"expected": expected, "measured": found}


def make_plan(lengths: Lengths, depth: int | str) -> packing.Plan:
  """The optimal plan of this depth."""
  return packing.pack(lengths.histogram, algorithm="optimal", max_sequences_per_pack=depth)


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  parser = command.make_parser(__doc__, "load_balance", workdir="results/load_balance")
  parser.add_argument(
    "--coefficients",
    metavar="FILE",
    help="simulate a device with the coefficients in this file, and measure nothing",
  )
  parser.add_argument(
    "--quick", action="store_true", help="fewer devices, batches and steps: a few minutes"
  )
  options = parser.parse_args(arguments)
  scale, workdir = QUICK if options.quick else FULL, options.workdir
  devices = min(len(cores()), MOST_DEVICES)
  if options.coefficients is None:
    measured.use_cpu(devices)
  status = command.run_study(
    functools.partial(run, workdir, options.coefficients, scale),
    workdir / "load_balance",
    tables=tables.tables,
    records=tables.records,
    draw=tables.draw,
  )
  if status or options.coefficients:
    return status
  print()
  return command.run_study(
    functools.partial(run_sharded, workdir, scale, devices=devices),
    workdir / "sharded_step",
    tables=sharded_tables.tables,
    records=sharded_tables.records,
    draw=sharded_tables.draw,
  )


if __name__ == "__main__":
  sys.exit(main())
