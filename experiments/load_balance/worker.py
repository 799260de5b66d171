"""Measures steps of un-padding and of packing, in processes of their own.

The number of devices and the cores are fixed when JAX starts.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import os
import pathlib
import socket
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from benchmarks import small_bert
from benchmarks.small_bert import masked_tokens
from benchmarks.steps import in_turns
from experiments.lab.plans import digest, made_once
from experiments.lab.together import meet, run_together
from experiments.load_balance.shares import ONE_PROGRAM, UNPADDED, Shares
from experiments.load_balance.unpadded import UnpaddedProgram
from packing.testing import lay_out
from training import memory, processes
from training.mesh import put_batch

ByWay = dict[str, dict[str, list]]


@dataclasses.dataclass(frozen=True)
class Case:
  """Steps that one process measures, or several together.

  Attributes:
    size: of the BERT.
    compiled: lengths to which un-padding rounds up, ascending; the last is the row length.
    shares: of all devices and steps; step k of n devices takes n of them from k n on.
    steps: K; before these, one step of each way compiles.
    ways: those of `shares` and `ONE_PROGRAM`, which take turns.
    devices: of each process.
    processes: how many.
    pinned: whether each process is bound to a core of its own (Linux).
  """

  size: str
  compiled: list[int]
  shares: Shares
  steps: int
  ways: list[str]
  devices: int = 1
  processes: int = 1
  pinned: bool = False


def run_cases(folder: pathlib.Path, cases: Mapping[str, Case]) -> dict[str, list[ByWay]]:
  """Runs the cases that have no results in the folder yet, one after the other.

  Returns:
    By name, what `run` returned in each process.

  Raises:
    Stopped: a process failed; results of earlier cases are kept.
  """
  results = {}
  for name, case in cases.items():
    work = functools.partial(run, case, _free_address())
    make = functools.partial(run_together, work, case.processes, pinned=case.pinned)
    results[name] = made_once(kept(folder, name, dataclasses.asdict(case)), make)
  return results


def kept(folder: pathlib.Path, name: str, made_from: Any) -> pathlib.Path:
  """The file for what is measured on this machine with these settings."""
  key = digest([small_bert.machine_and_device(), made_from])
  return folder / f"{name.replace(', ', '_').replace(' ', '_')}-{key}.json"


def _free_address() -> str:
  with socket.socket() as server:
    server.bind(("localhost", 0))
    return f"localhost:{server.getsockname()[1]}"


def use_cpu():
  """Chooses the CPU, and keeps memory as in training; a new process inherits neither."""
  os.environ["JAX_PLATFORMS"] = "cpu"  # read by `memory.keep`; JAX has its own copy
  jax.config.update("jax_platforms", "cpu")
  memory.keep()


def run(case: Case, address: str, process: int) -> ByWay:
  """Steps of each way, in turns, in random order within a turn.

  Args:
    case: what to measure.
    address: where several processes find each other.
    process: the number of this process.

  Returns:
    By way, `seconds` of whole steps, and `busy`: for each step and each device of this
    process, the seconds until it had its gradients (empty for `ONE_PROGRAM`).
  """
  use_cpu()
  jax.config.update("jax_num_cpu_devices", case.devices)
  if case.processes > 1:
    jax.distributed.initialize(
      address, case.processes, process, heartbeat_timeout_seconds=10
    )
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
    meet()
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
  in_turns(ways, rounds=case.steps, name="measuring")
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
  """When each device had its part, by the clock; one thread waits for each device."""

  def wait(shard) -> float:
    shard.data.block_until_ready()
    return time.perf_counter()

  leaf = jax.tree.leaves(tree)[0]  # a device has all parts of a program's result at once
  shards = sorted(leaf.addressable_shards, key=lambda x: x.device.id)
  with concurrent.futures.ThreadPoolExecutor(len(shards)) as pool:
    return list(pool.map(wait, shards))
