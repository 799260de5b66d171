"""Training steps of this machine by the clock, and the cost of a step fitted to them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from benchmarks import small_bert
from benchmarks.steps import in_turns
from experiments.load_balance.cost import Measurement
from training.mesh import put_batch
from training.step import TrainingProgram


def measure(
  program: TrainingProgram, row_lengths: Sequence[int], rows: Sequence[int], *, rounds: int
) -> list[Measurement]:
  """Times `train_step` of each length (tokens) with each number of rows, in turns."""
  state = program.init()

  def run(batch):
    nonlocal state
    state, totals = program.train_step(state, batch)
    return state, totals

  runs = {}
  for shape in itertools.product(row_lengths, rows):
    batch = put_batch(small_bert.full_rows(*shape), program.mesh)
    runs[shape] = lambda number, batch=batch: run(batch)
  seconds = in_turns(runs, rounds=rounds, seed=0, name="measuring")
  return [
    Measurement(*shape, *np.quantile(x, [0.5, 0.25, 0.75]).tolist())
    for shape, x in seconds.items()
  ]
