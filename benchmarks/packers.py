"""Packers and their workloads for `benchmarks/packing.py`.

    python -m benchmarks.packers "isopack lpfhp" "SQuAD 384" 0

measures one run of one packer and prints the numbers as JSON.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import packing
from benchmarks.lengths import draw_lengths

ROW = 512


# Workloads: lengths in the order of arrival. Two of the mixes have no short sequences.


def _mix(name: str, seed: int) -> np.ndarray:
  rng, number = np.random.default_rng(seed), 3000
  gamma = np.clip(rng.gamma(5, 20, number).astype(int), 1, ROW)
  uniform = rng.integers(100, 301, number)
  normal = np.clip(rng.normal(180, 45, number).astype(int), 1, ROW)
  full = np.where(rng.random(number) < 0.23, ROW, rng.integers(10, ROW, number))
  return {"gamma": gamma, "uniform": uniform, "normal": normal, "full": full}[name]


def _sample(name: str, seed: int) -> np.ndarray:
  return draw_lengths(packing.load_histogram(name), 10_000, np.random.default_rng(seed))


WORKLOADS = {
  "gamma(5, 20)": functools.partial(_mix, "gamma"),
  "uniform 100-300": functools.partial(_mix, "uniform"),
  "normal(180, 45)": functools.partial(_mix, "normal"),
  "23% full": functools.partial(_mix, "full"),
  "SQuAD 384": functools.partial(_sample, "squad_1_1_384"),
  "Wikipedia 512": functools.partial(_sample, "wikipedia_512"),
}


def row_of(workload: str) -> int:
  return 384 if workload == "SQuAD 384" else ROW


# Packers: each takes an option, lengths and a row length, and returns a function that packs
# and returns the number of packs.


def _ours(algorithm: str, lengths, row):
  def run():
    histogram = packing.Histogram.from_lengths(lengths, max_sequence_length=row)
    plan = packing.pack(histogram, algorithm=algorithm, max_sequences_per_pack="max")
    assignment = plan.assign(lengths)
    _ = assignment.sequence_ids  # which computes all packs
    return assignment.num_packs

  return run


def _online(open_packs: int, lengths, row):
  names = lengths.tolist()

  def run():
    packer = packing.OnlinePacker(row_length=row, open_packs=open_packs)
    return sum(1 for _ in packer.pack(names))

  return run


def _trl(batch: str, lengths, row):
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


def _grain(bins: int, lengths, row):
  import grain

  elements = [{"x": np.zeros(n, np.int32)} for n in lengths.tolist()]
  source = grain.MapDataset.source(elements).to_iter_dataset()

  def run():
    packed = grain.experimental.BestFitPackIterDataset(
      source, length_struct={"x": row}, num_packing_bins=bins, shuffle_bins=False
    )
    return sum(1 for _ in packed)

  return run


def _binpacking(_, lengths, row):
  import binpacking

  items = dict(enumerate(lengths.tolist()))
  return lambda: len(binpacking.to_constant_volume(items, row))


# By name: the module to import; "offline" if it sees the whole dataset; the packer; its
# option.
PACKERS: dict[str, tuple[str, str, Callable, Any]] = {
  "isopack optimal": ("packing", "offline", _ours, "optimal"),
  "isopack lpfhp": ("packing", "offline", _ours, "lpfhp"),
  "isopack spfhp": ("packing", "offline", _ours, "spfhp"),
  "TRL bfd, default": ("trl", "offline", _trl, "default"),
  "TRL bfd, one batch": ("trl", "offline", _trl, "all"),
  "binpacking": ("binpacking", "offline", _binpacking, None),
  "isopack online, 8": ("packing", "online", _online, 8),
  "Grain best-fit, 8": ("grain", "online", _grain, 8),
  "isopack online, 64": ("packing", "online", _online, 64),
  "Grain best-fit, 64": ("grain", "online", _grain, 64),
  "isopack online, 512": ("packing", "online", _online, 512),
  "Grain best-fit, 512": ("grain", "online", _grain, 512),
}


def measure(packer: str, workload: str, seed: int) -> dict:
  """The number of packs of a workload, and the seconds to make them."""
  lengths = WORKLOADS[workload](seed)
  *_, prepare, option = PACKERS[packer]
  run = prepare(option, lengths, row_of(workload))
  start = time.perf_counter()
  packs = run()
  return {"packs": packs, "seconds": time.perf_counter() - start}


def main(arguments: list[str] | None = None):
  parser = argparse.ArgumentParser(prog="python -m benchmarks.packers")
  parser.add_argument("packer", choices=PACKERS)
  parser.add_argument("workload", choices=WORKLOADS)
  parser.add_argument("seed", type=int)
  print(json.dumps(measure(**vars(parser.parse_args(arguments)))))


if __name__ == "__main__":
  main()
