"""Load balance: un-padding, sorting, bucketing and packing on 1 to 16,384 devices.

  python -m experiments.load_balance
  python -m experiments.load_balance --coefficients results/load_balance/coefficients.json

First the paper's estimate (section E). Then training steps of this machine by the clock,
a cost of a step fitted to them, and steps of many such devices simulated from the real
lengths. Last, steps of un-padding and of packing really run beside each other, on a few
devices and processes of this machine. Writes load_balance.md, load_balance.json,
coefficients.json and pictures to --workdir.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tqdm

import packing
from experiments.load_balance import cost as step_time
from experiments.load_balance import gumbel, real_options, real_pictures, real_tables
from experiments.load_balance import simulation as imbalance
from experiments.load_balance.cost import Coefficients, Network
from experiments.load_balance.pictures import draw
from experiments.load_balance.real_options import DocumentFields, numbers
from experiments.load_balance.simulation import Lengths, Way
from experiments.load_balance.tables import tables
from experiments.load_balance.ways import PADDING, UNPADDING, make_ways
from model.config import SIZES
from packing import InputError
from training.command import Parser, Stopped
from training.record.files import write_json, write_text

PAPER_BATCH = 32  # sequences of a device, section E
CHECKED = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)  # by the paper's method


def paper_estimate(most: int) -> dict[str, Any]:
  """The numbers of section E, for 1, 2, 4, ... devices.

  Args:
    most: devices.
  """
  one = gumbel.infer_one_device(gumbel.PAPER, devices=gumbel.PAPER_DEVICES)
  rows = [
    {
      "devices": n,
      "speedup": gumbel.mean_of_slowest(one, n),
      "low": gumbel.quantile_of_slowest(one, n, probability=0.1),
      "high": gumbel.quantile_of_slowest(one, n, probability=0.9),
    }
    for n in (2**k for k in range(most.bit_length()))
  ]
  return {
    "several": gumbel.PAPER._asdict() | {"devices": gumbel.PAPER_DEVICES},
    "one": one._asdict(),
    "packing": gumbel.PAPER_PACKING,
    "packing_ahead_from": gumbel.crossing(one, gumbel.PAPER_PACKING, most=most),
    "rows": rows,
  }


def measure(options) -> dict[str, Any]:
  """Steps of this machine, and the coefficients fitted to them; for coefficients.json.

  Args:
    options: of the command line.
  """
  from benchmarks import small_bert as measured_steps
  from experiments.load_balance import measured

  program = measured_steps.make_program(options.size, longest=max(options.lengths))
  measurements = measured.measure(
    program, options.lengths, options.rows, rounds=options.rounds
  )
  fitted = step_time.fit(measurements)
  return {
    "machine": measured_steps.machine_and_device(),
    "model": f"BERT-{options.size}",
    "parameters": measured_steps.count_parameters(program),
    "coefficients": dataclasses.asdict(fitted.coefficients),
    "rounds": options.rounds,
    "measurements": [
      x._asdict() | {"relative_error": error}
      for x, error in zip(measurements, fitted.errors, strict=True)
    ],
  }


def simulate(
  ways: Mapping[str, Way],
  lengths: Lengths,
  network: Network,
  *,
  devices: Sequence[int],
  batches: Sequence[int],
  sequences: int,
  seed: int,
) -> list[dict[str, Any]]:
  """A row for each way, number of devices and batch of a device.

  Args:
    ways: by name; the first is what speed-ups are over.
    lengths: of the dataset.
    network: that joins the devices.
    devices: their numbers.
    batches: sequences of a device.
    sequences: to draw for each, about.
    seed: of the draws.
  """
  rows = []
  grid = [(n, b) for b in batches for n in devices]
  for n, b in tqdm.tqdm(grid, desc="simulating", disable=not sys.stderr.isatty()):
    found = {
      name: imbalance.summarise(steps, network)
      for name, steps in imbalance.simulate(
        ways, lengths, devices=n, batch=b, sequences=sequences, seed=seed
      ).items()
    }
    base = next(iter(found.values())).sequences_per_second
    for name, summary in found.items():
      row = {"way": name, "devices": n, "batch": b} | summary._asdict()
      rows.append(row | {"speedup": summary.sequences_per_second / base})
  return rows


def check_paper_method(
  ways: Mapping[str, Way], lengths: Lengths, *, most: int, sequences: int, seed: int
) -> dict[str, Any] | None:
  """Applies section E to the simulated speed-ups of 8 devices, and simulates the others.

  Args:
    ways: with padding and un-padding.
    lengths: of the dataset.
    most: devices.
    sequences: to draw for each number of devices, about.
    seed: of the draws.

  Returns:
    The distributions, and a row for each number of devices; None where half of the steps
    of 8 devices have one speed-up, to which no such distribution fits.
  """
  both = {name: ways[name] for name in (PADDING, UNPADDING)}
  speedups = {}
  for n in [n for n in CHECKED if n <= max(most, gumbel.PAPER_DEVICES)]:
    found = imbalance.simulate(
      both, lengths, devices=n, batch=PAPER_BATCH, sequences=sequences, seed=seed
    )
    slowest = {name: steps.seconds.max(1) for name, steps in found.items()}
    speedups[n] = slowest[PADDING] / slowest[UNPADDING]
  low, high = np.quantile(speedups[gumbel.PAPER_DEVICES], [0.25, 0.75])
  if low == high:
    return None
  several = gumbel.fit(speedups[gumbel.PAPER_DEVICES])
  one = gumbel.infer_one_device(several, devices=gumbel.PAPER_DEVICES)
  rows = [
    {
      "devices": n,
      "simulated": float(values.mean()),
      "estimated": gumbel.mean_of_slowest(one, n),
    }
    for n, values in speedups.items()
  ]
  return {"several": several._asdict(), "one": one._asdict(), "rows": rows}


def run(options, wanted: DocumentFields) -> dict[str, Any]:
  """All of it, with its files, each as soon as what is in it is known.

  Args:
    options: of the command line.
    wanted: what is to be really run.

  Raises:
    InputError: no such histogram, no coefficients in the file, or more asked for than the
      histogram has, or coefficients of another model than the one to be run.
    Stopped: a process that really ran failed; all else is written.
  """
  lengths = Lengths(packing.load_histogram(options.histogram))
  size, found = lengths.longest, lengths.histogram.num_sequences
  if max(options.batches) > found or options.buckets > size:
    raise InputError(
      f"{options.histogram} has {found:,} sequences of up to {size} tokens; expected no "
      "larger batch, and no more buckets."
    )
  real_wanted = bool(wanted.devices or wanted.processes)
  if real_wanted:
    real_options.check_lengths(wanted, size)
  plans = {
    depth: packing.pack(
      lengths.histogram,
      algorithm="optimal",
      max_sequences_per_pack=depth if depth == "max" else int(depth),
    )
    for depth in options.depths
  }
  if options.coefficients:
    device = step_time.read_coefficients(options.coefficients)
  else:
    device = measure(options)
  if real_wanted:
    real_options.check_model(wanted, device)
  write_json(options.workdir / "coefficients.json", device)
  costs = Coefficients(**device["coefficients"])
  network = Network(4 * device["parameters"], options.bandwidth, options.latency)
  bounds = tuple(size * k // options.buckets for k in range(1, options.buckets + 1))
  ways = make_ways(costs, lengths, plans, bounds=bounds, sequences=options.unpadding)
  draws = {"sequences": options.sequences, "seed": options.seed}
  most = max(options.devices)
  result = {
    "estimate": paper_estimate(2048),
    "device": device,
    "histogram": options.histogram,
    "network": network._asdict(),
    "exchange_seconds": {n: network.seconds(n) for n in options.devices},
    "unpadding": options.unpadding,
    "buckets": bounds,
    "packing": f"packing, depth {options.depths[-1]}",
    "packing_factors": {depth: plan.packing_factor for depth, plan in plans.items()},
    "batch": options.batch,
    "seed": options.seed,
    "paper_method": check_paper_method(ways, lengths, most=most, **draws),
    "rows": simulate(
      ways, lengths, network, devices=options.devices, batches=options.batches, **draws
    ),
  }
  _write(options.workdir, result)
  draw(options.workdir, result)
  if real_wanted:
    from experiments.load_balance import real

    result["real"] = real.run(wanted, lengths, plans[options.depths[-1]], costs)
    _write(options.workdir, result)
    real_pictures.draw(options.workdir, result["real"])
  return result


def _write(folder: pathlib.Path, result: Mapping[str, Any]):
  write_json(folder / "load_balance.json", result)
  write_text(folder / "load_balance.md", _told(result) + "\n")


def _told(result: Mapping[str, Any]) -> str:
  """All tables."""
  real = [real_tables.tables(result["real"])] if "real" in result else []
  return "\n\n".join([tables(result), *real])


def _parser() -> Parser:
  parser = Parser(
    prog="python -m experiments.load_balance",
    description=__doc__.partition("\n\n")[0],
    epilog=__doc__.partition("\n\n")[2],
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,  # --quick is looked for by its name
  )

  def add(name: str, default, what: str, **more):
    parser.add_argument(name, default=default, help=f"{what}; {default}", **more)

  add("--histogram", "wikipedia_512", "lengths of the dataset, a built-in histogram")
  add("--devices", "1,4,16,64,256,1024,4096,16384", "their numbers", type=numbers)
  add("--batches", "1,4,16,32,64,256", "sequences of a device", type=numbers)
  add("--batch", PAPER_BATCH, "of --batches, the one of most tables", type=int)
  add("--depths", "2,3,max", "most sequences in a pack", type=_depths)
  add("--buckets", 4, "of equal width, up to the longest length", type=int)
  parser.add_argument(
    "--unpadding",
    choices=("in_turn", "at_once"),
    default="in_turn",
    help="how a device works on its sequences: their times add up, or it takes its batch "
    "times the longest; in_turn",
  )
  add("--bandwidth", 25e9, "bytes a second of a link, an assumption", type=float)
  add("--latency", 1e-6, "seconds of a hop, an assumption", type=float)
  parser.add_argument(
    "--coefficients", metavar="FILE", help="of an earlier run, instead of measuring"
  )
  add("--size", "mini", "of the BERT that is measured", choices=list(SIZES))
  add("--lengths", "64,128,256,384,512", "of the rows measured, in tokens", type=numbers)
  add("--rows", "1,4", "of the steps measured", type=numbers)
  add("--rounds", 9, "measured steps of each shape", type=int)
  add("--sequences", 2**22, "to draw for each cell, about", type=int)
  add("--seed", 0, "of the draws", type=int)
  real_options.add_to(parser)
  parser.add_argument(
    "--quick",
    action="store_true",
    help="less of all: 2 minutes, seconds with --coefficients",
  )
  add("--workdir", "results/load_balance", "where to write", type=pathlib.Path)
  parser.add_argument("--json", action="store_true", help="print one JSON object")
  return parser


QUICK = {
  "devices": "1,16,256,4096",
  "batches": "4,32",
  "sequences": 2**16,
  "size": "tiny",
  "lengths": "64,256,512",
  "rows": "1,3",
  "rounds": 3,
} | real_options.QUICK


def _depths(text: str) -> list[str]:
  for x in text.split(","):
    if x != "max":
      numbers(x)
  return text.split(",")


def _check(parser: Parser, options):
  if options.batch not in options.batches:
    parser.error(f"--batch {options.batch} is not among --batches")
  for name in ("bandwidth", "rounds", "sequences", "buckets"):
    if not 0 < getattr(options, name) < math.inf:
      parser.error(f"--{name} is {getattr(options, name)}; expected more than 0")
  for name in ("latency", "seed"):
    if not 0 <= getattr(options, name) < math.inf:
      parser.error(f"--{name} is {getattr(options, name)}; expected at least 0")
  if len(options.lengths) < 3 or len(options.rows) < 2:
    parser.error("expected at least 3 --lengths and 2 --rows, to fit 4 coefficients")


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  parser = _parser()
  if "--quick" in (sys.argv[1:] if arguments is None else arguments):
    parser.set_defaults(**QUICK)
  options = parser.parse_args(arguments)
  _check(parser, options)
  wanted = real_options.wanted(parser, options)
  try:
    options.workdir.mkdir(parents=True, exist_ok=True)
    result = run(options, wanted)
  except (InputError, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  except Stopped as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  except KeyboardInterrupt:
    print("Stopped before the end.", file=sys.stderr)
    return 130
  print(json.dumps(result) if options.json else _told(result))
  return 0


if __name__ == "__main__":
  sys.exit(main())
