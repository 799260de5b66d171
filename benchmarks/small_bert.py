"""Training steps of this project's program by the clock, at several shapes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax

from benchmarks.machine import machine
from experiments.load_balance.cost import Measurement
from model import BertConfig
from model.layout import lay_out
from training.mesh import make_mesh, put_batch
from training.optimizer import lamb
from training.record.progress import Progress
from training.step import TrainingProgram

VOCAB_SIZE = 30522
MASK_RATE = 0.15


def make_optimizer() -> optax.GradientTransformation:
  """LAMB, as in every step that is measured."""
  return lamb(1e-4)


def make_config(size: str, *, longest: int, **fields) -> BertConfig:
  """A BERT of one size without dropout, as in every step that is measured.

  Args:
    size: as of `BertConfig.from_size`.
    longest: positions, in tokens.
    **fields: the rest.
  """
  return BertConfig.from_size(
    size,
    vocab_size=VOCAB_SIZE,
    max_position_embeddings=longest,
    dropout_rate=0.0,
    attention_dropout_rate=0.0,
    **fields,
  )


def make_program(size: str, *, longest: int, devices: int = 1) -> TrainingProgram:
  """Such a BERT with LAMB.

  Args:
    size: as of `BertConfig.from_size`.
    longest: positions, in tokens.
    devices: the first few, of all processes.
  """
  config = make_config(size, longest=longest)
  return TrainingProgram(config, make_optimizer(), mesh=make_mesh(devices), seed=0)


def full_rows(row_length: int, rows: int) -> dict[str, np.ndarray]:
  """A batch without padding, one sequence a row, random tokens, 15 % of them masked.

  Args:
    row_length: S, in tokens.
    rows: B.
  """
  rng = np.random.default_rng(0)
  return lay_out([[sequence(rng, row_length)] for _ in range(rows)], row_length=row_length)


def sequence(rng: np.random.Generator, length: int) -> dict[str, Any]:
  """Random tokens, 15 % of them masked, as `lay_out` takes them.

  Args:
    rng: to draw with.
    length: in tokens.
  """
  masked = masked_tokens(length)
  return {
    "input_ids": rng.integers(VOCAB_SIZE, size=length),
    "mlm_positions": np.sort(rng.choice(length, masked, replace=False)),
    "mlm_labels": rng.integers(VOCAB_SIZE, size=masked),
    "sequence_label": int(rng.integers(2)),
  }


def masked_tokens(length: int) -> int:
  """How many tokens of a sequence are masked; never fewer in a longer one.

  Example:
    >>> masked_tokens(1), masked_tokens(512)
    (1, 77)
  """
  return max(1, round(MASK_RATE * length))


def measure(
  program: TrainingProgram,
  row_lengths: Sequence[int],
  rows: Sequence[int],
  *,
  rounds: int,
  seed: int,
) -> list[Measurement]:
  """Times steps of each length with each number of rows, in turns.

  A round is one step of every shape, in random order, so that a machine that drifts does
  so for all of them. The first step of each compiles and is not counted.

  Args:
    program: whose `train_step` is run.
    row_lengths: L, in tokens.
    rows: B.
    rounds: steps of each shape.
    seed: of the order.
  """
  shapes = list(itertools.product(row_lengths, rows))
  batches = {shape: put_batch(full_rows(*shape), program.mesh) for shape in shapes}
  state = program.init()
  rng = np.random.default_rng(seed)
  seconds: dict[tuple[int, int], list[float]] = {shape: [] for shape in shapes}
  steps = len(shapes) * (rounds + 1)
  with Progress("measuring", total=steps) as progress:
    for number in range(rounds + 1):
      for index in rng.permutation(len(shapes)).tolist():
        shape = shapes[index]
        start = time.perf_counter()
        state, _ = jax.block_until_ready(program.train_step(state, batches[shape]))
        if number:
          seconds[shape].append(time.perf_counter() - start)
        progress.update()
  quartiles = {shape: np.quantile(x, [0.5, 0.25, 0.75]) for shape, x in seconds.items()}
  return [Measurement(*shape, *x.tolist()) for shape, x in quartiles.items()]


def count_parameters(program: TrainingProgram) -> int:
  """Numbers that are trained."""
  arrays = jax.tree.leaves(program.abstract_state()["params"])
  return sum(int(np.prod(x.shape)) for x in arrays)


def machine_and_device() -> str:
  """The processor, its cores, and JAX's device."""
  return f"{machine()}; {jax.devices()[0].device_kind}, jax {jax.__version__}"
