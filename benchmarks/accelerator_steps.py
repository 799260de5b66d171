"""Training steps of one shape on one device: packed, one a row, with dropout or changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

import packing
from benchmarks.changes import CHANGES, OF_CUDNN_PACKED
from benchmarks.trace import trace
from lab.statistics import quartiles
from lab.timing.speedup import make_batches, make_programs, model_flops
from lab.timing.steps import CompiledStep, Trainer, compile_step
from lab.timing.turns import in_turns, products
from model import attention
from training.mesh import make_mesh, put_batch

Result = TypeVar("Result")
BATCHES = 5  # a block of steps takes each equally often
DROPOUT = 0.1  # of BERT


class Case(NamedTuple):
  """A model and its rows.

  Attributes:
    size: of a BERT, or of a ModernBERT with `modern_` before it.
    row_length: S, in tokens.
    rows: B, rows of a step, or fewer if memory is short.
    seconds: a guess of how long the case takes on an H200 that has compiled nothing yet.
  """

  size: str
  row_length: int
  rows: int
  seconds: float = 30.0

  @property
  def name(self) -> str:
    return f"{self.size}:{self.row_length}"

  def programs(self, implementation: str, dtype: str, **fields) -> dict[str, Any]:
    """`speedup.make_programs` for this case."""
    size = self.size.removeprefix("modern_")
    family = "bert" if size == self.size else "modern_bert"
    given = size, implementation, dtype, self.row_length
    return make_programs(*given, family=family, **fields)


class Pace(NamedTuple):
  """How long steps are timed.

  Attributes:
    steps: of a block, one after another without waiting; a multiple of `BATCHES`.
    blocks: counted blocks of each kind of step, in turns.
    awaited: counted steps of each kind that are awaited one by one, in turns.
  """

  steps: int
  blocks: int
  awaited: int


class Bench:
  """The batches of a case on the device, its compiled steps, and a state for them.

  Args:
    case: the case.
    rows: B; a step of one sequence a row has as many.
    implementation: of attention.
    dtype: of the computation.
    pace: how long steps are timed.

  Raises:
    AttentionError: the implementation cannot compute the case here.
    JaxRuntimeError: XLA cannot compile or run it; RESOURCE_EXHAUSTED if memory is short.
  """

  def __init__(self, case: Case, rows: int, implementation: str, dtype: str, pace: Pace):
    self.case, self.rows, self._pace = case, rows, pace
    self.implementation, self._dtype = implementation, dtype
    self._batches = make_batches(plan_of(case.row_length), rows=rows, number=BATCHES)
    programs = case.programs(implementation, dtype)
    self._placed = {
      kind: [put_batch(x, make_mesh(1)) for x in self._batches[kind]] for kind in programs
    }
    self._steps = {
      kind: compile_step(program, self._placed[kind][0])
      for kind, program in programs.items()
    }
    self._configs = {kind: program.config for kind, program in programs.items()}
    self._trainer = Trainer(programs["packed"])
    for run in self._runs(self._steps, 1).values():  # memory must suffice
      jax.block_until_ready(run(0))

  def measure(self) -> dict[str, Any]:
    """Times packed steps and steps of one sequence a row.

    Returns:
      The case, `batch_factor`, the packing factor of the batches, and medians with
      quartiles: `seconds` of a step in blocks, by kind; `awaited`, the same if each step is
      awaited; `over_factor`, the speed-up of packing divided by the packing factor, of
      steps in blocks, and `awaited_over_factor`, of awaited ones;
      `rate`, operations of the products a second; `share` of this rate by kind.
      `flops` of a step, `bytes` and `compile_seconds` by kind.
    """
    pace, name = self._pace, self.case.name
    product, flops_of_product = products(self._dtype)
    in_a_row = self._runs(self._steps, pace.steps) | {"product": product}
    seconds = in_turns(in_a_row, rounds=pace.blocks, name=name)
    rate = flops_of_product / seconds.pop("product")
    seconds = {kind: each / pace.steps for kind, each in seconds.items()}
    awaited = in_turns(self._runs(self._steps, 1), rounds=pace.awaited, name=f"{name} each")
    flops = {
      kind: model_flops(config, self._batches[kind])
      for kind, config in self._configs.items()
    }
    sequences = [int(batch["sequence_mask"].sum()) for batch in self._batches["packed"]]
    share = {kind: flops[kind]["model"] / each / rate for kind, each in seconds.items()}
    return {
      "case": name,
      "rows": self.rows,
      "row_length": self.case.row_length,
      "attention": self.implementation,
      "batch_factor": float(np.mean(sequences)) / self.rows,
      "seconds": {kind: quartiles(each) for kind, each in seconds.items()},
      "awaited": {kind: quartiles(each) for kind, each in awaited.items()},
      "over_factor": quartiles(seconds["unpacked"] / seconds["packed"]),
      "awaited_over_factor": quartiles(awaited["unpacked"] / awaited["packed"]),
      "rate": quartiles(rate),
      "flops": flops,
      "share": {kind: quartiles(each) for kind, each in share.items()},
      "bytes": {kind: step.bytes for kind, step in self._steps.items()},
      "compile_seconds": {kind: step.seconds for kind, step in self._steps.items()},
    }

  def with_dropout(self) -> dict[str, Any]:
    """Times packed steps with dropout and without, in turns: in blocks, and awaited.

    Returns:
      The `rate` of dropout; `seconds` of a step with it in blocks, and the `ratio` to one
      without, as medians and quartiles; `awaited` and `awaited_ratio`, the same of awaited
      steps; its `bytes` and `compile_seconds`.
    """
    timed = self._beside("dropout", self._packed(dropout_rate=DROPOUT))
    return {"case": self.case.name, "rate": DROPOUT} | timed

  def with_change(self, name: str) -> dict[str, Any]:
    """Times packed steps with one of `CHANGES`, as `with_dropout` does.

    Raises:
      ValueError: the change is one of another implementation of attention.
    """
    if name in OF_CUDNN_PACKED and self.implementation != "cudnn_packed":
      raise ValueError(f"it changes cudnn_packed; here steps use {self.implementation}")
    with CHANGES[name]():
      changed = self._packed()
    return {"case": self.case.name, "change": name} | self._beside(name, changed)

  def _packed(self, **fields) -> CompiledStep:
    """Compiles the packed step again, with other fields of the model's config."""
    programs = self.case.programs(self.implementation, self._dtype, **fields)
    return compile_step(programs["packed"], self._placed["packed"][0])

  def _beside(self, name: str, changed: CompiledStep) -> dict[str, Any]:
    """Times a step and the packed step as it is, in turns; returns as `with_dropout`."""
    pace, steps = self._pace, {"packed": self._steps["packed"], name: changed}
    seconds = in_turns(self._runs(steps, pace.steps), rounds=pace.blocks, name=name)
    awaited = in_turns(self._runs(steps, 1), rounds=pace.awaited, name=f"{name}, each")
    return {
      "seconds": quartiles(seconds[name] / pace.steps),
      "ratio": quartiles(seconds[name] / seconds["packed"]),
      "awaited": quartiles(awaited[name]),
      "awaited_ratio": quartiles(awaited[name] / awaited["packed"]),
      "bytes": changed.bytes,
      "compile_seconds": changed.seconds,
    }

  def kinds(self, steps: int = 3) -> dict[str, dict[str, float]]:
    """Where the time of a packed step goes, from `trace`; empty if the trace is."""
    run = self._runs({"packed": self._steps["packed"]}, steps)["packed"]
    return trace(lambda: run(0), steps=steps)

  def _runs(
    self, steps: Mapping[str, CompiledStep], in_a_row: int
  ) -> dict[str, Callable[[int], Any]]:
    """For `in_turns`; steps of other kinds than those of the batches are packed."""
    return {
      kind: self._trainer.runs(
        step, self._placed.get(kind, self._placed["packed"]), in_a_row=in_a_row
      )
      for kind, step in steps.items()
    }


def halving(rows: int, make: Callable[[int], Result]) -> Result:
  """`make(rows)`; with half as many rows as often as memory does not suffice."""
  while True:
    try:
      return make(rows)
    except (RuntimeError, MemoryError) as error:
      short = "RESOURCE_EXHAUSTED", "out of memory"
      if rows == 1 or not any(words in str(error) for words in short):
        raise
    rows //= 2


def choose(case: Case, dtype: str) -> attention.Choice:
  """The implementation that `attention_impl=auto` stands for in this case."""
  config = case.programs("xla", dtype)["packed"].config
  automatic = dataclasses.replace(config, attention_impl="auto")
  return attention.choose(automatic, [case.row_length])


def plan_of(row_length: int) -> packing.Plan:
  """Wikipedia's sequences: the paper's plan up to 512 tokens, then that of `train.py`."""
  histogram = packing.load_histogram(f"wikipedia_{min(row_length, 2048)}")
  if row_length <= 512:
    return packing.pack(histogram, algorithm="optimal", max_sequences_per_pack=3)
  return packing.pack(histogram, row_length=row_length, max_sequences_per_pack="auto")
