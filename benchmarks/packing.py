"""The packer beside other packers, and its speed, in one run.

    python benchmarks/packing.py --picture packing.png              everything
    python benchmarks/packing.py --only speed                       ratios in one run
    python benchmarks/packing.py --only optimal                     all histograms

Peers that are not installed are left out and named; `pip install "isopack[peers]"` and
`pip install --no-deps trl==1.16.0` install them. Each packer runs in its own process, one
at a time. Seconds are for the packing call; memory is how far the call raises the peak of
the process.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pathlib
import resource
import subprocess
import sys
import time

import numpy as np

if __package__ in (None, ""):  # as a script: the checkout, not the folder of benchmarks
  sys.path[0] = str(pathlib.Path(__file__).resolve().parent.parent)

import packing

ROW = 512


# Workloads: lengths in the order of arrival.


def _mix(name: str, seed: int, number: int = 3000) -> np.ndarray:
  """One of four mixes of lengths; two of them have no short sequences to fill gaps."""
  rng = np.random.default_rng(seed)
  gamma = np.clip(rng.gamma(5, 20, number).astype(int), 1, ROW)
  uniform = rng.integers(100, 301, number)
  normal = np.clip(rng.normal(180, 45, number).astype(int), 1, ROW)
  full = np.where(rng.random(number) < 0.23, ROW, rng.integers(10, ROW, number))
  return {"gamma": gamma, "uniform": uniform, "normal": normal, "full": full}[name]


def _sample(name: str, seed: int, number: int) -> np.ndarray:
  """Lengths drawn from a built-in histogram."""
  histogram = packing.load_histogram(name)
  rng = np.random.default_rng(seed)
  lengths = np.arange(1, histogram.counts.size + 1)
  return rng.choice(lengths, number, p=histogram.counts / histogram.num_sequences)


WORKLOADS = {
  "gamma(5, 20)": lambda seed: _mix("gamma", seed),
  "uniform 100-300": lambda seed: _mix("uniform", seed),
  "normal(180, 45)": lambda seed: _mix("normal", seed),
  "23% full": lambda seed: _mix("full", seed),
  "SQuAD 384": lambda seed: _sample("squad_1_1_384", seed, 10_000),
  "Wikipedia 512": lambda seed: _sample("wikipedia_512", seed, 10_000),
}


def _row(workload: str) -> int:
  return 384 if workload == "SQuAD 384" else ROW


# Packers: each takes lengths and a row length, and returns a function that counts packs.


def _ours(algorithm: str):
  def prepare(lengths, row):
    def run():
      histogram = packing.Histogram.from_lengths(lengths, max_sequence_length=row)
      plan = packing.pack(histogram, algorithm=algorithm, max_sequences_per_pack="max")
      return plan.assign(lengths).num_packs

    return run

  return prepare


def _online(open_packs: int):
  def prepare(lengths, row):
    names = lengths.tolist()

    def run():
      packer = packing.OnlinePacker(row_length=row, open_packs=open_packs)
      return sum(1 for _ in packer.pack(names))

    return run

  return prepare


def _trl(batch: str):
  def prepare(lengths, row):
    import datasets
    import pyarrow as pa
    from trl.data_utils import pack_dataset

    datasets.disable_progress_bars()
    datasets.disable_caching()
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = pa.array(np.zeros(offsets[-1], np.int32))
    column = pa.LargeListArray.from_arrays(pa.array(offsets), tokens)
    dataset = datasets.Dataset(pa.table({"input_ids": column}))
    options = None if batch == "default" else {"batch_size": len(lengths)}
    return lambda: len(pack_dataset(dataset, row, strategy="bfd", map_kwargs=options))

  return prepare


def _grain(bins: int):
  def prepare(lengths, row):
    import grain

    elements = [{"x": np.zeros(n, np.int32)} for n in lengths.tolist()]
    source = grain.MapDataset.source(elements).to_iter_dataset()

    def run():
      packed = grain.experimental.BestFitPackIterDataset(
        source, length_struct={"x": row}, num_packing_bins=bins, shuffle_bins=False
      )
      return sum(1 for _ in packed)

    return run

  return prepare


def _binpacking():
  def prepare(lengths, row):
    import binpacking

    items = dict(enumerate(lengths.tolist()))
    return lambda: len(binpacking.to_constant_volume(items, row))

  return prepare


# By name: the module to import, whether it sees the whole dataset, and how to run it.
PACKERS = {
  "isopack optimal": ("packing", "offline", _ours("optimal")),
  "isopack lpfhp": ("packing", "offline", _ours("lpfhp")),
  "isopack spfhp": ("packing", "offline", _ours("spfhp")),
  "TRL bfd, default": ("trl", "offline", _trl("default")),
  "TRL bfd, one batch": ("trl", "offline", _trl("all")),
  "binpacking": ("binpacking", "offline", _binpacking()),
  "isopack online, 8": ("packing", "online", _online(8)),
  "Grain best-fit, 8": ("grain", "online", _grain(8)),
  "isopack online, 64": ("packing", "online", _online(64)),
  "Grain best-fit, 64": ("grain", "online", _grain(64)),
  "isopack online, 512": ("packing", "online", _online(512)),
  "Grain best-fit, 512": ("grain", "online", _grain(512)),
}


def _work(packer: str, workload: str, seed: int) -> dict:
  lengths = WORKLOADS[workload](seed)
  run = PACKERS[packer][2](lengths, _row(workload))
  before = _peak_kilobytes()
  start = time.perf_counter()
  packs = run()
  seconds = time.perf_counter() - start
  megabytes = (_peak_kilobytes() - before) / 1024
  return {"packs": packs, "seconds": seconds, "megabytes": megabytes}


def _peak_kilobytes() -> int:
  """Peak memory of this process; on Linux without that of its parent."""
  status = pathlib.Path("/proc/self/status")
  if not status.exists():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  line = next(s for s in status.read_text().splitlines() if s.startswith("VmHWM"))
  return int(line.split()[1])


def _in_process(packer: str, workload: str, seed: int, limit: float) -> dict:
  worker = ["--worker", packer, workload, str(seed)]
  try:
    done = subprocess.run(
      [sys.executable, str(pathlib.Path(__file__).resolve()), *worker],
      capture_output=True,
      text=True,
      timeout=limit,
      check=False,
    )
  except subprocess.TimeoutExpired:
    return {"failed": f"> {limit:.0f} s"}
  if done.returncode:
    return {"failed": done.stderr.strip().splitlines()[-1][:60]}
  return json.loads(done.stdout.splitlines()[-1])


def _peers(seeds: int, limit: float) -> list[dict]:
  installed = [n for n, (m, _, _) in PACKERS.items() if importlib.util.find_spec(m)]
  for name in PACKERS:
    if name not in installed:
      print(f"{name} is not installed and left out", file=sys.stderr)
  results = []
  for workload in WORKLOADS:
    many = workload in ("SQuAD 384", "Wikipedia 512")
    bounds = []
    for seed in range(seeds):
      lengths = WORKLOADS[workload](seed)
      histogram = packing.Histogram.from_lengths(
        lengths, max_sequence_length=_row(workload)
      )
      plan = packing.pack(histogram, algorithm="optimal", max_sequences_per_pack="max")
      bounds.append(plan.lower_bound)
    for name in installed:
      runs: list[dict] = []
      for seed in range(seeds):
        if not (many and runs and "failed" in runs[-1]):
          runs.append(_in_process(name, workload, seed, limit))
      good = [run for run in runs if "failed" not in run]
      record: dict = {"workload": workload, "packer": name, "kind": PACKERS[name][1]}
      if len(good) < seeds:
        record["failed"] = next(run["failed"] for run in runs if "failed" in run)
      else:
        record |= {
          "packs": [run["packs"] for run in good],
          "over": float(
            np.mean([r["packs"] / b - 1 for r, b in zip(good, bounds, strict=True)])
          ),
          "bound": bounds,
          "seconds": float(np.median([run["seconds"] for run in good])),
          "megabytes": float(np.max([run["megabytes"] for run in good])),
        }
      results.append(record)
      print(_peer_line(record), flush=True)
  return results


def _peer_line(record: dict) -> str:
  start = f"| {record['workload']:<15} | {record['packer']:<19} |"
  if "failed" in record:
    return f"{start} {record['failed']} | | | |"
  packs = np.mean(record["packs"])
  return (
    f"{start} {packs:>9.1f} | {100 * record['over']:>6.3f} | {record['seconds']:>8.3f} | "
    f"{record['megabytes']:>6.0f} |"
  )


def _speed(slow: str) -> list[dict]:
  """Times on the same histograms, one after the other in one process."""
  wikipedia = packing.load_histogram("wikipedia_512")
  longer = packing.load_histogram("wikipedia_2048")
  results = []

  def measure(name, histogram, algorithm, depth, repeats=1):
    seconds = []
    for _ in range(repeats):
      start = time.perf_counter()
      plan = packing.pack(histogram, algorithm=algorithm, max_sequences_per_pack=depth)
      seconds.append(time.perf_counter() - start)
    results.append(
      {
        "what": name,
        "seconds": float(np.median(seconds)),
        "packs": plan.num_packs,
        "bound": plan.lower_bound,
      }
    )
    return results[-1]["seconds"]

  least_squares = measure("wikipedia_512, 3, nnlshp", wikipedia, "nnlshp", 3)
  for depth in (2, 3, 4, 8, None):
    label = f"wikipedia_512, {depth or 'max'}, optimal"
    seconds = measure(label, wikipedia, "optimal", depth, repeats=3)
    results[-1]["of_nnlshp"] = seconds / least_squares
  for algorithm in ("spfhp", "lpfhp", "ffd", "bfd"):
    label = f"wikipedia_512, max, {algorithm}"
    measure(label, wikipedia, algorithm, None, repeats=3)
  for depth in (None, 3, *((8,) if slow == "yes" else ())):
    measure(f"wikipedia_2048, {depth or 'max'}, optimal", longer, "optimal", depth)
  lengths = np.repeat(np.arange(1, 513, dtype=np.int32), wikipedia.counts)
  np.random.default_rng(0).shuffle(lengths)
  plan = packing.pack(wikipedia, algorithm="optimal", max_sequences_per_pack=3)
  start = time.perf_counter()
  plan.assign(lengths, seed=1)
  results.append(
    {
      "what": f"assign {lengths.size} lengths",
      "seconds": time.perf_counter() - start,
      "packs": plan.num_packs,
      "bound": plan.lower_bound,
    }
  )
  return results


def _print_speed(results: list[dict]):
  print("| what | seconds | of nnlshp at depth 3 | packs | bound |")
  print("|---|---:|---:|---:|---:|")
  for r in results:
    ratio = f"1/{1 / r['of_nnlshp']:.0f}" if "of_nnlshp" in r else ""
    print(f"| {r['what']} | {r['seconds']:.3f} | {ratio} | {r['packs']} | {r['bound']} |")


def _optimal() -> list[dict]:
  """The optimum for every built-in histogram at five depths."""
  results = []
  print(
    "| histogram | depth | bound | packs | gap | seconds |\n|---|---:|---:|---:|---:|---:|"
  )
  for name in packing.histogram_names():
    for depth in (2, 3, 4, 8, None):
      start = time.perf_counter()
      histogram = packing.load_histogram(name)
      plan = packing.pack(histogram, algorithm="optimal", max_sequences_per_pack=depth)
      seconds = time.perf_counter() - start
      print(
        f"| {name} | {depth or 'max'} | {plan.lower_bound} | {plan.num_packs} | "
        f"{plan.gap} | {seconds:.2f} |",
        flush=True,
      )
      results.append({"name": name, "depth": depth, "gap": plan.gap, "seconds": seconds})
      if plan.gap > max(1, 1e-6 * plan.lower_bound):
        raise SystemExit(f"{name} at depth {depth}: {plan.gap} packs above the bound")
  return results


def _draw(results: list[dict], path: str):
  import matplotlib.figure

  figure = matplotlib.figure.Figure(figsize=(13, 7), dpi=110, layout="constrained")
  grid = figure.subplots(2, 3)
  colors = {
    "isopack": "#2a6f97",
    "TRL": "#c1666b",
    "Grain": "#6a994e",
    "binpacking": "#8d6a9f",
  }
  for axes, workload in zip(grid.flat, WORKLOADS, strict=True):
    shown = [r for r in results if r["workload"] == workload][::-1]
    names = [r["packer"] for r in shown]
    over = [100 * r.get("over", 0) for r in shown]
    tints = [next(c for key, c in colors.items() if n.startswith(key)) for n in names]
    axes.barh(names, over, color=tints)
    for at, r in enumerate(shown):
      text = r.get("failed") or f"{100 * r['over']:.2f} %, {r['seconds']:.2g} s"
      axes.text(over[at], at, " " + text, va="center", fontsize=7)
    axes.set_xlim(0, 1.45 * max(*over, 0.01))
    axes.set_title(workload, fontsize=10)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
  for axes in grid[-1]:
    axes.set_xlabel("packs above the proven minimum, %", fontsize=8)
  figure.savefig(path)


def main():
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--only", choices=("speed", "peers", "optimal"))
  parser.add_argument("--seeds", type=int, default=3, help="orders of arrival (default: 3)")
  parser.add_argument("--limit", type=float, default=120, help="seconds for one peer's run")
  parser.add_argument("--slow", choices=("yes", "no"), default="no", help="2048 at depth 8")
  parser.add_argument("--picture", metavar="F.png", help="draw the peers here")
  parser.add_argument("--json", metavar="F.json", help="write all numbers here")
  parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
  options = parser.parse_args()
  if options.worker:
    packer, workload, seed = options.worker
    print(json.dumps(_work(packer, workload, int(seed))))
    return
  results: dict[str, list[dict]] = {}
  if options.only in (None, "speed"):
    results["speed"] = _speed(options.slow)
    _print_speed(results["speed"])
  if options.only == "optimal":
    results["optimal"] = _optimal()
  if options.only in (None, "peers"):
    print("\n| lengths | packer | packs | over bound (%) | seconds | MB |")
    print("|---|---|---:|---:|---:|---:|")
    results["peers"] = _peers(options.seeds, options.limit)
    if options.picture:
      _draw(results["peers"], options.picture)
  if options.json:
    pathlib.Path(options.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
  main()
