"""Half a batch, one compiled shape and many, and XLA itself: sections 3.3 and C.

Steps of BERT-tiny on full rows of 128 tokens are timed in turns. A step is compiled once
for the shape of its batch. So packed rows, all of one length, need one program, and batches
that are cut to their longest sequence need one for each length. Each program is compiled,
and none is read from a cache.

References:
  Krell et al., https://arxiv.org/abs/2107.02027, sections 3.3 and 4.2.2; the version of
  2021, section C, "optimizing compilers".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import packing
from lab.exhibits import Exhibit, Part, Statement, judged
from lab.machine import machine_and_device
from lab.plans import measured_once
from lab.statistics import median_interval, spread
from lab.table import table
from lab.timing import steps
from lab.timing.models import make_program
from lab.timing.turns import in_turns, steadiest_clock

ROW_LENGTH, DEPTH = 128, 2
SIZES = ("tiny",)
ROWS = (32, 16, 8, 4, 2)  # of a batch, and of its half
ROUNDS = {False: 60, True: 4}  # by whether it is quick
BY_OPERATION = {False: 10, True: 2}  # rounds, which take seconds each
SHAPES = (128, 96, 64)  # row lengths of which each is compiled
BATCH, BATCHES = 32, 10_000  # sequences of a batch that is cut to its longest, and batches
MULTIPLE = 8  # to which it is rounded up
PAPER_FACTOR = 7


def measure(part: Part, size: str) -> dict[str, Any]:
  """The seconds of a model's steps; measured once on a machine.

  Returns:
    `half`, for each number of rows the seconds of a step with as many and with half of
    them, by round; `compiled` and `by_operation`, seconds of a step with the fewest rows;
    and `compile_seconds` for each of `SHAPES`.
  """
  clock = steadiest_clock()
  made_from: dict[str, Any] = {"machine": machine_and_device(), "size": size}
  made_from |= {"clock": clock, "rounds": ROUNDS[part.quick], "rows": ROWS}
  return measured_once(part, size, made_from, lambda: made_from | _measured(part, size))


def _measured(part: Part, size: str) -> dict[str, Any]:
  clock = steadiest_clock()
  program = make_program(size, longest=ROW_LENGTH)
  trainer = steps.Trainer(program)

  def batch_of(rows: int, row_length: int = ROW_LENGTH) -> dict[str, jax.Array]:
    return program.put_batch(steps.full_rows(row_length, DEPTH, rows))

  batches = {rows: batch_of(rows) for rows in (*ROWS, 1)}
  runs: dict[int, Callable[[int], Any]] = {}
  with steps.without_cache():
    for rows, batch in batches.items():
      step = steps.compile_step(program, batch)
      runs[rows] = trainer.runs(step, [batch], in_a_row=max(1, 16 // rows))
    compile_seconds = [
      steps.compile_step(program, batch_of(BATCH, length)).seconds for length in SHAPES
    ]
  seconds = in_turns(runs, rounds=ROUNDS[part.quick], name=f"steps of {size}", clock=clock)
  of_step = {rows: x / max(1, 16 // rows) for rows, x in seconds.items()}

  few = batches[ROWS[-1]]
  state = program.init()

  def by_operation(_: int):
    with jax.disable_jit():
      return program.train_step(state, few)[1]

  both = {"compiled": runs[ROWS[-1]], "by_operation": by_operation}
  rounds = BY_OPERATION[part.quick]
  taken = in_turns(both, rounds=rounds, name=f"without jit, {size}", clock="wall")
  return {
    "half": {
      str(rows): [of_step[rows].tolist(), of_step[rows // 2].tolist()] for rows in ROWS
    },
    "compiled": (taken["compiled"] / max(1, 16 // ROWS[-1])).tolist(),
    "by_operation": taken["by_operation"].tolist(),
    "compile_seconds": compile_seconds,
  }


def half_a_batch(part: Part, measured: dict[str, dict[str, Any]]) -> Exhibit:
  """The exhibit of steps with half of the rows."""
  rows, statements = [], []
  for size, record in measured.items():
    for number, (whole, half) in record["half"].items():
      ratio = median_interval(2 * np.array(half) / np.array(whole))
      milliseconds = f"{1e3 * np.median(whole):.1f}, {1e3 * np.median(half):.1f}"
      what = f"BERT-{size}, {number} rows to {int(number) // 2}"
      rows.append([what, milliseconds, spread(ratio, 3)])
      statements.append(_slower(what, ratio, len(whole)))
  most = max(float(row[2].split()[0]) for row in rows)
  return part.exhibit(
    "Section 3.3, half a batch",
    "Two steps with half of the rows against one with all of them",
    f"Two half steps take up to {most:.2f} times as long as a whole one.",
    claim="Cutting the batch by half usually reduces throughput.",
    statements=statements,
    text=table(["", "ms a step, whole and half", "2 x half / whole"], rows)
    + f"\n\nRows of {ROW_LENGTH} tokens with {DEPTH} sequences each. Medians and their 95 "
    f"% intervals; {steadiest_clock()} time; {machine_and_device()}. A step also updates "
    "all parameters, whatever its rows.",
  )


def _slower(what: str, ratio: dict[str, float], rounds: int) -> Statement:
  return judged(
    f"{what}: half of the rows reduce throughput",
    ratio["low"] > 1,
    f"time of two half steps over that of a whole one {spread(ratio, 3)}, median and its "
    f"95 % interval, {rounds} rounds; expected above 1",
    fails=ratio["high"] < 1,
  )


def numbers_of_shapes() -> tuple[int, int]:
  """How many shapes `BATCHES` random batches of sequences of Wikipedia have.

  Returns:
    If each is cut to its longest sequence; and if it is un-padded, so that its tokens
    count. Both are rounded up to `MULTIPLE`.
  """
  histogram = packing.load_histogram("wikipedia_512")
  shares = histogram.counts / histogram.counts.sum()
  rng = np.random.default_rng(0)
  lengths = rng.choice(np.arange(1, 513), size=(BATCHES, BATCH), p=shares)
  longest, tokens = (-(-x // MULTIPLE) for x in (lengths.max(axis=1), lengths.sum(axis=1)))
  return len(np.unique(longest)), len(np.unique(tokens))


def compiled_shapes(part: Part, measured: dict[str, dict[str, Any]]) -> Exhibit:
  """The exhibit of the price of many shapes, and of steps that are not compiled."""
  cut, unpadded = numbers_of_shapes()
  rows, factors = [], []
  for size, record in measured.items():
    compiling = float(np.median(record["compile_seconds"]))
    factor = np.median(record["by_operation"]) / np.median(record["compiled"])
    factors.append(factor)
    row = [f"BERT-{size}"]
    row += [f"{count * compiling:,.0f}" for count in (1, cut, unpadded)]
    rows.append([*row, f"{factor:.0f}"])
  header = ["", "seconds to compile a shape"]
  header += [f"{count:,} shapes" for count in (cut, unpadded)]
  header += ["a step by operation / compiled"]
  return part.exhibit(
    "Section C, optimizing compilers",
    "One compiled shape and many, and steps that are not compiled",
    f"In {BATCHES:,} batches of {BATCH} sequences, those cut to their longest have {cut} "
    f"shapes and those un-padded {unpadded:,}; packed ones have one. A step that runs "
    f"operation by operation takes {' and '.join(f'{x:.0f}' for x in factors)} times as "
    "long as a compiled one.",
    claim=f"Compilers such as XLA make BERT about {PAPER_FACTOR} times as fast, and "
    "another sequence length or batch size needs another compilation.",
    text=table(header, rows)
    + f"\n\nLengths are drawn from Wikipedia's at 512 tokens; shapes are rounded up to "
    f"{MULTIPLE} tokens. By operation is a whole step under `jax.disable_jit`, in which "
    "XLA still compiles each operation by itself: JAX has no other way to compute, so the "
    "paper's factor, of TensorFlow with and without XLA, has no equal here. "
    f"{ROWS[-1]} rows; wall-clock time; {machine_and_device()}.",
  )


def exhibits(part: Part) -> list[Exhibit]:
  """Measures what is not measured yet on this machine; quick ones have fewer rounds."""
  measured = {size: measure(part, size) for size in SIZES}
  return [half_a_batch(part, measured), compiled_shapes(part, measured)]
