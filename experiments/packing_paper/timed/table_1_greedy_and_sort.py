"""Overhead and speed-up of GREEDY and SORT, two rows of Table 1.

Greedy packs are timed like the plans of `table_2_speedups`. Sorted batches have many
lengths, and a program has to be compiled for each.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

import packing
from experiments.packing_paper.packs.tables_1_5_6_7_packing import WIKIPEDIA, greedy_plan
from experiments.packing_paper.timed import table_2_speedups as speedups
from lab.exhibits import Exhibit, Part
from lab.machine import machine_and_device
from lab.plans import measured_once
from lab.statistics import quartiles, spread
from lab.table import table
from lab.timing import speedup, steps, turns
from training.mesh import make_mesh, put_batch

SIZE = "mini"
GREEDY = (4.48, 1.5)  # overhead in percent and realised speed-up, Table 1
ROW = 512  # tokens
ROUNDS = {False: 15, True: 3}  # by whether it is quick
LENGTHS = {False: (32, 64, 128, 256, 384, ROW), True: (256, ROW)}


def measure_lengths(part: Part) -> dict[str, Any]:
  """Times of compiling and of steps, with unpacked rows of some lengths; measured once.

  Both are on the steadier clock, which on a CPU is processor time.
  """
  lengths, rounds = LENGTHS[part.quick], ROUNDS[part.quick]
  measured = {"machine": machine_and_device(), "lengths": lengths, "rounds": rounds}
  measured["clock"] = turns.steadiest_clock()

  def make() -> dict[str, Any]:
    return measured | {"record": _measure_lengths(lengths, rounds)}

  return measured_once(part, "sorted", measured, make)["record"]


def _measure_lengths(lengths, rounds: int) -> dict[str, Any]:
  compiling, runs, trainer = {}, {}, None
  clock = turns.steadiest_clock()
  now = time.process_time if clock == "processor" else time.perf_counter
  for length in lengths:
    program = speedup.make_programs(SIZE, "xla", "float32", ROW)["unpacked"]
    trainer = trainer or steps.Trainer(program)
    rows = speedups.TOKENS // length
    batch = put_batch(steps.full_rows(length, 1, rows), make_mesh(1))
    with steps.without_cache():
      start = now()
      step = steps.compile_step(program, batch)
      compiling[length] = now() - start
    runs[length] = trainer.runs(step, [batch])
  seconds = turns.in_turns(runs, rounds=rounds, name="sorted batches", clock=clock)
  return {
    "compiling": list(compiling.values()),
    "steps": [seconds[length].tolist() for length in lengths],
  }


def of_sorted(
  record: Mapping[str, Any], lengths, batches: packing.SortedBatches
) -> dict[str, Any]:
  """The speed-up of sorted batches over rows of the longest length, from timed lengths.

  Batches have as many tokens as the timed steps.

  Args:
    record: from `measure_lengths`.
    lengths: those that were timed, in tokens; the last is that of a padded row.
    batches: from `packing.sorted_batches`.

  Returns:
    `speedup`, quartiles over rounds, without any compiling; `once`, the same if each length
    is compiled once, and `overhead_once` in percent; `compiling`, the seconds of compiling
    divided by those of a step, in percent: the overhead if each step is compiled.
  """
  sequences = np.array(list(batches.sequences_by_length.values()), float)
  wanted = np.array(list(batches.sequences_by_length), float)
  seconds = np.array(record["steps"])  # [lengths, rounds]
  rows = speedups.TOKENS // np.array(lengths)
  a_sequence = seconds / rows[:, None]
  totals = np.array([np.interp(wanted, lengths, x) @ sequences for x in a_sequence.T])
  compiling = np.interp(wanted, lengths, record["compiling"])
  more = float(compiling.sum() / np.median(totals))
  gain = quartiles(a_sequence[-1] * sequences.sum() / totals)
  a_step = float(np.median(seconds))
  return {
    "speedup": gain,
    "once": {name: x / (1 + more) for name, x in gain.items()},
    "overhead_once": 100 * more,
    "compiling": 100 * float(np.median(record["compiling"])) / a_step,
  }


def exhibits(part: Part) -> list[Exhibit]:
  """Both rows, in one exhibit."""
  greedy = greedy_plan(part, seed=0)
  record = speedups.measure(part, greedy, SIZE)
  bias = max(speedups.bias(x) for x in (part, part.sibling("speedups")))
  overhead = 100 / record["over_factor"]["median"] - 100
  batches = packing.sorted_batches(packing.load_histogram(WIKIPEDIA))
  of_sort = of_sorted(measure_lengths(part), LENGTHS[part.quick], batches)
  rows = [
    [
      "GREEDY",
      f"{GREEDY[0]}",
      f"{overhead:.1f}",
      f"{GREEDY[1]}",
      speedups.speedup_of_plan(record),
    ],
    [
      "SORT, compiled at each step",
      ">> 100",
      f"{of_sort['compiling']:,.0f}",
      "",
      f"{of_sort['speedup']['median'] / (1 + of_sort['compiling'] / 100):.3f}",
    ],
    [
      "SORT, each length compiled once",
      "",
      f"{of_sort['overhead_once']:.3f}",
      "",
      spread(of_sort["once"], 3),
    ],
  ]
  header = ["", "paper: overhead (%)", "here", "paper: realised speed-up", "here"]
  compiling = of_sort["compiling"]
  return [
    part.exhibit(
      "Table 1, GREEDY and SORT",
      "Overhead and realised speed-up of greedy packing and sorted batches",
      f"Greedy packs are {speedups.speedup_of_plan(record)} times as fast as padded rows. "
      f"Compiling a step takes {compiling / 100:.0f} times as long as the step. If each "
      "batch needs it, sorted batches lose all they gain; if each length is compiled once, "
      f"they are {spread(of_sort['once'])} times as fast.",
      claim="Greedy packing is 1.5 times as fast; sorted batches have an overhead far "
      "above 100 % on an IPU.",
      statements=[speedups.enough("greedy", record, bias=bias)],
      text=f"{table(header, rows)}\n\nBERT-{SIZE}, {speedups.TOKENS:,} "
      f"tokens a step. Sorted batches have {batches.num_shapes} lengths; the program "
      "compiled for a length is used for "
      f"{batches.num_batches / batches.num_shapes:,.0f} batches of {batches.batch_size} on "
      "average. Compiling and steps were timed at "
      f"{', '.join(map(str, LENGTHS[part.quick]))} tokens, in {turns.steadiest_clock()} "
      f"time, in {ROUNDS[part.quick]} rounds (median and quartiles are shown), and "
      "interpolated linearly at other lengths; shorter rows count as the shortest. Sorted "
      "batches also avoid the attention of longer rows, which packs compute. "
      f"Greedy packs: {speedups.TIMED}",
    )
  ]
