"""Training steps measured on this machine: to fit the cost model, and compared with it.

In the second measurement the shares of some devices are computed in turns. A share is what
one device computes in a step: with un-padding `BATCH` sequences one by one, each in a row
of its length rounded up to a multiple of `MULTIPLE` tokens; with packing as many packs as
hold about as many. Only gradients are timed.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import packing
from experiments.load_balance import cost
from experiments.load_balance.cost import Coefficients, Measurement
from experiments.load_balance.simulation import Lengths, draw
from experiments.load_balance.ways import UNPADDING
from lab.machine import machine_and_device
from lab.timing.models import make_program
from lab.timing.steps import Trainer, compile_step, full_rows, random_batch
from lab.timing.turns import in_turns, steadiest_clock
from launch.record.parameters import count_parameters
from model import losses
from training.mesh import put_batch
from training.step import TrainingProgram

SIZE = "mini"  # of the BERT
ROW_LENGTHS, ROWS = (64, 128, 256, 384, 512), (1, 4)  # of fitted steps
PACKING = "packing"
DEVICES, BATCH, MULTIPLE = 4, 8, 128

Batch = dict[str, Any]  # the arguments of `random_batch`
Key = tuple[str, int, int]  # of a share: its way, step and device


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
) -> dict[str, Any]:
  """How long `DEVICES` devices wait for the slowest, in steps of each way.

  Returns:
    `ways`, for each way the result of `compare`; and what was measured.
  """
  rng = np.random.default_rng(0)
  own = lengths.draw(rng, (steps, DEVICES, BATCH)).astype(int)
  rounded = np.minimum(-(-own // MULTIPLE) * MULTIPLE, lengths.longest)
  rows, depth = max(1, round(BATCH / plan.packing_factor)), plan.packing_depth
  packs = draw(rng, plan.repeat_counts, (steps, DEVICES, rows))
  shares: dict[Key, list[Batch]] = {}
  for step, device in np.ndindex(steps, DEVICES):
    pairs = np.stack([own[step, device], rounded[step, device]], 1).tolist()
    shares[UNPADDING, step, device] = [_batch([[x]], row, 1) for x, row in pairs]
    drawn = [plan.strategies[k] for k in packs[step, device]]
    shares[PACKING, step, device] = [_batch(drawn, plan.row_length, depth)]
  taken = time_shares(shares, size=SIZE, longest=lengths.longest)
  seconds = {
    way: np.array([[taken[way, k, n] for n in range(DEVICES)] for k in range(steps)])
    for way in (UNPADDING, PACKING)
  }
  packed = np.full((steps, DEVICES), rows * costs.row_seconds(plan.row_length))
  return {
    "model": SIZE,
    "devices": DEVICES,
    "batch": BATCH,
    "multiple": MULTIPLE,
    "steps": steps,
    "ways": {
      UNPADDING: compare(seconds[UNPADDING], costs.row_seconds(rounded).sum(2)),
      PACKING: compare(seconds[PACKING], packed),
    },
  }


def compare(seconds: np.ndarray, predicted: np.ndarray) -> dict[str, Any]:
  """The share of steps that devices wait for the slowest, measured and predicted.

  Args:
    seconds: float[K, n]; of the shares of n devices in K steps.
    predicted: float[K, n]; what each device computes, in any unit of time.

  Returns:
    `measured` and `predicted`, the means over steps; the `quartiles` of what was measured;
    and `seconds` of a step.
  """
  waiting = 1 - seconds.mean(axis=1) / seconds.max(axis=1)
  return {
    "predicted": packing.waiting(predicted, devices=predicted.shape[1]),
    "measured": float(waiting.mean()),
    "quartiles": np.quantile(waiting, [0.25, 0.75]).tolist(),
    "seconds": float(seconds.max(axis=1).mean()),
  }


def _batch(packs: Sequence[Sequence[int]], row_length: int, depth: int) -> Batch:
  return {"packs": packs, "row_length": row_length, "max_sequences": depth}


def time_shares(
  shares: Mapping[Key, Sequence[Batch]], *, size: str, longest: int
) -> dict[Key, float]:
  """The seconds of each share, computed once after a first time that compiles.

  On a CPU they are processor time, which does not grow if other programs use the cores.
  """
  program = make_program(size, longest=longest)
  params = program.init()["params"]
  zeros = jax.tree.map(jnp.zeros_like, params)
  rng = np.random.default_rng(0)

  @jax.jit
  def add(total, params, batch):
    def loss(params):
      return losses.loss(program.apply(params, batch), batch)[0]

    return jax.tree.map(jnp.add, total, jax.grad(loss)(params))

  def compute(share, _: int):
    return functools.reduce(lambda total, batch: add(total, params, batch), share, zeros)

  runs = {
    key: functools.partial(
      compute, [put_batch(random_batch(rng=rng, **x), program.mesh) for x in share]
    )
    for key, share in shares.items()
  }
  clock = steadiest_clock()
  seconds = in_turns(runs, rounds=1, name="shares of devices", clock=clock)
  return {key: float(x[0]) for key, x in seconds.items()}
