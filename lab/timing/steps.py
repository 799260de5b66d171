"""Training steps to be timed: batches of random tokens, and compiled steps."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from lab.timing.models import VOCAB_SIZE
from lab.timing.turns import queued
from model import IMPLEMENTATIONS, AttentionError, ModelConfig
from model.attention import check_model
from packing.testing import lay_out
from training.step import TrainingProgram

MASK_RATE = 0.15
# The other one interprets the kernel, for tests.
MEASURED = tuple(name for name in IMPLEMENTATIONS if name != "splash_interpret")


def random_batch(
  packs: Sequence[Sequence[int]],
  rng: np.random.Generator,
  *,
  row_length: int,
  max_sequences: int,
) -> dict[str, np.ndarray]:
  """A PackedBatch of random tokens; in each sequence 15 % are masked, at least one.

  `packs` has the lengths of each row's sequences, in tokens. Rows have as many places for
  masked tokens, P, as by `pipeline.batches.masking.Masking.max_masked`.
  """

  def sequence(length: int) -> dict[str, Any]:
    masked = max(1, round(MASK_RATE * length))
    return {
      "input_ids": rng.integers(VOCAB_SIZE, size=length),
      "token_type_ids": np.arange(length) > length // 2,
      "mlm_positions": np.sort(rng.choice(length, masked, replace=False)),
      "mlm_labels": rng.integers(VOCAB_SIZE, size=masked),
      "sequence_label": int(rng.integers(2)),
    }

  return lay_out(
    [[sequence(length) for length in pack] for pack in packs],
    row_length=row_length,
    max_sequences=max_sequences,
    max_masked=math.floor(MASK_RATE * row_length) + max_sequences,
  )


def full_rows(row_length: int, depth: int, rows: int) -> dict[str, np.ndarray]:
  """A `random_batch` without padding: rows of `depth` sequences of about equal lengths.

  Example:
    >>> full_rows(8, 2, rows=1)["segment_ids"].tolist()
    [[1, 1, 1, 1, 2, 2, 2, 2]]
  """
  pack = np.diff(np.linspace(0, row_length, depth + 1).astype(int)).tolist()
  shape = {"row_length": row_length, "max_sequences": depth}
  return random_batch([pack] * rows, np.random.default_rng(0), **shape)


class CompiledStep(NamedTuple):
  """A training step for batches of one shape."""

  run: jax.stages.Compiled  # from a state and a batch to the next state and the totals
  bytes: int  # by XLA's plan: arguments, results and temporary arrays; the state once
  seconds: float  # to trace and compile it, or to read it where compiled programs are kept


@contextlib.contextmanager
def without_cache() -> Iterator[None]:
  """Disables the persistent compilation cache, so that each program is compiled."""
  config: Any = jax.config
  before = config.jax_enable_compilation_cache
  config.update("jax_enable_compilation_cache", False)
  try:
    yield
  finally:
    config.update("jax_enable_compilation_cache", before)


def compile_step(
  program: TrainingProgram,
  batch: Mapping[str, jax.Array],
) -> CompiledStep:
  """Compiles the training step of a program for batches like this one."""
  start = time.perf_counter()
  lowered = program.train_step.lower(program.abstract_state(), batch)
  step = lowered.compile()
  seconds = time.perf_counter() - start
  plan: Any = step.memory_analysis()
  return CompiledStep(
    run=step,
    bytes=plan.argument_size_in_bytes
    + plan.output_size_in_bytes
    - plan.alias_size_in_bytes
    + plan.temp_size_in_bytes,
    seconds=seconds,
  )


class Trainer:
  """Holds a state for compiled steps, of this program or any with the same parameters."""

  def __init__(self, program: TrainingProgram):
    self._state = program.init()

  def runs(
    self,
    step: CompiledStep,
    batches: Sequence[Mapping[str, jax.Array]],
    *,
    in_a_row: int = 1,
  ) -> Callable[[int], Any]:
    """For `in_turns`: `turns.queued` with `in_a_row` steps a block."""

    def make(batch: Mapping[str, jax.Array]):
      self._state, totals = step.run(self._state, batch)
      return totals  # ready when the step is done

    return queued(make, batches, steps=in_a_row)


def why_not(config: ModelConfig, row_length: int) -> str:
  """Why a model's implementation of attention cannot run here; "" if it can."""
  try:
    check_model(config, row_length)
  except AttentionError as error:
    return str(error)
  return ""


def not_run_lines(records: Iterable[Mapping[str, Any]]) -> str:
  """A line for each implementation of attention that was not run, with the reason.

  Example:
    >>> print(not_run_lines(2 * [{"attention": "splash", "not_run": "Needs a TPU."}]))
    attention splash: not run: Needs a TPU.
  """
  missing = (x for x in records if "not_run" in x)
  lines = (f"attention {x['attention']}: not run: {x['not_run']}" for x in missing)
  return "\n".join(dict.fromkeys(lines))
