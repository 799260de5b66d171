"""Packers and their workloads for `benchmarks/packing.py`.

    python -m benchmarks.packers "isopack lpfhp" "SQuAD 384" 0

measures one run of one packer and prints it as JSON. It imports as little as it can, so
that the memory is that of the packer.
"""

from __future__ import annotations

import json
import pathlib
import resource
import sys
import time

import numpy as np

import packing
from benchmarks.lengths import draw_lengths

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
  return draw_lengths(packing.load_histogram(name), number, np.random.default_rng(seed))


WORKLOADS = {
  "gamma(5, 20)": lambda seed: _mix("gamma", seed),
  "uniform 100-300": lambda seed: _mix("uniform", seed),
  "normal(180, 45)": lambda seed: _mix("normal", seed),
  "23% full": lambda seed: _mix("full", seed),
  "SQuAD 384": lambda seed: _sample("squad_1_1_384", seed, 10_000),
  "Wikipedia 512": lambda seed: _sample("wikipedia_512", seed, 10_000),
}


def row_of(workload: str) -> int:
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


def measure(packer: str, workload: str, seed: int) -> dict:
  """The packs of a workload, and what it takes to make them."""
  lengths = WORKLOADS[workload](seed)
  run = PACKERS[packer][2](lengths, row_of(workload))
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


if __name__ == "__main__":
  packer, workload, seed = sys.argv[1:]
  print(json.dumps(measure(packer, workload, int(seed))))
