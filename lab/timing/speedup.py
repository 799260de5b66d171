"""The speed-up of packing: steps on packed rows, and on rows of one sequence, in turns."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

import packing
from lab.statistics import median_interval, quartiles
from lab.timing import steps, turns
from lab.timing.models import make_config, make_optimizer
from launch.record.flops import training_flops
from model import AttentionError, BertConfig, ModelConfig
from model.attention import check_model
from model.masks import pairs_within
from training.mesh import make_mesh, put_batch
from training.step import TrainingProgram

KINDS = ("packed", "unpacked")
LEAST_ROUNDS = 15  # before a narrow interval is believed


def make_batches(
  plan: packing.Plan, *, rows: int, number: int
) -> dict[str, list[dict[str, np.ndarray]]]:
  """PackedBatches of packs, "packed", and of the same sequences one a row, "unpacked".

  There are `number` batches of each kind, with `rows` rows each. Each pack of the plan is
  equally likely. The unpacked batches have too few rows for all sequences of the packs, so
  they hold a random part of them.
  """
  rng = np.random.default_rng(0)
  by_depth = sorted(range(plan.num_strategies), key=lambda k: len(plan.strategies[k]))
  ends = np.cumsum(plan.repeat_counts[by_depth])
  # Spread evenly over packs sorted by depth, so that together they have the plan's factor.
  places = (np.arange(number * rows) + rng.random()) / (number * rows) * plan.num_packs
  drawn = rng.permutation(np.searchsorted(ends, places, side="right"))
  packs = [plan.strategies[by_depth[index]] for index in drawn.tolist()]
  alone = [(length,) for length in rng.permutation(np.concatenate(packs)).tolist()]

  def batches(packs: Sequence[Sequence[int]], depth: int) -> list[dict]:
    parts = [packs[start : start + rows] for start in range(0, number * rows, rows)]
    row = plan.row_length
    return [steps.random_batch(x, rng, row_length=row, max_sequences=depth) for x in parts]

  return {"packed": batches(packs, plan.packing_depth), "unpacked": batches(alone, 1)}


def make_programs(
  size: str,
  implementation: str,
  dtype: str,
  row_length: int,
  *,
  family: str = "bert",
  **fields: Any,
) -> dict[str, TrainingProgram]:
  """The packed model and an ordinary one, as "packed" and "unpacked".

  Args:
    size: of the model.
    implementation: of attention.
    dtype: of the computation.
    row_length: S, in tokens.
    family: a key of `models.FAMILIES`.
    fields: of the model's config, other than those of `models.make_config`.

  Raises:
    AttentionError: the implementation cannot run here.
  """
  config = make_config(size, longest=row_length, family=family)
  fields |= {"attention_impl": implementation, "dtype": jnp.dtype(dtype)}
  config = dataclasses.replace(config, **fields)
  check_model(config, row_length)
  without: dict[str, Any] = {"attention_mask": "none"}
  if isinstance(config, BertConfig):  # a ModernBERT knows only distances
    without["position_reset"] = False
  ordinary = dataclasses.replace(config, **without)
  start: dict[str, Any] = {"mesh": make_mesh(1), "seed": 0}
  return {
    "packed": TrainingProgram(config, make_optimizer(), loss_unit="sequence", **start),
    "unpacked": TrainingProgram(ordinary, make_optimizer(), loss_unit="token", **start),
  }


def measure(
  plan: packing.Plan,
  *,
  size: str,
  dtype: str,
  implementations: Sequence[str],
  rows: int,
  rounds: int,
  clock: str = "wall",
  width: float = 0.0,
) -> list[dict[str, Any]]:
  """Times steps of packed and of unpacked rows with each implementation, all in turns.

  Ends after `rounds`; or earlier, from `LEAST_ROUNDS` on, as soon as the `median_interval`
  of the `ratios` of each implementation is narrower than `width`.

  Returns:
    A record for each implementation: the results of `summarise`; `bytes` by kind of step,
    as XLA plans them; and `flops` by kind of step, those of `model_flops`. If an
    implementation cannot run here, its record has the reason as `not_run` instead.
  """
  batches = make_batches(plan, rows=rows, number=rounds + 1)
  placed = {kind: [put_batch(x, make_mesh(1)) for x in batches[kind]] for kind in KINDS}
  product, product_flops = turns.products(dtype)
  runs: dict[str, Callable[[int], Any]] = {"product": product}
  records: list[dict[str, Any]] = []
  trainer = None
  for name in implementations:
    record: dict[str, Any] = {"row_length": plan.row_length, "attention": name}
    records.append(record)
    try:
      programs = make_programs(size, name, dtype, plan.row_length)
    except AttentionError as error:
      record["not_run"] = str(error)
      continue
    trainer = trainer or steps.Trainer(programs["packed"])
    record["bytes"], record["flops"] = {}, {}
    for kind, program in programs.items():
      print(f"compiling: {name}, {kind}", file=sys.stderr)
      step = steps.compile_step(program, placed[kind][0])
      record["bytes"][kind] = step.bytes
      record["flops"][kind] = model_flops(program.config, batches[kind])
      runs[f"{name} {kind}"] = trainer.runs(step, placed[kind])
    runs[f"{name} again"] = runs[f"{name} unpacked"]
  ran = [record for record in records if "flops" in record]
  if not ran:
    return records

  def enough(seconds: dict[str, np.ndarray]) -> bool:
    if len(seconds["product"]) < LEAST_ROUNDS:
      return False
    names = [record["attention"] for record in ran]
    ratios = [seconds[f"{name} unpacked"] / seconds[f"{name} packed"] for name in names]
    intervals = [median_interval(x) for x in ratios]
    return all(x["high"] - x["low"] < width for x in intervals)

  name = f"rows of {plan.row_length}"
  seconds = turns.in_turns(runs, rounds=rounds, name=name, clock=clock, enough=enough)
  counted = batches["packed"][1 : 1 + len(seconds["product"])]
  sequences = np.array([int(x["sequence_mask"].sum()) for x in counted])
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


def model_flops(
  config: ModelConfig, batches: Sequence[Mapping[str, np.ndarray]]
) -> dict[str, int]:
  """`training_flops` of a step on one of these batches, which have one shape.

  Returns:
    Of the "model"; and the same with only the pairs of tokens of "one_sequence", in local
    layers within the window, on average over the batches.
  """
  rows = np.concatenate([batch["segment_ids"] for batch in batches])
  lengths = np.concatenate([np.bincount(row)[1:].astype(np.int64) for row in rows])
  windows = map(config.window_of, range(config.num_layers))
  pairs = sum(int(pairs_within(lengths, x).sum()) for x in windows) // len(batches)
  shapes = {name: array.shape for name, array in batches[0].items()}
  count = functools.partial(
    training_flops,
    config,
    rows=shapes["input_ids"][0],
    row_length=shapes["input_ids"][1],
    mlm_slots=shapes["mlm_positions"][1],
    max_sequences=shapes["cls_positions"][1],
  )
  return {"model": count(), "one_sequence": count(pairs=pairs)}


def summarise(
  seconds: Mapping[str, np.ndarray],
  sequences: np.ndarray,
  *,
  rows: int,
  packing_factor: float,
  flops: Mapping[str, int],
  product_flops: int,
) -> dict[str, Any]:
  """Ratios per round, as medians and quartiles.

  Args:
    seconds: float[rounds] each: of "packed" and "unpacked" steps; of the unpacked steps run
      "again"; of the unpacked steps of the "fastest" implementation; of the "product".
    sequences: int[rounds]; those in each packed batch. An unpacked batch has `rows`.
    rows: of a batch of either kind.
    packing_factor: of the plan.
    flops, product_flops: operations of a step of either kind, and of the products.

  Returns:
    `plan_factor` and `batch_factor`, the packing factors of the plan and of all batches
    together; `over_factor`, seconds of unpacked steps divided by those of packed steps,
    which is the speed-up divided by the packing factor, as both have as many rows;
    `ratios`, the same for each round; `speedup`, `over_factor` times `batch_factor`, so
    that its spread comes from the clock and not from the draw; `over_fastest`, like
    `over_factor`, against the fastest unpacked steps; `noise`, unpacked steps against
    themselves; `share` by kind, operations a second divided by those of the product;
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
    "ratios": of_time.tolist(),
    "over_fastest": quartiles(seconds["fastest"] / seconds["packed"]),
    "noise": quartiles(seconds["again"] / seconds["unpacked"]),
    "share": {kind: quartiles(flops[kind] / seconds[kind] / rate) for kind in KINDS},
    "seconds": {kind: quartiles(seconds[kind]) for kind in KINDS},
    "product_rate": quartiles(rate),
  }
