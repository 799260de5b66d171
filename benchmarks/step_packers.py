"""Packing one step's sequences: ours beside what others do at every step.

A step has sequences of one of six kinds, rows of 32,768 tokens and 8 devices.
Packers that only make packs deal them in order, with empty packs at the end.

`partition` stands for trainers that divide the sequences into ceil(tokens / row) parts of
nearly equal tokens by Karmarkar and Karp's largest differencing method, one part a pack,
such as verl and those that took its code: parts may be longer than the row.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import time
from collections.abc import Callable, Iterator

import numpy as np

import packing

ROW, DEVICES = 32_768, 8
COST = packing.Cost(1.0, 1 / 4608)  # BERT-base's; see Cost.of_bert
Packs = list[list[int]]


def _scaled(name: str, number: int, rng: np.random.Generator) -> np.ndarray:
  """Lengths of a built-in histogram, stretched to the row."""
  counts = packing.load_histogram(name).counts
  lengths = rng.choice(counts.size, number, p=counts / counts.sum()) + rng.random(number)
  return lengths * ROW / counts.size


def _thirds(number: int, rng: np.random.Generator) -> np.ndarray:
  """Half of the sequences take about a third of a row."""
  near, any_length = (
    rng.normal(ROW / 3, ROW / 100, number),
    rng.uniform(500, 20_000, number),
  )
  return np.where(rng.random(number) < 0.5, near, any_length)


KINDS: dict[str, Callable[[int, np.random.Generator], np.ndarray]] = {
  "uniform": lambda n, rng: rng.uniform(4_000, 14_001, n),
  "log-normal, narrow": lambda n, rng: rng.lognormal(np.log(8_000), 0.3, n),
  "log-normal, wide": lambda n, rng: rng.lognormal(np.log(4_000), 1.0, n),
  "near thirds": _thirds,
  "SQuAD": lambda n, rng: _scaled("squad_1_1_384", n, rng),
  "Wikipedia": lambda n, rng: _scaled("wikipedia_512", n, rng),
}


def lengths_of(kind: str, number: int, seed: int) -> np.ndarray:
  """int64[number]; the lengths of a step."""
  lengths = KINDS[kind](number, np.random.default_rng(seed))
  return np.clip(lengths.astype(np.int64), 1, ROW)


def _ours(lengths: np.ndarray) -> list[Packs]:
  step = packing.pack_step(lengths, row_length=ROW, devices=DEVICES, cost=COST)
  return step.devices


def _dealt(packs: Packs) -> list[Packs]:
  packs = packs + [[]] * (-len(packs) % DEVICES)
  return [packs[device::DEVICES] for device in range(DEVICES)]


def _decreasing(lengths: np.ndarray, choose: Callable[[list[int]], int]) -> list[Packs]:
  """First- or best-fit decreasing, sequence by sequence."""
  packs: Packs = []
  spaces: list[int] = []
  for i in np.argsort(-lengths, kind="stable").tolist():
    length = int(lengths[i])
    fitting = [p for p, space in enumerate(spaces) if space >= length]
    if not fitting:
      packs.append([])
      spaces.append(ROW)
      fitting = [len(packs) - 1]
    chosen = min(fitting, key=lambda p: choose([spaces[p], p]))
    packs[chosen].append(i)
    spaces[chosen] -= length
  return _dealt(packs)


def _by(algorithm: str, lengths: np.ndarray) -> list[Packs]:
  plan = packing.pack(
    lengths, max_sequence_length=ROW, algorithm=algorithm, max_sequences_per_pack="max"
  )
  return _dealt([ids.tolist() for ids in plan.assign(lengths, seed=0)])


def partition(lengths: np.ndarray, parts: int) -> Packs:
  """Karmarkar and Karp's largest differencing method: parts of nearly equal sums."""
  tie = itertools.count()
  heap: list[tuple[int, int, list[tuple[int, list[int]]]]] = []
  for i, length in enumerate(lengths.tolist()):
    sums: list[tuple[int, list[int]]] = [(0, [])] * (parts - 1) + [(length, [i])]
    heap.append((-length, next(tie), sums))
  heapq.heapify(heap)
  while len(heap) > 1:
    first, second = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
    pairs = zip(first, reversed(second), strict=True)
    merged = sorted((a + b, x + y) for (a, x), (b, y) in pairs)
    heapq.heappush(heap, (merged[0][0] - merged[-1][0], next(tie), merged))
  return [members for _, members in heap[0][2]]


def _partition(lengths: np.ndarray) -> list[Packs]:
  tokens = int(lengths.sum())
  return _dealt(partition(lengths, -(-tokens // ROW)))


PACKERS: dict[str, Callable[[np.ndarray], list[Packs]]] = {
  "optimal": functools.partial(_by, "optimal"),
  "pack_step": _ours,
  "first-fit decreasing": lambda x: _decreasing(x, lambda pack: pack[1]),
  "best-fit decreasing": lambda x: _decreasing(x, lambda pack: pack[0]),
  "mffd": functools.partial(_by, "mffd"),
  "partition": _partition,
}


def measure(number: int, batches: int) -> Iterator[dict]:
  """Packs some batches of each kind with each packer, in turns."""
  for kind in KINDS:
    records: dict[str, list[dict]] = {name: [] for name in PACKERS}
    for seed in range(batches):
      lengths = lengths_of(kind, number, seed)
      for name, packer in PACKERS.items():
        start = time.process_time()
        devices = packer(lengths)
        seconds = time.process_time() - start
        records[name].append(_result(lengths, devices) | {"seconds": seconds})
      # Levelling fills packs that are only there because every device has as many.
      alone = packing.pack_step(lengths, row_length=ROW)
      records["pack_step"][-1]["packs"] = alone.num_packs
    yield {"kind": kind, "sequences": number, "packers": records}


def _result(lengths: np.ndarray, devices: list[Packs]) -> dict:
  packs = [pack for device in devices for pack in device if pack]
  if sorted(itertools.chain(*packs)) != list(range(lengths.size)):
    raise AssertionError("a sequence is missing or twice in the packs")
  prices = COST.linear * lengths + COST.quadratic * lengths.astype(float) ** 2
  costs = [sum(prices[pack].sum() for pack in device) for device in devices]
  return {
    "packs": len(packs),
    "too_long": sum(int(lengths[pack].sum()) > ROW for pack in packs),
    "largest_over_mean": max(costs) * len(costs) / sum(costs),
  }


def row(record: dict) -> dict[str, str]:
  """A row of the table of `measure`: mean packs, and processor time of `pack_step`."""
  packers = record["packers"]
  packs = {name: [x["packs"] for x in found] for name, found in packers.items()}
  ours, fewest = packers["pack_step"], packs["optimal"]
  as_few = sum(x <= n for x, n in zip(packs["pack_step"], fewest, strict=True))
  milliseconds = [1e3 * x["seconds"] for x in ours]
  too_long = np.mean([x["too_long"] for x in packers["partition"]])
  return {
    "lengths": record["kind"],
    **{name: f"{np.mean(found):.2f}" for name, found in packs.items()},
    "longer than the row": f"{too_long:.1f}",
    "as few as `optimal`": f"{as_few} of {len(ours)}",
    "largest : mean cost": f"{np.mean([x['largest_over_mean'] for x in ours]):.4f}",
    "milliseconds, median": f"{np.median(milliseconds):.1f}",
    "slowest": f"{max(milliseconds):.1f}",
  }
