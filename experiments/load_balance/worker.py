"""Steps of un-padding and of packing by the clock, in processes of their own.

  python experiments/load_balance/worker.py CASE.json HOST:PORT PROCESS

`run_cases` starts this; the number of devices and the cores are fixed when JAX starts.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from benchmarks import small_bert
from benchmarks.small_bert import masked_tokens
from benchmarks.steps import in_turns
from experiments.lab.study import stop_if_failed
from experiments.load_balance.shares import ONE_PROGRAM, UNPADDED, Shares
from experiments.load_balance.unpadded import UnpaddedProgram
from packing.testing import lay_out
from training import processes
from training.mesh import put_batch
from training.record.files import write_json
from training.sweep import jobs

ByWay = dict[str, dict[str, list]]


@dataclasses.dataclass(frozen=True)
class Case:
  """Steps that one process measures, or several together.

  Attributes:
    size: of the BERT.
    compiled: lengths that un-padding rounds up to, rising; the last is the row length.
    shares: of all devices and steps; step k of n devices takes n of them from k n on.
    steps: K; one step of each way goes before, which compiles.
    ways: of `shares`, in turns.
    devices: of each process.
    processes: how many.
    pinned: whether each process keeps to a core of its own (Linux).
    minutes: after which a process gives up; one that waits for a lost one never ends.
  """

  size: str
  compiled: list[int]
  shares: Shares
  steps: int
  ways: list[str]
  devices: int = 1
  processes: int = 1
  pinned: bool = False
  minutes: float = 30


def run_cases(
  folder: pathlib.Path, cases: Mapping[str, Case], *, program: str = __file__
) -> dict[str, list[ByWay]]:
  """Runs the cases that have no results in the folder yet, one after the other.

  Args:
    folder: for the results; a later call with the same cases on the same machine uses them.
    cases: by name.
    program: what each process runs.

  Returns:
    By name, what `run` returned in each process.

  Raises:
    Stopped: a process failed; results of other cases are kept.
  """
  results: dict[str, list[pathlib.Path]] = {}
  tasks: dict[int, list[jobs.Task]] = {}
  for name, case in cases.items():
    fields = dataclasses.asdict(case)
    path = kept(folder, name, fields)
    write_json(path, fields)
    results[name] = [_result(path, process) for process in range(case.processes)]
    if not all(result.exists() for result in results[name]):
      for result in results[name]:  # processes run together or not at all
        result.unlink(missing_ok=True)
    command = [*jobs.ends_with_parent(pathlib.Path(program)), str(path), _free_address()]
    tasks.setdefault(case.processes, []).extend(
      jobs.Task(
        name if case.processes == 1 else f"{name}, number {process}",
        [*command, str(process)],
        result.with_suffix(".log"),
        result.exists,
        cost=(case.steps + 5) * case.devices,
      )
      for process, result in enumerate(results[name])
    )
  for number, some in tasks.items():
    stop_if_failed(jobs.run_all(some, jobs=number, desc="measuring"), len(some))
  return {
    name: [json.loads(path.read_text()) for path in paths]
    for name, paths in results.items()
  }


def kept(folder: pathlib.Path, name: str, made_from: Any) -> pathlib.Path:
  """A file for what was measured on this machine from these settings."""
  folder.mkdir(parents=True, exist_ok=True)
  content = json.dumps([small_bert.machine_and_device(), made_from])
  digest = hashlib.sha256(content.encode()).hexdigest()[:12]
  return folder / f"{name.replace(', ', '_').replace(' ', '_')}-{digest}.json"


def _result(case: pathlib.Path, process: int) -> pathlib.Path:
  return case.with_suffix(f".{process}.json")


def _free_address() -> str:
  with socket.socket() as server:
    server.bind(("localhost", 0))
    return f"localhost:{server.getsockname()[1]}"


def run(case: Case, process: int) -> ByWay:
  """Steps of each way, in turns, in random order within a turn.

  Args:
    case: that this process runs; JAX has its devices.
    process: its number.

  Returns:
    By way `seconds`, of whole steps, and `busy`: for each step and each device of this
    process the seconds until it had its gradients (empty for `ONE_PROGRAM`).
  """
  program = small_bert.make_program(
    case.size, longest=case.compiled[-1], devices=jax.device_count()
  )
  processes.connect(program.mesh)
  own = UnpaddedProgram(
    program,
    small_bert.make_optimizer(),
    shapes=[(length, masked_tokens(length)) for length in case.compiled],
  )
  state = program.init()
  steps: ByWay = {way: {"seconds": [], "busy": []} for way in case.ways}

  def step(way: str, turn: int):
    nonlocal state
    batch = _batch(case, process, way, max(turn - 1, 0))  # the first turn compiles
    rows = put_batch(batch | {"branches": own.branches(batch)}, program.mesh)
    branches = rows.pop("branches")
    counts = jax.block_until_ready(own.counts(rows))
    if case.processes > 1:
      multihost_utils.sync_global_devices(f"{way} {turn}")
    start = time.perf_counter()
    busy: list[float] = []
    if way == ONE_PROGRAM:
      state, _ = program.train_step(state, rows)
    else:
      if way == UNPADDED:
        gradients = own.unpadded_gradients(state["params"], rows, branches, counts)
      else:
        gradients = own.packed_gradients(state["params"], rows, counts)
      busy = [end - start for end in _ends(gradients)]
      state = own.update(state, gradients)
    jax.block_until_ready(state)
    if turn:
      steps[way]["seconds"].append(time.perf_counter() - start)
      steps[way]["busy"].append(busy)
    return state

  ways = {way: functools.partial(step, way) for way in case.ways}
  in_turns(ways, rounds=case.steps, seed=0, name="measuring")
  return steps


def _batch(case: Case, process: int, way: str, number: int) -> dict[str, np.ndarray]:
  """This process's rows of a step, of the same shape for all steps of a way."""
  all_shares = case.shares.packed
  if way == UNPADDED:
    all_shares = [[[x] for x in share] for share in case.shares.unpadded]
  packs = [pack for share in all_shares for pack in share]
  first = (number * case.processes + process) * case.devices
  rows = []
  for share in range(first, first + case.devices):
    rng = np.random.default_rng(share)
    rows += [[small_bert.sequence(rng, x) for x in pack] for pack in all_shares[share]]
  row_length = case.compiled[-1]
  most_masked = max(sum(map(masked_tokens, pack)) for pack in packs)
  return lay_out(
    rows,
    row_length=row_length,
    max_sequences=max(map(len, packs)),
    max_masked=masked_tokens(row_length) if way == UNPADDED else most_masked,
  )


def _ends(tree) -> list[float]:
  """When each device had its part, by the clock; a thread waits for each."""

  def wait(shard) -> float:
    shard.data.block_until_ready()
    return time.perf_counter()

  leaf = jax.tree.leaves(tree)[0]  # a device has all parts of a program's result at once
  shards = sorted(leaf.addressable_shards, key=lambda x: x.device.id)
  with concurrent.futures.ThreadPoolExecutor(len(shards)) as pool:
    return list(pool.map(wait, shards))


def _give_up(reason: str):
  print(reason, file=sys.stderr, flush=True)
  os._exit(1)  # at an ordinary exit JAX would wait for the other processes


def main(path: pathlib.Path, address: str, process: int):
  """Runs one process of the case in a file, and writes its result beside it."""
  fields = json.loads(path.read_text())
  case = Case(**fields | {"shares": Shares(*fields["shares"])})
  reason = f"This process was not done after {case.minutes:.3g} minutes."
  limit = threading.Timer(60 * case.minutes, _give_up, [reason])
  limit.daemon = True
  limit.start()
  if case.pinned and hasattr(os, "sched_setaffinity"):
    # Before JAX starts as many threads as there are cores.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
  jax.config.update("jax_platforms", "cpu")
  jax.config.update("jax_num_cpu_devices", case.devices)
  try:
    if case.processes > 1:
      jax.distributed.initialize(
        address, case.processes, process, heartbeat_timeout_seconds=10
      )
    write_json(_result(path, process), run(case, process))
  except Exception as error:
    _give_up(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")


if __name__ == "__main__":
  main(pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
