"""Training steps measured on this machine: to fit the cost model, and compared with it.

In the second measurement a device is a process with a core of its own. A share is what one
device computes in a step: with un-padding `BATCH` sequences one by one, each in a row of
its length rounded up to a multiple of `MULTIPLE` tokens; with packing as many packs as hold
about as many. Only gradients are timed.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import packing
from experiments.load_balance import cost
from experiments.load_balance.cost import Coefficients, Measurement
from experiments.load_balance.simulation import Lengths, draw
from experiments.load_balance.together import compare, run_together, time_together, use_cpu
from experiments.load_balance.ways import UNPADDING
from lab.machine import machine_and_device
from lab.timing.models import make_program
from lab.timing.steps import Trainer, compile_step, full_rows, random_batch
from lab.timing.turns import in_turns
from launch.record.parameters import count_parameters
from launch.sweep.jobs import cores
from model import losses
from training.mesh import put_batch
from training.step import TrainingProgram

SIZE = "mini"  # of the BERT
ROW_LENGTHS, ROWS = (64, 128, 256, 384, 512), (1, 4)  # of fitted steps
PACKING = "packing"
BATCH, MULTIPLE, MOST_DEVICES = 8, 128, 8

Batch = dict[str, Any]  # the arguments of `random_batch`


def measure(
  program: TrainingProgram, row_lengths: Sequence[int], rows: Sequence[int], *, rounds: int
) -> list[Measurement]:
  """Times `train_step` of each length (tokens) with each number of rows, in turns."""
  trainer, runs = Trainer(program), {}
  for shape in itertools.product(row_lengths, rows):
    row_length, number = shape
    batch = put_batch(full_rows(row_length, 1, number), program.mesh)
    runs[shape] = trainer.runs(compile_step(program, batch), [batch])
  seconds = in_turns(runs, rounds=rounds, name="measuring")
  return [
    Measurement(*shape, *np.quantile(x, [0.5, 0.25, 0.75]).tolist())
    for shape, x in seconds.items()
  ]


def measure_device(*, rounds: int) -> dict[str, Any]:
  """Steps of this machine, and the coefficients fitted to them."""
  program = make_program(SIZE, longest=max(ROW_LENGTHS))
  measurements = measure(program, ROW_LENGTHS, ROWS, rounds=rounds)
  fitted, errors = cost.fit(measurements)
  return {
    "machine": machine_and_device(),
    "model": f"BERT-{SIZE}",
    "parameters": count_parameters(program.abstract_state()["params"]),
    "coefficients": dataclasses.asdict(fitted),
    "rounds": rounds,
    "measurements": [
      x._asdict() | {"relative_error": error}
      for x, error in zip(measurements, errors, strict=True)
    ],
  }


def run(
  lengths: Lengths, plan: packing.Plan, costs: Coefficients, *, steps: int
) -> dict[str, Any] | None:
  """How long devices wait for the slowest, in steps of each way; None with one core.

  Returns:
    `ways`, for each way the result of `compare`; and what was measured.

  Raises:
    Stopped: a process failed.
  """
  devices = min(len(cores()), MOST_DEVICES)
  if not hasattr(os, "sched_setaffinity") or devices < 2:
    return None
  rng = np.random.default_rng(0)
  own = lengths.draw(rng, (steps, devices, BATCH)).astype(int)
  rounded = np.minimum(-(-own // MULTIPLE) * MULTIPLE, lengths.longest)
  rows, depth = max(1, round(BATCH / plan.packing_factor)), plan.packing_depth
  packs = draw(rng, plan.repeat_counts, (steps, devices, rows))
  todo: list[list[list[Batch]]] = []  # by step, device and batch
  for step in range(steps):
    pairs = np.stack([own[step], rounded[step]], 2).tolist()
    todo.append([[_batch([[x]], row, 1) for x, row in share] for share in pairs])
    drawn = [[plan.strategies[k] for k in share] for share in packs[step]]
    todo.append([[_batch(share, plan.row_length, depth)] for share in drawn])
  work = functools.partial(_work, todo, size=SIZE, longest=lengths.longest)
  seconds = np.array(run_together(work, devices)).T  # [2 steps, devices]
  of_row = costs.row_seconds(plan.row_length)
  return {
    "model": SIZE,
    "devices": devices,
    "batch": BATCH,
    "multiple": MULTIPLE,
    "steps": steps,
    "ways": {
      UNPADDING: compare(seconds[::2], costs.row_seconds(rounded).sum(2)),
      PACKING: compare(seconds[1::2], np.full((steps, devices), rows * of_row)),
    },
  }


def _batch(packs: Sequence[Sequence[int]], row_length: int, depth: int) -> Batch:
  return {"packs": packs, "row_length": row_length, "max_sequences": depth}


def _work(
  todo: Sequence[Sequence[Sequence[Batch]]], device: int, *, size: str, longest: int
) -> list[float]:
  """Computes one device's shares; for each, its seconds."""
  use_cpu()
  program = make_program(size, longest=longest)
  params = program.init()["params"]
  zeros = jax.tree.map(jnp.zeros_like, params)
  rng = np.random.default_rng(device)

  @jax.jit
  def add(total, params, batch):
    def loss(params):
      return losses.loss(program.apply(params, batch), batch)[0]

    return jax.tree.map(jnp.add, total, jax.grad(loss)(params))

  def compute(share):
    return functools.reduce(lambda total, batch: add(total, params, batch), share, zeros)

  shares = [
    [put_batch(random_batch(rng=rng, **batch), program.mesh) for batch in step[device]]
    for step in todo
  ]
  for share in shares:  # compiles all shapes
    jax.block_until_ready(compute(share))
  return time_together(functools.partial(compute, share) for share in shares)
