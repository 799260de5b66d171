"""Packing one step's sequences: ours beside what others do at every step.

A step has sequences of one of six kinds, rows of 32,768 tokens and 8 devices.
Packers that only make packs deal them in order, with empty packs at the end.

The methods of trainers are written again, as their sources had them in 2025 and 2026.
`partition` stands for those that divide the sequences into ceil(tokens / row) parts of
nearly equal tokens by Karmarkar and Karp's largest differencing method, one part a pack,
such as verl and those that took its code: parts may be longer than the row. `mffd` is that
of NeMo-RL.

`measure_tasks` adds groups and a second limit. There `PEERS` has the methods of five
trainers, extended to them, of which verl's makes more parts until none exceeds a limit.
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


def _greedy(
  sizes: np.ndarray, limits: np.ndarray, choose: Callable[[np.ndarray, np.ndarray], int]
) -> Packs:
  """Puts items, one by one, where `choose` says, or into a new pack where it says -1.

  Args:
    sizes: int64[n, K]; each item's sizes, in the order of the items.
    limits: int64[K]; what a pack holds of each.
    choose: gets the space in the packs, int64[packs, K], and an item's sizes.
  """
  packs: Packs = []
  space = np.tile(limits, (len(sizes), 1))
  for i, own in enumerate(sizes):
    chosen = choose(space[: len(packs)], own) if packs else -1
    if chosen < 0:
      packs.append([])
      chosen = len(packs) - 1
    packs[chosen].append(i)
    space[chosen] -= own
  return packs


def _first(space: np.ndarray, own: np.ndarray) -> int:
  fits = (space >= own).all(axis=1)
  return int(fits.argmax()) if fits.any() else -1


def _best(space: np.ndarray, own: np.ndarray) -> int:
  fits = (space >= own).all(axis=1)
  return int(np.where(fits, space[:, 0], ROW + 1).argmin()) if fits.any() else -1


def _emptiest(space: np.ndarray, own: np.ndarray) -> int:
  most = int(space[:, 0].argmax())
  return most if (space[most] >= own).all() else -1


def _decreasing(sizes: np.ndarray, limits: np.ndarray, choose) -> Packs:
  """The same, the longest first."""
  order = np.argsort(-sizes[:, 0], kind="stable")
  packs = _greedy(sizes[order], limits, choose)
  return [order[pack].tolist() for pack in packs]


def _plain(choose) -> Callable[[np.ndarray], list[Packs]]:
  row = np.array([ROW])
  return lambda lengths: _dealt(_decreasing(lengths[:, None], row, choose))


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
  "first-fit decreasing": _plain(_first),
  "best-fit decreasing": _plain(_best),
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


def _within(sizes: np.ndarray, limits: np.ndarray) -> Packs:
  """As few parts of nearly equal sums as keep the limits."""
  shares = (1e6 * (sizes / limits).max(axis=1)).astype(np.int64)
  parts = int(-(-sizes.sum(axis=0) // limits).max())
  while True:
    packs = [pack for pack in partition(shares, parts) if pack]
    if all((sizes[pack].sum(axis=0) <= limits).all() for pack in packs):
      return packs
    parts += 1


# How each packs items of some sizes into packs with as many limits.
PEERS: dict[str, Callable[[np.ndarray, np.ndarray], Packs]] = {
  "axolotl": lambda sizes, limits: _decreasing(sizes, limits, _first),
  "TRL": lambda sizes, limits: _decreasing(sizes, limits, _best),
  "SkyRL": lambda sizes, limits: _decreasing(sizes, limits, _emptiest),
  "slime": lambda sizes, limits: _greedy(sizes, limits, _first),
  "verl": _within,
}


def _pairs(lengths: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, dict]:
  """Pairs of preferences, each in one pack; of half the lengths, so that each fits."""
  return np.maximum(lengths // 2, 1), {"groups": np.arange(lengths.size) // 2}


def _samples(lengths: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, dict]:
  """Eight samples of each prompt, on one device."""
  return lengths, {"groups": np.arange(lengths.size) // 8, "together": "device"}


def _images(lengths: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, dict]:
  """Half of the sequences have images; both limits need about as many packs."""
  share = np.where(rng.random(lengths.size) < 0.5, rng.random(lengths.size), 0)
  images = (share * lengths).astype(np.int64)
  limit = max(int(images.max()), int(1.05 * images.sum() * ROW / lengths.sum()))
  return lengths, {"also": (images, limit)}


# By what each is called: lengths and further arguments of `pack_step`.
TASKS: dict[str, Callable[[np.ndarray, np.random.Generator], tuple[np.ndarray, dict]]] = {
  "pairs in a pack": _pairs,
  "samples on a device": _samples,
  "image tokens": _images,
}


def _of_peer(peer: str, lengths: np.ndarray, options: dict) -> int:
  """The packs that a peer's method needs; groups are dealt to devices as by verl."""
  sizes, limits = lengths[:, None], np.array([ROW])
  if "also" in options:
    second, limit = options["also"]
    sizes, limits = np.stack([lengths, second], axis=1), np.array([ROW, limit])
  if "groups" not in options:
    return len(PEERS[peer](sizes, limits))
  groups = options["groups"]
  sums = np.bincount(groups, lengths).astype(np.int64)
  if options.get("together") != "device":
    return len(PEERS[peer](sums[:, None], limits))
  members = [np.isin(groups, own) for own in partition(sums, DEVICES)]
  return DEVICES * max(len(PEERS[peer](sizes[own], limits)) for own in members)


def measure_tasks(number: int, batches: int) -> Iterator[dict]:
  """Packs some batches of each kind, with groups or a second limit, and as peers do."""
  for task, kind in itertools.product(TASKS, KINDS):
    records = []
    for seed in range(batches):
      rng = np.random.default_rng([seed, 1])
      lengths, options = TASKS[task](lengths_of(kind, number, seed), rng)
      arguments = {"row_length": ROW, "cost": COST} | options
      start = time.process_time()
      step = packing.pack_step(lengths, devices=DEVICES, **arguments)
      seconds = time.process_time() - start
      if options.get("together") != "device":  # its packs are a multiple of the devices
        step = packing.pack_step(lengths, **arguments)
      packs = {"pack_step": step.num_packs, "bound": step.lower_bound}
      packs |= {peer: _of_peer(peer, lengths, options) for peer in PEERS}
      records.append({"packs": packs, "seconds": seconds})
    yield {"task": task, "kind": kind, "sequences": number, "batches": records}


def task_row(record: dict) -> dict[str, str]:
  """A row of the table of `measure_tasks`: mean packs, and the batches with no fewer."""
  batches = record["batches"]
  names = batches[0]["packs"]
  fewest = [min(x["packs"][peer] for peer in PEERS) for x in batches]
  no_more = sum(x["packs"]["pack_step"] <= n for x, n in zip(batches, fewest, strict=True))
  return {
    "task": record["task"],
    "lengths": record["kind"],
    **{name: f"{np.mean([x['packs'][name] for x in batches]):.2f}" for name in names},
    "no more than any peer": f"{no_more} of {len(batches)}",
    "milliseconds, median": f"{1e3 * np.median([x['seconds'] for x in batches]):.1f}",
    "slowest": f"{1e3 * max(x['seconds'] for x in batches):.1f}",
  }
