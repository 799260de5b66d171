"""Steps of two processes, with a core each, whose attention skips other sequences.

Both processes start a step at the same time. It ends when both have computed loss,
gradients and update of their own rows, so the faster waits for the slower. The prediction
uses a cost fitted beforehand to rows of equal sequences.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import packing
from benchmarks.small_bert import make_config, make_optimizer, masked_tokens, sequence
from experiments.load_balance.together import compare, run_together, time_together, use_cpu
from packing import Cost, Plan
from packing.testing import lay_out
from training.mesh import make_mesh, put_batch
from training.step import TrainingProgram
from training.sweep.jobs import cores

WAYS = ("random packs", "balance=devices")
SIZE, ROWS, STEPS = "mini", 2, 16  # the model, rows of a process, steps of each way

Packs = Sequence[Sequence[int]]  # the lengths of each


def run(plan: Plan, *, quick: bool) -> dict[str, Any] | None:
  """Waiting, predicted and measured, by way; None on a machine with one core.

  Raises:
    Stopped: a process failed.
  """
  if not hasattr(os, "sched_setaffinity") or len(cores()) < 2:
    return None
  steps = 2 if quick else STEPS
  row = plan.row_length
  equal = [[row // k] * k for k in (1, 2, 4, 8, 16)]
  calibration = [[[pack] * ROWS] * 2 for pack in equal for _ in range(1 if quick else 3)]
  drawn = _draw(plan, steps)
  todo: list[Sequence[Packs]] = list(calibration)
  for turn in range(steps):
    todo += [drawn[way][turn] for way in WAYS]
  size = "tiny" if quick else SIZE
  packs = [pack for step in todo for half in step for pack in half]
  shape = {
    "row_length": row,
    "max_sequences": max(map(len, packs)),
    "max_masked": max(sum(map(masked_tokens, pack)) for pack in packs),
  }
  work = functools.partial(_work, todo, size=size, shape=shape)
  seconds = np.array(run_together(work, 2, pinned=True)).T  # [steps, 2]
  first = len(calibration)
  squares = np.array([[_squares(packs) for packs in step] for step in todo], float)
  cost = Cost.fit(
    np.full(2 * first, ROWS * row), squares[:first].ravel(), seconds[:first].ravel()
  )
  result: dict[str, Any] = {
    "model": size,
    "row_length": row,
    "rows": ROWS,
    "steps": steps,
    "cost": {"linear": cost.linear, "quadratic": cost.quadratic},
    "ways": {},
  }
  for number, way in enumerate(WAYS):
    own = slice(first + number, None, len(WAYS))
    predicted = cost.of_squares(squares[own], row_length=ROWS * row)
    result["ways"][way] = compare(seconds[own], predicted)
  return result


def _draw(plan: Plan, steps: int) -> dict[str, list[list[Packs]]]:
  """The packs of both processes in each step, by way; both ways have the same packs."""
  rng = np.random.default_rng(0)
  batch = 2 * ROWS
  shares = plan.repeat_counts / plan.num_packs
  drawn = rng.choice(shares.size, steps * batch, p=shares)
  costs = plan.squares[drawn]
  order = packing.balanced_order(costs, batch_size=batch, group=2, first_row=0, rng=rng)
  balanced = order.reshape(steps, batch)
  balanced = np.stack([step[packing.deal(costs[step], 2)] for step in balanced])
  orders = {WAYS[0]: np.arange(drawn.size).reshape(steps, batch), WAYS[1]: balanced}
  return {
    way: [
      [[plan.strategies[drawn[i]] for i in half] for half in step.reshape(2, ROWS)]
      for step in order
    ]
    for way, order in orders.items()
  }


def _squares(packs: Packs) -> int:
  return sum(length * length for pack in packs for length in pack)


def _work(
  todo: Sequence[Sequence[Packs]], process: int, *, size: str, shape: dict[str, int]
) -> list[float]:
  """Makes one process's part of all steps; for each, its seconds."""
  use_cpu()
  config = make_config(size, longest=shape["row_length"], attention_impl="blocks")
  program = TrainingProgram(config, make_optimizer(), mesh=make_mesh(1), seed=0)
  rng = np.random.default_rng(0)
  batches = []
  for step in todo:
    rows = [[sequence(rng, length) for length in pack] for pack in step[process]]
    batches.append(put_batch(lay_out(rows, **shape), program.mesh))
  state, _ = program.train_step(program.init(), batches[0])  # compiles
  jax.block_until_ready(state)

  def train(batch):
    nonlocal state
    state, _ = program.train_step(state, batch)
    return state

  return time_together(functools.partial(train, batch) for batch in batches)
