"""What packing gives in training: its speed-up, and the share of the machine's peak.

    python -m benchmarks.speedup
    python -m benchmarks.speedup --row-lengths 128 --size tiny --rounds 5
    python -m benchmarks.speedup --size base --tokens 65536     on an accelerator

Rows have the lengths of the paper's histograms of Wikipedia. Packed, they are packs drawn
from the optimal plan; unpacked, the same sequences one a row, and the model an ordinary
one: a padding mask, the row's positions, one [CLS], the mean over tokens. Both make whole
training steps of as many rows, LAMB too, from batches that are on the device. Each round
runs all of them and a product of large matrices, in another order, with sequences of its
own; ratios are taken round by round: medians and quartiles.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import packing
from benchmarks.command import (
  add_clock,
  add_dtype,
  add_number,
  make_parser,
  run,
  some_of,
  write,
)
from benchmarks.small_bert import machine_and_device, make_config, make_optimizer
from benchmarks.speedup_tables import (
  KINDS,
  SPEEDUP_HEADER,
  SPEEDUP_RIGHT,
  share_table,
  speedup_row,
)
from benchmarks.steps import (
  MEASURED,
  Trainer,
  compile_step,
  in_turns,
  not_run_lines,
  quartiles,
  random_batch,
  update_flops,
  why_not,
)
from benchmarks.table import print_table
from model import IMPLEMENTATIONS, SIZES, AttentionError
from training.mesh import make_mesh, put_batch
from training.record.flops import peak_of, training_flops
from training.step import TrainingProgram


def make_batches(
  plan: packing.Plan, *, rows: int, number: int, seed: int = 0
) -> dict[str, list[dict[str, np.ndarray]]]:
  """PackedBatches of packs, "packed", and of the same sequences one a row, "unpacked".

  Each pack of the plan is equally likely. There are `number` batches of B rows of each
  kind; sequences without a row in the unpacked ones are left out at random.
  """
  rng = np.random.default_rng(seed)
  by_depth = sorted(range(plan.num_strategies), key=lambda k: len(plan.strategies[k]))
  ends = np.cumsum(plan.repeat_counts[by_depth])
  # Evenly over packs sorted by depth: together they have the packing factor of the plan.
  places = (np.arange(number * rows) + rng.random()) / (number * rows) * plan.num_packs
  drawn = rng.permutation(np.searchsorted(ends, places, side="right"))
  packs = [plan.strategies[by_depth[index]] for index in drawn.tolist()]
  alone = [(length,) for length in rng.permutation(np.concatenate(packs)).tolist()]

  def batches(packs: Sequence[Sequence[int]], depth: int) -> list[dict]:
    parts = [packs[start : start + rows] for start in range(0, number * rows, rows)]
    row = plan.row_length
    return [random_batch(x, rng, row_length=row, max_sequences=depth) for x in parts]

  return {"packed": batches(packs, plan.packing_depth), "unpacked": batches(alone, 1)}


def make_programs(
  size: str, implementation: str, dtype: str, row_length: int
) -> dict[str, TrainingProgram]:
  """The packed model and an ordinary one, as "packed" and "unpacked".

  Raises:
    AttentionError: the implementation cannot run here.
  """
  config = make_config(
    size, longest=row_length, attention_impl=implementation, dtype=jnp.dtype(dtype)
  )
  if reason := why_not(config, row_length):
    raise AttentionError(reason)
  ordinary = dataclasses.replace(config, attention_mask="none", position_reset=False)
  kinds = {"packed": (config, "sequence"), "unpacked": (ordinary, "token")}
  return {
    kind: TrainingProgram(
      config, make_optimizer(), mesh=make_mesh(1), seed=0, loss_unit=loss_unit
    )
    for kind, (config, loss_unit) in kinds.items()
  }


def matrix_product(dtype: str) -> tuple[Callable[[], jax.Array], int]:
  """A product large enough for the clock, and its operations."""
  multiply = jax.jit(jnp.matmul)
  size, seconds = 512, 0.0
  while seconds < 0.05:
    size *= 2
    matrix = jax.random.normal(jax.random.key(0), (size, size), dtype)
    seconds = math.inf
    for _ in range(4):  # the first compiles
      start = time.perf_counter()
      multiply(matrix, matrix).block_until_ready()
      seconds = min(seconds, time.perf_counter() - start)
  return lambda: multiply(matrix, matrix), 2 * size**3


def measure(
  plan: packing.Plan,
  *,
  size: str,
  dtype: str,
  implementations: Sequence[str],
  rows: int,
  rounds: int,
  clock: str = "wall",
) -> list[dict[str, Any]]:
  """Times steps of packed and of unpacked rows with each implementation, all in turns.

  Returns:
    For each implementation what `summarise` gives; `bytes` of both kinds of steps, by XLA's
    plan; and `flops` of both: by `training_flops`, and with pairs of one sequence alone; of
    the dots, by XLA and, of these, of LAMB's update. Or `not_run`, the reason.
  """
  batches = make_batches(plan, rows=rows, number=rounds + 1)
  placed = {kind: [put_batch(x, make_mesh(1)) for x in batches[kind]] for kind in KINDS}
  slots = {kind: batches[kind][0] for kind in KINDS}
  product, product_flops = matrix_product(dtype)
  runs: dict[str, Callable[[int], Any]] = {"product": lambda _: product()}
  records: list[dict[str, Any]] = []
  trainer = None
  pairs = {kind: _mean_pairs(batches[kind]) for kind in KINDS}
  for name in implementations:
    record: dict[str, Any] = {"row_length": plan.row_length, "attention": name}
    records.append(record)
    try:
      programs = make_programs(size, name, dtype, plan.row_length)
    except AttentionError as error:
      record["not_run"] = str(error)
      continue
    trainer = trainer or Trainer(programs["packed"])
    compiled = {kind: compile_step(programs[kind], placed[kind][0]) for kind in KINDS}
    count = {
      kind: functools.partial(
        training_flops,
        programs[kind].config,
        rows=rows,
        row_length=plan.row_length,
        mlm_slots=slots[kind]["mlm_positions"].shape[1],
        max_sequences=slots[kind]["cls_positions"].shape[1],
      )
      for kind in KINDS
    }
    record["bytes"] = {kind: compiled[kind].bytes for kind in KINDS}
    record["flops"] = {
      kind: {
        "model": count[kind](),
        "one_sequence": count[kind](pairs=pairs[kind]),
        "dots": compiled[kind].dot_flops,
        "xla": compiled[kind].xla_flops,
        "update": update_flops(make_optimizer(), programs[kind]),
      }
      for kind in KINDS
    }
    for kind in (*KINDS, "again"):
      of = "unpacked" if kind == "again" else kind
      runs[f"{name} {kind}"] = functools.partial(_start, trainer, compiled[of], placed[of])
  ran = [record for record in records if "flops" in record]
  if not ran:
    return records
  name = f"rows of {plan.row_length}"
  seconds = in_turns(runs, rounds=rounds, seed=0, name=name, clock=clock)
  sequences = np.array([int(x["sequence_mask"].sum()) for x in batches["packed"][1:]])
  fastest = min((seconds[f"{x['attention']} unpacked"] for x in ran), key=np.median)
  for record in ran:
    of_kinds = {k: seconds[f"{record['attention']} {k}"] for k in (*KINDS, "again")}
    record |= summarise(
      of_kinds | {"product": seconds["product"], "fastest": fastest},
      sequences,
      rows=rows,
      packing_factor=plan.packing_factor,
      flops={kind: record["flops"][kind]["model"] for kind in KINDS},
      product_flops=product_flops,
    )
  return records


def _mean_pairs(batches: Sequence[Mapping[str, np.ndarray]]) -> int:
  """Pairs of tokens of one sequence in a batch, on average."""
  rows = np.concatenate([batch["segment_ids"] for batch in batches])
  squares = [np.square(np.bincount(row)[1:].astype(np.int64)).sum() for row in rows]
  return int(np.sum(squares)) // len(batches)


def _start(trainer: Trainer, step, batches: Sequence[dict], number: int):
  return trainer.start(step, batches[number])


def summarise(
  seconds: Mapping[str, np.ndarray],
  sequences: np.ndarray,
  *,
  rows: int,
  packing_factor: float,
  flops: Mapping[str, int],
  product_flops: int,
) -> dict[str, Any]:
  """Ratios round by round, as medians and quartiles.

  Args:
    seconds: float[rounds] of "packed" and "unpacked" steps, of the latter "again", of the
      "fastest" unpacked steps of any implementation, and of the "product".
    sequences: int[rounds]; in each packed batch.
    rows: B; sequences of an unpacked batch.
    packing_factor: of the plan.
    flops: operations of a step of either kind.
    product_flops: operations of the product.

  Returns:
    `plan_factor` and `batch_factor`, the packing factors of the plan and of all batches
    together; `over_factor`, seconds of unpacked steps over those of packed ones: the
    speed-up over the packing factor, as both have as many rows; `speedup`, that times
    `batch_factor`, so that its spread is that of the clock and not of the draw;
    `over_fastest`, as `over_factor` beside the fastest unpacked step; `noise`, unpacked
    over itself; `share` by kind, operations a second over those of the product;
    `seconds` by kind, and `product_rate`.
  """
  factor = float(sequences.mean()) / rows
  of_time = seconds["unpacked"] / seconds["packed"]
  rate = product_flops / seconds["product"]
  return {
    "plan_factor": packing_factor,
    "batch_factor": factor,
    "speedup": quartiles(factor * of_time),
    "over_factor": quartiles(of_time),
    "over_fastest": quartiles(seconds["fastest"] / seconds["packed"]),
    "noise": quartiles(seconds["again"] / seconds["unpacked"]),
    "share": {kind: quartiles(flops[kind] / seconds[kind] / rate) for kind in KINDS},
    "seconds": {kind: quartiles(seconds[kind]) for kind in KINDS},
    "product_rate": quartiles(rate),
  }


def main(arguments: list[str] | None = None):
  parser = make_parser(__doc__)
  known = [
    name.removeprefix("wikipedia_")
    for name in packing.histogram_names()
    if name.startswith("wikipedia_")
  ]
  parser.add_argument(
    "--row-lengths",
    type=some_of(known),
    default=["128", "384", "512"],
    help=f"some of {','.join(known)} (default: 128,384,512)",
  )
  parser.add_argument(
    "--size", choices=list(SIZES), default="mini", help="of the model (default: mini)"
  )
  add_number(parser, "--depth", 3, "of a pack")
  add_number(parser, "--tokens", 4096, "of a step, B x S at most")
  add_number(parser, "--rounds", 15)
  parser.add_argument(
    "--implementations",
    type=some_of(IMPLEMENTATIONS),
    default=list(MEASURED),
    help=f"of attention (default: {','.join(MEASURED)})",
  )
  add_dtype(parser)
  add_clock(parser)
  options = parser.parse_args(arguments)
  longest = max(map(int, options.row_lengths))
  if options.tokens < longest:
    parser.error(f"--tokens is {options.tokens}; expected at least a row, {longest}")
  peak = peak_of(jax.devices()[:1], dtype=options.dtype)
  machine = machine_and_device()
  print(machine)
  print(
    f"Peak as training logs it: {peak.flops / 1e9:,.0f} GFLOP/s ({peak.source})\n\n"
    f"BERT-{options.size}, {options.dtype}, {options.tokens} tokens a step at most, "
    f"depth {options.depth}, {options.rounds} rounds, {options.clock} time\n\n"
    "Realised speed-up\n"
  )
  records: list[dict] = []
  rows = _measured_rows(options, records)
  print_table(SPEEDUP_HEADER, rows, right=SPEEDUP_RIGHT)
  write(options, machine, peak=dataclasses.asdict(peak), steps=records)
  reasons = [(x["attention"], x["not_run"]) for x in records if "not_run" in x]
  if reasons:
    print(f"\n{not_run_lines(reasons)}")
  print(f"\nShare of the machine's peak\n\n{share_table(records)}")


def _measured_rows(options, records: list[dict]) -> Iterator[list[str]]:
  """Measures each row length; adds to the records, and yields a row of the table."""
  for row_length in options.row_lengths:
    histogram = packing.load_histogram(f"wikipedia_{row_length}")
    plan = packing.pack(
      histogram, algorithm="optimal", max_sequences_per_pack=options.depth
    )
    measured = measure(
      plan,
      size=options.size,
      dtype=options.dtype,
      implementations=options.implementations,
      rows=options.tokens // plan.row_length,
      rounds=options.rounds,
      clock=options.clock,
    )
    records += measured
    yield from (speedup_row(x) for x in measured if "not_run" not in x)


if __name__ == "__main__":
  sys.exit(run(main))
