"""Training steps measured on this machine, to which the cost of a device is fitted."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from experiments.load_balance import cost
from experiments.load_balance.cost import Measurement
from lab.machine import machine_and_device
from lab.timing.models import make_program
from lab.timing.steps import Trainer, compile_step, full_rows
from lab.timing.turns import in_turns
from launch.record.parameters import count_parameters
from training import memory
from training.step import TrainingProgram

SIZE = "mini"  # of the BERT
ROW_LENGTHS, ROWS = (64, 128, 256, 384, 512), (1, 4)  # of fitted steps


def measure(
  program: TrainingProgram, row_lengths: Sequence[int], rows: Sequence[int], *, rounds: int
) -> list[Measurement]:
  """Times `train_step` of each length (tokens) with each number of rows, in turns."""
  trainer, runs = Trainer(program), {}
  for shape in itertools.product(row_lengths, rows):
    row_length, number = shape
    batch = program.put_batch(full_rows(row_length, 1, number))
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


def use_cpu(devices: int):
  """Divides the CPU into this many devices; memory is kept as in training.

  Call it before JAX starts its first device.
  """
  os.environ["JAX_PLATFORMS"] = "cpu"  # read by `memory.keep`; JAX has its own copy
  jax.config.update("jax_platforms", "cpu")
  jax.config.update("jax_num_cpu_devices", devices)
  memory.keep()
