"""Load balance: un-padding, sorting, bucketing and packing on 1 to 16,384 devices.

  python -m experiments.load_balance
  python -m experiments.load_balance --coefficients results/load_balance/coefficients.json

First the paper's estimate (section E). Then training steps of this machine by the clock, a
cost of a step fitted to them, and steps of many such devices simulated from the real lengths.
Writes load_balance.md, load_balance.json, coefficients.json and pictures to --workdir.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tqdm

import packing
from experiments import gumbel, imbalance, step_time
from experiments import load_balance_pictures as pictures
from experiments.imbalance import Lengths, Way
from experiments.load_balance_tables import tables
from experiments.step_time import Coefficients, Measurement, Network
from packing import InputError
from training.command import Parser
from training.files import write_json, write_text

PADDING, UNPADDING = "padding", "un-padding"
BY_TOKENS, BY_TIME = "un-padding, balanced by tokens", "un-padding, balanced by time"
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
  from experiments import measured_steps  # JAX, which given coefficients do without

  program = measured_steps.make_program(options.size, longest=max(options.lengths))
  measurements = measured_steps.measure(
    program, options.lengths, options.rows, rounds=options.rounds, seed=options.seed
  )
  fitted = step_time.fit(measurements)
  return {
    "machine": measured_steps.machine(),
    "model": f"BERT-{options.size}",
    "parameters": measured_steps.count_parameters(program),
    "coefficients": dataclasses.asdict(fitted.coefficients),
    "rounds": options.rounds,
    "measurements": [
      x._asdict() | {"relative_error": error}
      for x, error in zip(measurements, fitted.errors, strict=True)
    ],
  }


def make_ways(
  costs: Coefficients,
  lengths: Lengths,
  plans: Mapping[str, packing.Plan],
  *,
  bounds: tuple[int, ...],
  sequences: str,
) -> dict[str, Way]:
  """All ways to make batches, by name; the first is what the others are held against.

  Args:
    costs: of a device.
    lengths: of the dataset.
    plans: by depth.
    bounds: upper ends of the buckets.
    sequences: of un-padding, "in_turn" or "at_once".
  """
  size = np.arange(lengths.longest + 1.0)
  ways = {PADDING: imbalance.padded(costs, lengths)}
  for told, together in (("", False), (", the same on all", True)):
    ways[f"sorted batches{told}"] = imbalance.sorted_batches(
      costs, lengths, together=together
    )
    ways[f"length buckets{told}"] = imbalance.bucketed(
      costs, lengths, bounds=bounds, together=together
    )
  for name, balance in ((UNPADDING, None), (BY_TOKENS, size), (BY_TIME, None)):
    if name == BY_TIME:
      balance = costs.row_seconds(size)
    ways[name] = imbalance.unpadded(costs, lengths, sequences=sequences, balance=balance)
  for depth, plan in plans.items():
    ways[f"packing, depth {depth}"] = imbalance.packed(costs, lengths, plan)
  depth, plan = list(plans.items())[-1]
  ways[f"packing, depth {depth}, own attention"] = imbalance.packed(
    costs, lengths, plan, attention="sequence"
  )
  return ways


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
) -> dict[str, Any]:
  """Applies section E to the simulated speed-ups of 8 devices, and simulates the others.

  Args:
    ways: with padding and un-padding.
    lengths: of the dataset.
    most: devices.
    sequences: to draw for each number of devices, about.
    seed: of the draws.
  """
  both = {name: ways[name] for name in (PADDING, UNPADDING)}
  speedups = {}
  for n in [n for n in CHECKED if n <= max(most, gumbel.PAPER_DEVICES)]:
    found = imbalance.simulate(
      both, lengths, devices=n, batch=PAPER_BATCH, sequences=sequences, seed=seed
    )
    slowest = {name: steps.seconds.max(1) for name, steps in found.items()}
    speedups[n] = slowest[PADDING] / slowest[UNPADDING]
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


def run(options) -> dict[str, Any]:
  """All of it, but for the files.

  Args:
    options: of the command line.

  Raises:
    InputError: no such histogram, or no coefficients in the file.
  """
  lengths = Lengths(packing.load_histogram(options.histogram))
  if options.coefficients:
    device = step_time.read_coefficients(options.coefficients)
  else:
    device = measure(options)
  costs = Coefficients(**device["coefficients"])
  network = Network(4 * device["parameters"], options.bandwidth, options.latency)
  plans = {
    depth: packing.pack(
      lengths.histogram, max_sequences_per_pack=None if depth == "max" else int(depth)
    )
    for depth in options.depths
  }
  size = lengths.longest
  bounds = tuple(size * k // options.buckets for k in range(1, options.buckets + 1))
  ways = make_ways(costs, lengths, plans, bounds=bounds, sequences=options.unpadding)
  draws = {"sequences": options.sequences, "seed": options.seed}
  most = max(options.devices)
  return {
    "estimate": paper_estimate(2048),
    "device": device,
    "histogram": options.histogram,
    "network": network._asdict()
    | {"seconds": {n: network.seconds(n) for n in options.devices}},
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


def draw(folder: pathlib.Path, result: Mapping[str, Any]):
  """All pictures.

  Args:
    folder: where to.
    result: of the whole command.
  """
  estimate, rows, batch = result["estimate"], result["rows"], result["batch"]
  pictures.estimate(
    folder / "estimate.png",
    gumbel.Gumbel(**estimate["one"]),
    packing=estimate["packing"],
    most=estimate["rows"][-1]["devices"],
  )

  def lines(value: str, ways: Sequence[str], size: int) -> dict[str, dict[int, float]]:
    return {
      way: {x["devices"]: x[value] for x in rows if x["way"] == way and x["batch"] == size}
      for way in ways
    }

  best = result["packing"]
  shown = lines("speedup", [UNPADDING, BY_TOKENS, best], batch)
  plain, even, flat = ([*line.values()] for line in shown.values())
  pictures.lines(
    folder / "speedup.png",
    shown,
    title=f"Un-padding goes from {plain[0]:.2f} to {plain[-1]:.2f}, balanced it stays at "
    f"{min(even):.2f} to {max(even):.2f}, packing at {min(flat):.2f} to {max(flat):.2f} "
    f"(batch {batch})",
    label="speed-up over padding",
  )
  others = ["sorted batches", "length buckets"]
  shown = lines("speedup", [*others, *(f"{x}, the same on all" for x in others)], batch)
  last = [list(line.values())[-1] for line in shown.values()]
  pictures.lines(
    folder / "sorting.png",
    shown,
    title=f"Sorting and buckets come to {last[0]:.2f} and {last[1]:.2f} where each device "
    f"has its own length, {last[2]:.2f} and {last[3]:.2f} where all have one",
    label="speed-up over padding",
  )
  batches = sorted({x["batch"] for x in rows})
  idle = {
    f"un-padding, batch {b}": lines("idle", [UNPADDING], b)[UNPADDING] for b in batches
  }
  most = [max(line.values()) for line in idle.values()]
  pictures.lines(
    folder / "idle.png",
    idle,
    title=f"Un-padding: devices wait up to {most[0]:.0%} of the time with batch "
    f"{batches[0]}, {most[-1]:.0%} with batch {batches[-1]}",
    label="time that devices wait for the slowest, fraction",
  )
  pictures.extrapolation(folder / "paper_method.png", result["paper_method"]["rows"])
  if measured := result["device"].get("measurements"):
    fields = Measurement._fields
    pictures.fitted_steps(
      folder / "fit.png",
      [Measurement(*(x[name] for name in fields)) for x in measured],
      Coefficients(**result["device"]["coefficients"]),
    )


def _parser() -> Parser:
  parser = Parser(
    prog="python -m experiments.load_balance",
    description=__doc__.partition("\n\n")[0],
    epilog=__doc__.partition("\n\n")[2],
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )

  def add(name: str, default, what: str, **more):
    parser.add_argument(name, default=default, help=f"{what}; {default}", **more)

  add("--histogram", "wikipedia_512", "lengths of the dataset, a built-in histogram")
  add("--devices", "1,4,16,64,256,1024,4096,16384", "their numbers", type=_numbers)
  add("--batches", "1,4,16,32,64,256", "sequences of a device", type=_numbers)
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
  add("--size", "mini", "of the BERT that is measured")
  add("--lengths", "64,128,256,384,512", "of the rows measured, in tokens", type=_numbers)
  add("--rows", "1,4", "of the steps measured", type=_numbers)
  add("--rounds", 9, "measured steps of each shape", type=int)
  add("--sequences", 2**22, "to draw for each cell, about", type=int)
  add("--seed", 0, "of the draws", type=int)
  parser.add_argument("--quick", action="store_true", help="less of all, in seconds")
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
}


def _numbers(text: str) -> list[int]:
  try:
    found = sorted({int(x) for x in text.split(",")})
  except ValueError:
    found = [0]
  if found[0] < 1:
    raise argparse.ArgumentTypeError(
      f"{text!r} is no list of numbers; expected such as 1,4,16"
    )
  return found


def _depths(text: str) -> list[str]:
  for x in text.split(","):
    if x != "max":
      _numbers(x)
  return text.split(",")


def _check(parser: Parser, options):
  if options.batch not in options.batches:
    parser.error(f"--batch {options.batch} is not among --batches")
  for name in ("bandwidth", "rounds", "sequences", "buckets"):
    if getattr(options, name) <= 0:
      parser.error(f"--{name} is {getattr(options, name)}; expected more than 0")
  for name in ("latency", "seed"):
    if getattr(options, name) < 0:
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
  try:
    result = run(options)
    options.workdir.mkdir(parents=True, exist_ok=True)
    write_json(options.workdir / "coefficients.json", result["device"])
    write_json(options.workdir / "load_balance.json", result)
    write_text(options.workdir / "load_balance.md", tables(result) + "\n")
    draw(options.workdir, result)
  except (InputError, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    print("Stopped; nothing was written.", file=sys.stderr)
    return 130
  print(json.dumps(result) if options.json else tables(result))
  return 0


if __name__ == "__main__":
  sys.exit(main())
