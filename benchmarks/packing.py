"""Times our packing algorithms, and compares them with other packers, in one run.

    python -m benchmarks.packing --picture packing.png     speed, and peers with a picture
    python -m benchmarks.packing --only speed              our algorithms
    python -m benchmarks.packing --only optimal            the optimum of all histograms
    python -m benchmarks.packing --only step               the sequences of one step, also
                                                           in groups and with two limits

Peers that are not installed are named and left out; in a checkout, `pip install ".[peers]"`
and `pip install --no-deps trl==1.16.0` install them. Each packer runs in its own process,
one at a time. Seconds are those of the packing call.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

import packing
from benchmarks import step_packers
from benchmarks.command import add_picture, make_parser, write
from benchmarks.packers import PACKERS, WORKLOADS, row_of
from lab.machine import machine
from lab.options import add, run
from lab.table import print_table
from launch.record.progress import Progress

ROOT = pathlib.Path(__file__).resolve().parents[1]
DEPTHS = (2, 3, 4, 8, None)
_WHAT = "histogram, depth, algorithm"  # a column
TASK_BATCHES = 3  # one batch of all tasks and kinds takes 40 s of a busy core
LIMIT = 120  # seconds of one packer's run, at most


def _in_process(packer: str, workload: str, seed: int) -> dict:
  command = [sys.executable, "-m", "benchmarks.packers", packer, workload, str(seed)]
  try:
    done = subprocess.run(
      command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False
    )
  except subprocess.TimeoutExpired:
    return {"failed": f"> {LIMIT} s"}
  if done.returncode:
    lines = done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"]
    return {"failed": lines[-1][:60]}
  return json.loads(done.stdout.splitlines()[-1])


def _peers(seeds: int) -> Iterator[dict]:
  """Runs each packer on each workload."""
  installed = [n for n, (m, *_) in PACKERS.items() if importlib.util.find_spec(m)]
  for name in PACKERS:
    if name not in installed:
      print(f"{name} is left out: it is not installed", file=sys.stderr)
  cells = list(itertools.product(WORKLOADS, installed))
  bounds = {name: [_lower_bound(name, seed) for seed in range(seeds)] for name in WORKLOADS}
  with Progress("packers", total=len(cells), unit="workloads") as progress:
    for workload, name in progress.over(cells):
      yield _peer(workload, name, bounds[workload])


def _lower_bound(workload: str, seed: int) -> int:
  """The proven smallest number of packs."""
  lengths, row = WORKLOADS[workload](seed), row_of(workload)
  histogram = packing.Histogram.from_lengths(lengths, max_sequence_length=row)
  plan = packing.pack(histogram, algorithm="optimal", max_sequences_per_pack="max")
  return plan.lower_bound


def _peer(workload: str, name: str, bounds: list[int]) -> dict:
  record: dict = {"workload": workload, "packer": name, "kind": PACKERS[name][1]}
  runs: list[dict] = []
  for seed in range(len(bounds)):
    runs.append(_in_process(name, workload, seed))
    if "failed" in runs[-1]:
      return record | runs[-1]
  packs = [run["packs"] for run in runs]
  return record | {
    "packs": packs,
    "over": float(np.mean(np.divide(packs, bounds) - 1)),
    "bound": bounds,
    "seconds": float(np.median([run["seconds"] for run in runs])),
  }


def _peer_row(record: dict) -> dict[str, str]:
  ran = "failed" not in record
  return {
    "lengths": record["workload"],
    "packer": record["packer"],
    "packs": f"{np.mean(record['packs']):.1f}" if ran else record["failed"],
    "over bound (%)": f"{100 * record['over']:.3f}" if ran else "",
    "seconds": f"{record['seconds']:.3f}" if ran else "",
  }


def _speed() -> Iterator[dict]:
  """Times our algorithms one after the other, in one process."""
  cases: list[tuple[str, int | None, str, int]] = [("wikipedia_512", 3, "nnlshp", 1)]
  cases += [("wikipedia_512", depth, "optimal", 3) for depth in DEPTHS]
  cases += [("wikipedia_512", None, name, 3) for name in ("spfhp", "lpfhp", "ffd", "bfd")]
  cases += [("wikipedia_2048", depth, "optimal", 1) for depth in (None, 3)]
  with Progress("speed", total=len(cases) + 2, unit="plans") as progress:
    for name, depth, algorithm, repeats in cases:
      seconds, plan = _pack(name, depth, algorithm, repeats)
      record = _timed(f"{name}, {depth or 'max'}, {algorithm}", seconds, plan)
      if algorithm == "nnlshp":
        of_nnlshp = seconds
      elif (name, algorithm) == ("wikipedia_512", "optimal"):
        record["of_nnlshp"] = seconds / of_nnlshp
      progress.update()
      yield record
    wikipedia = packing.load_histogram("wikipedia_512")
    lengths = np.repeat(np.arange(1, 513, dtype=np.int32), wikipedia.counts)
    np.random.default_rng(0).shuffle(lengths)
    _, plan = _pack("wikipedia_512", 3, "optimal", 1)
    costs = np.repeat(plan.squares, plan.repeat_counts)
    balance = functools.partial(packing.balanced_order, costs, batch_size=4096, group=64)
    rng = np.random.default_rng(0)
    for what, work in (
      (f"assign {lengths.size} lengths", lambda: plan.assign(lengths, seed=1).sequence_ids),
      (f"balance {costs.size} packs", lambda: balance(first_row=0, rng=rng)),
    ):
      start = time.perf_counter()
      work()
      progress.update()
      yield _timed(what, time.perf_counter() - start, plan)


def _pack(
  name: str, depth: int | None, algorithm: str, repeats: int
) -> tuple[float, packing.Plan]:
  """The median seconds to make a plan, and the plan."""
  histogram, seconds = packing.load_histogram(name), []
  for _ in range(repeats):
    start = time.perf_counter()
    plan = packing.pack(histogram, algorithm=algorithm, max_sequences_per_pack=depth)
    seconds.append(time.perf_counter() - start)
  return float(np.median(seconds)), plan


def _timed(what: str, seconds: float, plan: packing.Plan) -> dict:
  numbers = {"packs": plan.num_packs, "bound": plan.lower_bound}
  return {"what": what, "seconds": seconds} | numbers


def _speed_row(record: dict) -> dict[str, str]:
  ratio = f"1/{1 / record['of_nnlshp']:.0f}" if "of_nnlshp" in record else ""
  return {
    _WHAT: record["what"],
    "seconds": f"{record['seconds']:.3f}",
    "of nnlshp at depth 3": ratio,
    "packs": str(record["packs"]),
    "bound": str(record["bound"]),
  }


def _optimal_row(record: dict) -> dict[str, str]:
  """`+1` marks a plan one pack above its bound."""
  plans = record["plans"]
  packs = {
    f"depth {x['depth'] or 'max'}": f"{x['packs']}" + (f" +{x['gap']}" if x["gap"] else "")
    for x in plans
  }
  slowest = max(plan["seconds"] for plan in plans)
  return {"histogram": record["name"]} | packs | {"slowest, seconds": f"{slowest:.2f}"}


def _optimal() -> Iterator[dict]:
  """The optimum for every built-in histogram at five depths."""
  names = packing.histogram_names()
  with Progress("optimal", total=len(names), unit="histograms") as progress:
    for name in progress.over(names):
      plans = []
      for depth in DEPTHS:
        seconds, plan = _pack(name, depth, "optimal", 1)
        numbers = {"bound": plan.lower_bound, "packs": plan.num_packs, "gap": plan.gap}
        plans.append({"depth": depth, "seconds": seconds} | numbers)
      yield {"name": name, "plans": plans}


def _draw(results: list[dict], path: str):
  from lab import pictures

  drawing = pictures.figure(13, 8)
  grid = drawing.subplots(2, 3)
  makers = ("isopack", "TRL", "Grain", "binpacking")
  for axes, workload in zip(grid.flat, WORKLOADS, strict=True):
    records = [r for r in results if r["workload"] == workload][::-1]
    names = [r["packer"] for r in records]
    over = [100 * r.get("over", 0) for r in records]
    bars = axes.barh(names, over, color=[f"C{makers.index(n.split()[0])}" for n in names])
    texts = [
      r.get("failed") or f"{100 * r['over']:.2f} %, {r['seconds']:.2g} s" for r in records
    ]
    axes.bar_label(bars, texts, padding=3, fontsize="small")
    axes.set_xlim(0, 1.45 * max(*over, 0.01))
    axes.set_title(workload)
    axes.tick_params(labelsize="small")
  pictures.save(
    drawing, pathlib.Path(path), "Packs above the proven bound, %; seconds of the packer"
  )


# What --only names: the records, a row of each, and the columns of words.
PARTS: dict[str, tuple[Callable, Callable, tuple[str, ...]]] = {
  "speed": (lambda options: _speed(), _speed_row, (_WHAT,)),
  "peers": (lambda options: _peers(options.seeds), _peer_row, ("lengths", "packer")),
  "optimal": (lambda options: _optimal(), _optimal_row, ("histogram",)),
  "step": (
    lambda options: step_packers.measure(options.sequences, options.batches),
    step_packers.row,
    ("lengths",),
  ),
  "tasks": (
    lambda options: step_packers.measure_tasks(options.sequences, options.task_batches),
    step_packers.task_row,
    ("task", "lengths"),
  ),
}
USUAL = ("speed", "peers")  # without --only
ALSO = {"step": ("tasks",)}  # what else --only runs, in the same run


def main(arguments: list[str] | None = None):
  parser = make_parser(__doc__, "packing")
  parser.add_argument("--only", choices=PARTS)
  add(parser, "--seeds", 3, "orders of arrival")
  add(parser, "--batches", 25, "of each kind, with --only=step")
  add(
    parser,
    "--task-batches",
    TASK_BATCHES,
    "of each task and kind, with --only=step or tasks",
  )
  add(parser, "--sequences", 512, "of a batch, with --only=step or tasks")
  add_picture(parser)
  options = parser.parse_args(arguments)
  names = (options.only, *ALSO.get(options.only, ())) if options.only else USUAL
  if options.picture and "peers" not in names:
    parser.error(f"--picture shows the peers, which --only={options.only} leaves out")
  results: dict[str, list[dict]] = {}
  print(machine())
  for name in names:
    make, row, left = PARTS[name]
    print()
    results[name] = print_table(make(options), row, left=left)
  tables = {name: [PARTS[name][1](x) for x in found] for name, found in results.items()}
  write(options, machine(), tables=tables, **results)
  if options.picture:
    _draw(results["peers"], options.picture)


if __name__ == "__main__":
  sys.exit(run(main))
