"""The cost of ModernBERT's training steps in long rows: time, and memory by XLA's plan.

  python -m benchmarks.modern_bert --size tiny --row-lengths 1024,8192 --json FILE

A row holds sequences of 512 random tokens, 15 % of them masked. Two of three layers are
local, as published, or all layers are global. Layers keep their activations or recompute
them (remat). Steps are timed in turns. Ratios are taken per round, relative to `xla` with
global layers that keep their activations.
"""

from __future__ import annotations

import itertools
import sys
from typing import NamedTuple

import jax
import numpy as np

from benchmarks.command import add, make_parser, run, several, write
from benchmarks.small_bert import ADAMW, VOCAB_SIZE, machine_and_device
from benchmarks.steps import (
  Trainer,
  compile_step,
  in_turns,
  quartiles,
  random_batch,
  spread,
)
from benchmarks.table import print_table
from model import ModernBertConfig
from training.command import positive
from training.mesh import make_mesh
from training.optimizer import adamw
from training.step import TrainingProgram

SEQUENCE = 512  # tokens
LAYERS = {"global": 1, "local": ModernBertConfig.global_every}  # name: global_every
IMPLEMENTATIONS = ("xla", "blocks")


class Way(NamedTuple):
  """How a step is computed; `layers` is a key of `LAYERS`."""

  attention: str
  layers: str
  remat: str


FIRST = Way("xla", "global", "none")
WAYS = [Way(*way) for way in itertools.product(IMPLEMENTATIONS, LAYERS, ("none", "layers"))]


def make_program(size: str, way: Way) -> TrainingProgram:
  config = ModernBertConfig.from_size(
    size,
    vocab_size=VOCAB_SIZE,
    global_every=LAYERS[way.layers],
    attention_impl=way.attention,
    remat=way.remat,
  )
  optimizer = adamw(**ADAMW, clip_norm=0.0, clip_update=1.0)
  return TrainingProgram(config, optimizer, mesh=make_mesh(1), seed=0, loss_unit="token")


def measure(size: str, row_length: int, *, rows: int, rounds: int) -> list[dict]:
  """A record for each of `WAYS`."""
  rng = np.random.default_rng(0)
  packs = [[SEQUENCE] * (row_length // SEQUENCE)] * rows
  shape = {"row_length": row_length, "max_sequences": len(packs[0])}
  batch = jax.device_put(random_batch(packs, rng, **shape))
  programs = {way: make_program(size, way) for way in WAYS}
  steps = {way: compile_step(program, batch) for way, program in programs.items()}
  runs = {way: Trainer(programs[way]).runs(step, [batch]) for way, step in steps.items()}
  seconds = in_turns(runs, rounds=rounds, name=f"{size} {row_length}")
  return [
    {
      "size": size,
      "row_length": row_length,
      "rows": rows,
      **way._asdict(),
      "bytes": steps[way].bytes,
      "dot_flops": steps[way].dot_flops,
      "seconds": quartiles(seconds[way]),
      "ratio": quartiles(seconds[way] / seconds[FIRST]),
    }
    for way in WAYS
  ]


def _shown(record: dict) -> dict[str, str]:
  return {
    "S": f"{record['row_length']:,}",
    "attention": record["attention"],
    "layers": record["layers"],
    "remat": record["remat"],
    "memory": f"{record['bytes'] / 2**30:.2f} GiB",
    "step": f"{spread(record['seconds'])} s",
    "of the first": spread(record["ratio"]),
  }


def main(arguments: list[str] | None = None):
  parser = make_parser(__doc__)
  sizes = list(ModernBertConfig.SIZES)
  add(parser, "--size", "tiny", "size of the model", choices=sizes)
  add(parser, "--row-lengths", [1024, 8192], "in tokens", type=several(positive))
  add(parser, "--rows", 1, "rows in a step")
  add(parser, "--rounds", 5, "rounds, after one that is not counted")
  options = parser.parse_args(arguments)
  for length in options.row_lengths:
    if length % SEQUENCE:
      parser.error(f"--row-lengths has {length}; expected multiples of {SEQUENCE}")
  machine = machine_and_device()
  print(f"{machine}\n")
  records = (
    record
    for length in options.row_lengths
    for record in measure(options.size, length, rows=options.rows, rounds=options.rounds)
  )
  left = ("S", "attention", "layers", "remat")
  write(options, machine, results=print_table(records, _shown, left=left))


if __name__ == "__main__":
  sys.exit(run(main))
