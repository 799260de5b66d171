"""Times training steps in turns, and counts their operations."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
import optax
import scipy.stats

from benchmarks.small_bert import VOCAB_SIZE
from launch.record.compilations import CompilationCounter
from launch.record.progress import Progress
from model import IMPLEMENTATIONS, AttentionError, ModelConfig
from model.attention import check
from packing.testing import lay_out
from training.step import TrainingProgram

Key = TypeVar("Key", bound=Hashable)
CLOCKS = ("wall", "processor")
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
  """A training step for batches of one shape.

  `dot_flops` counts the matrix products, as JAX traces them; `xla_flops` is XLA's own
  count, which includes element-wise operations but not those inside fused kernels.
  """

  run: jax.stages.Compiled  # from a state and a batch to the next state and the totals
  dot_flops: int
  xla_flops: float | None
  bytes: int  # by XLA's plan: arguments, results and temporary arrays; the state once
  argument_bytes: int  # of these, the state and the batch
  seconds: float  # to trace and compile it, or to read it where compiled programs are kept


def compile_step(
  program: TrainingProgram,
  batch: Mapping[str, jax.Array],
  options: Mapping[str, Any] | None = None,
) -> CompiledStep:
  """Compiles the training step for batches like this one.

  Args:
    program: the program that makes the step.
    batch: a batch of the step's shape.
    options: of XLA, by name, besides those in XLA_FLAGS.

  Raises:
    JaxRuntimeError: this XLA does not know an option.
  """
  start = time.perf_counter()
  traced = program.train_step.trace(program.abstract_state(), batch)
  step = traced.lower().compile(compiler_options=dict(options or {}) or None)
  seconds = time.perf_counter() - start
  plan: Any = step.memory_analysis()
  return CompiledStep(
    run=step,
    dot_flops=dot_flops(traced.jaxpr.jaxpr),
    xla_flops=_xla_flops(step),
    bytes=plan.argument_size_in_bytes
    + plan.output_size_in_bytes
    - plan.alias_size_in_bytes
    + plan.temp_size_in_bytes,
    argument_bytes=plan.argument_size_in_bytes,
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
    """For `in_turns`: makes a step with the round's batch; too few batches are repeated.

    With `in_a_row`, each round makes this many steps, one after another without waiting, as
    in training.
    """

    def run(number: int):
      for index in range(number * in_a_row, (number + 1) * in_a_row):
        self._state, totals = step.run(self._state, batches[index % len(batches)])
      return totals  # ready when the last step is done

    return run


def first_runs(
  runs: Mapping[Key, Callable[[int], Any]],
) -> tuple[dict[Key, Any], dict[Key, dict[str, Any]]]:
  """Makes the first run of each, which compiles.

  Returns:
    By key, its result; and its `first_seconds` and `compilations` of evaluation steps.
  """
  counter = CompilationCounter()
  results: dict[Key, Any] = {}
  measured: dict[Key, dict[str, Any]] = {}
  for key, run in runs.items():
    before, start = counter.count("_eval_step"), time.perf_counter()
    results[key] = run(0)
    measured[key] = {
      "first_seconds": time.perf_counter() - start,
      "compilations": counter.count("_eval_step") - before,
    }
  return results, measured


def steadiest_clock() -> str:
  """For `in_turns`: "processor", or "wall" if the processor's misses the device's work."""
  return "processor" if jax.default_backend() == "cpu" else "wall"


def in_turns(
  runs: Mapping[Key, Callable[[int], Any]],
  *,
  rounds: int,
  name: str,
  clock: str = "wall",
  after: Callable[[Key, Any], Any] = lambda key, result: None,
  enough: Callable[[dict[Key, np.ndarray]], bool] = lambda seconds: False,
) -> dict[Key, np.ndarray]:
  """Times several runs in turns, so that drift of the machine affects all of them alike.

  Each round runs each of them once, in random order. The first round is not counted.

  Args:
    runs: by key; each takes the number of the round, from 0, and returns arrays that
      are ready when it is done.
    rounds: how many are counted, at most.
    name: of the progress bar.
    clock: "wall"; or "processor", the processor time of all cores, which says less about
      the duration of a step but is steadier on a shared machine; or "both".
    after: called with the result when the clock has stopped, in counted rounds.
    enough: called after each counted round with the results so far; if it returns True,
      no round follows.

  Returns:
    float[rounds] by key, in seconds; for both clocks float[rounds, 2], wall clock first.

  Example:
    >>> seconds = in_turns({"a": lambda number: number}, rounds=3, name="a")
    >>> seconds["a"].shape
    (3,)
  """
  rng = np.random.default_rng(0)
  keys = list(runs)
  columns: Any = slice(None) if clock == "both" else CLOCKS.index(clock)
  seconds = {key: np.empty((rounds, 2)) for key in runs}
  counted: dict[Key, np.ndarray] = {}
  with Progress(name, total=(rounds + 1) * len(keys), unit="runs") as progress:
    for number in range(rounds + 1):
      for index in rng.permutation(len(keys)).tolist():
        key = keys[index]
        start = _now()
        result = jax.block_until_ready(runs[key](number))
        passed = _now() - start
        if number:
          seconds[key][number - 1] = passed
          after(key, result)
        progress.update()
      counted = {key: both[:number, columns] for key, both in seconds.items()}
      if number and enough(counted):
        break
  return counted


def products(dtype: str) -> tuple[Callable[[int], Any], int]:
  """For `in_turns`: makes products of [D, D] with [D, D]; and their operations.

  D is 8,192, or 2,048 on a CPU: large enough for the device's peak.
  """
  size, number = (2048, 1) if jax.default_backend() == "cpu" else (8192, 10)
  matrix = jax.random.normal(jax.random.key(0), (size, size), dtype)
  multiply = jax.jit(jax.numpy.matmul)

  def run(_: int):
    for _ in range(number):
      product = multiply(matrix, matrix)
    return product

  return run, number * 2 * size**3


def _now() -> np.ndarray:
  return np.array([time.perf_counter(), time.process_time()])


def why_not(config: ModelConfig, row_length: int) -> str:
  """Why a model's implementation of attention cannot run here; "" if it can."""
  try:
    check(config, row_length)
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


def quartiles(values: np.ndarray | Sequence[float]) -> dict[str, float]:
  """The median, and the quartiles as `low` and `high`."""
  low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
  return {"median": median, "low": low, "high": high}


def median_interval(values: np.ndarray | Sequence[float]) -> dict[str, float]:
  """The median, and its 95 % interval as `low` and `high`.

  Both ends are among the values, so nothing is assumed about their distribution
  (`scipy.stats.quantile_test`). With fewer than six values, both ends are NaN.

  Example:
    >>> median_interval([1, 2, 3, 4, 5, 60])
    {'median': 3.5, 'low': 1.0, 'high': 60.0}
  """
  array = np.asarray(values, float)
  low, high = scipy.stats.quantile_test(array, p=0.5).confidence_interval(0.95)
  return {"median": float(np.median(array)), "low": float(low), "high": float(high)}


def spread(quartile: Mapping[str, float], digits: int = 2) -> str:
  """The median and the quartiles, as tables show them.

  Example:
    >>> spread(quartiles([1.0, 2.0, 4.0]), 1)
    '2.0 (1.5 to 3.0)'
  """
  low, median, high = (f"{quartile[x]:,.{digits}f}" for x in ("low", "median", "high"))
  return f"{median} ({low} to {high})"


def update_flops(
  optimizer: optax.GradientTransformation, program: TrainingProgram
) -> float | None:
  """Operations of an optimizer's update of a program's parameters, by XLA's count.

  None if XLA does not count before it compiles, as on GPUs.
  """
  params = program.abstract_state()["params"]
  state = jax.eval_shape(optimizer.init, params)
  return _xla_flops(jax.jit(optimizer.update).lower(params, state, params))


def _xla_flops(program: jax.stages.Compiled | jax.stages.Lowered) -> float | None:
  return (program.cost_analysis() or {}).get("flops")


def dot_flops(jaxpr: Any) -> int:
  """Operations of all matrix products in a traced program and in what it calls.

  A product of [a, b] with [b, c] has 2abc; the body of a scan counts each time it runs.

  Example:
    >>> ones = np.ones((3, 5), np.float32)
    >>> dot_flops(jax.make_jaxpr(lambda x: x @ x.T)(ones).jaxpr)
    90
  """
  total = 0
  for equation in jaxpr.eqns:
    if equation.primitive.name == "dot_general":
      (contracted, _), _ = equation.params["dimension_numbers"]
      shape = equation.invars[0].aval.shape
      inner = math.prod(shape[axis] for axis in contracted)
      total += 2 * inner * math.prod(equation.outvars[0].aval.shape)
    times = equation.params["length"] if equation.primitive.name == "scan" else 1
    for value in equation.params.values():
      inner_jaxpr = getattr(value, "jaxpr", value if hasattr(value, "eqns") else None)
      if inner_jaxpr is not None:
        total += times * dot_flops(inner_jaxpr)
  return total
