"""Steps of un-padding and of packing by the clock, on devices of one process or of several.

  python -m experiments.real_steps    # as experiments.real_runs starts it

Reads a case, a line of JSON, and ends with one of what it found. It is a process of its
own since the number of devices, and the cores, are fixed when JAX starts.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import sys
import threading
import time
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from benchmarks import small_bert as measured_steps
from benchmarks.small_bert import masked_tokens
from experiments.load_balance.shares import ONE_PROGRAM, UNPADDED, Shares
from experiments.load_balance.unpadded import UnpaddedProgram
from model.layout import lay_out
from training import processes
from training.mesh import put_batch


@dataclasses.dataclass(frozen=True)
class Case:
  """What one process runs.

  Attributes:
    size: of the BERT.
    compiled: lengths that un-padding rounds up to; the last is the row length.
    shares: of all devices and steps; step k of n devices takes those from k n on.
    steps: K; one more goes before, which compiles.
    ways: of `experiments.shares`, in turns.
    devices: of this process.
    processes: that run the same case.
    process: the number of this one.
    coordinator: HOST:PORT of process 0, where there are several.
    core: the one to run on; any if None.
    seed: of tokens, and of the order of the ways.
  """

  size: str
  compiled: list[int]
  shares: Shares
  steps: int
  ways: list[str]
  devices: int = 1
  processes: int = 1
  process: int = 0
  coordinator: str = ""
  core: int | None = None
  seed: int = 0


class _Runner:
  """The programs of a case, the state that they train, and what they are given."""

  def __init__(self, case: Case):
    self.case = case
    self.program = measured_steps.make_program(
      case.size, longest=case.compiled[-1], devices=jax.device_count()
    )
    self.mesh = self.program.mesh
    processes.connect(self.mesh)
    self.own = UnpaddedProgram(
      self.program,
      measured_steps.make_optimizer(),
      shapes=[(length, masked_tokens(length)) for length in case.compiled],
    )
    self.state = self.program.init()
    packs = [pack for share in case.shares.packed for pack in share]
    self._packed_size = {
      "max_sequences": max(map(len, packs)),
      "max_masked": max(sum(map(masked_tokens, pack)) for pack in packs),
    }

  def step(self, way: str, number: int) -> dict[str, Any]:
    """One step, by the clock: see `run`."""
    rows, branches = self._rows(way, number)
    if way != ONE_PROGRAM:
      counts = jax.block_until_ready(self.own.counts(rows))
    params = self.state["params"]
    if jax.process_count() > 1:
      multihost_utils.sync_global_devices(f"{way} {number}")
    start, start_processor = time.perf_counter(), time.process_time()
    busy: list[float] = []
    if way == ONE_PROGRAM:
      self.state, _ = self.program.train_step(self.state, rows)
    else:
      if way == UNPADDED:
        gradients = self.own.unpadded_gradients(params, rows, branches, counts)
      else:
        gradients = self.own.packed_gradients(params, rows, counts)
      busy = [end - start for end in _ends(gradients)]
    processor = time.process_time() - start_processor
    if way != ONE_PROGRAM:
      self.state = self.own.update(self.state, gradients)
    jax.block_until_ready(self.state)
    seconds = time.perf_counter() - start
    return {
      "way": way,
      "step": number,
      "busy": busy,
      "processor": processor,
      "seconds": seconds,
    }

  def _rows(self, way: str, number: int):
    """This process's part of a step, put on the devices."""
    case = self.case
    first = (number * case.processes + case.process) * case.devices
    mine = range(first, first + case.devices)
    length, size = case.compiled[-1], self._packed_size
    shares: Any = case.shares.packed
    if way == UNPADDED:
      shares = [[[x] for x in share] for share in case.shares.unpadded]
      size = {"max_sequences": 1, "max_masked": masked_tokens(length)}
    rngs = [np.random.default_rng([case.seed, number]) for number in mine]
    packs = [
      [measured_steps.sequence(rng, x) for x in pack]
      for number, rng in zip(mine, rngs, strict=True)
      for pack in shares[number]
    ]
    batch = lay_out(packs, row_length=length, **size)
    if way != UNPADDED:
      return put_batch(batch, self.mesh), None
    lengths = (batch["segment_ids"] > 0).sum(1).tolist()
    batch["branches"] = np.array([self.own.branch(x) for x in lengths], np.int32)
    rows = put_batch(batch, self.mesh)
    return rows, rows.pop("branches")


def run(case: Case) -> dict[str, Any]:
  """Steps of each way, in turns, in random order within a turn.

  Args:
    case: of this process; JAX has its devices.

  Returns:
    `steps`, of each `way`, `step`, `seconds` of the whole, `busy`, the seconds until each
    of this process's devices had its gradients (none for `ONE_PROGRAM`), and `processor`,
    those of processor time until then; and `machine`.
  """
  runner = _Runner(case)
  rng = np.random.default_rng(case.seed)
  found = []
  for number in range(-1, case.steps):  # the first compiles
    for way in rng.permutation(case.ways).tolist():
      step = runner.step(way, max(number, 0))
      if number >= 0:
        found.append(step)
  return {"steps": found, "machine": measured_steps.machine_and_device()}


def _ends(tree) -> list[float]:
  """When each device had its part, by the clock; a thread waits for each."""

  def wait(shard) -> float:
    shard.data.block_until_ready()
    return time.perf_counter()

  leaf = jax.tree.leaves(tree)[0]  # a device has all parts of a program's result at once
  shards = sorted(leaf.addressable_shards, key=lambda x: x.device.id)
  with concurrent.futures.ThreadPoolExecutor(len(shards)) as pool:
    return list(pool.map(wait, shards))


def _end_with_parent():
  """Waits for the end of standard input: whoever started this is gone."""
  while os.read(0, 1):
    pass
  os._exit(1)


def main() -> int:
  """Runs the command; returns the exit status."""
  case = Case(**json.loads(sys.stdin.readline()))
  case = dataclasses.replace(case, shares=Shares(*case.shares))
  threading.Thread(target=_end_with_parent, daemon=True).start()
  if case.core is not None:
    os.sched_setaffinity(0, {case.core})  # before JAX starts as many threads as cores
  jax.config.update("jax_platforms", "cpu")
  jax.config.update("jax_num_cpu_devices", case.devices)
  try:
    if case.processes > 1:
      jax.distributed.initialize(case.coordinator, case.processes, case.process)
    found = run(case)
  except Exception as error:
    told = str(error).partition("\n")[0]
    print(f"{type(error).__name__}: {told}", file=sys.stderr, flush=True)
    os._exit(1)  # at an ordinary exit JAX would wait for the other processes
  print(json.dumps(found), flush=True)
  return 0


if __name__ == "__main__":
  sys.exit(main())
