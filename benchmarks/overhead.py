"""The overhead of packing: the packed model against an ordinary one on the same shapes.

  python -m benchmarks.overhead --sizes mini,base --row-lengths 128,384,512 --json FILE

Both models compute B rows of S tokens with P slots for masked tokens. The ordinary model
has one sequence a row, a padding mask, the row's own positions, and the mean loss over
tokens. The packed model compares segment ids, looks up positions, reads the [CLS] of M
sequences and averages the loss per sequence. A step computes the loss and all gradients.
Each round times a step of both models, in random order; ratios are taken per round and
reported as median and quartiles. A second ordinary step in each round shows the noise.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
import time

import flax.nnx as nnx
import jax
import numpy as np

from benchmarks.command import add, make_parser, run, several, some_of, write
from benchmarks.small_bert import MASK_RATE, machine_and_device, make_config
from benchmarks.steps import in_turns, quartiles, random_batch
from benchmarks.table import print_table
from model import SIZES, BertConfig, losses
from model.models import abstract_model, draw_params
from training.command import positive

SEQUENCES_A_PACK = 3
SHORTEST, LONGEST = 32, 512  # row lengths: for three sequences; the models' positions


def make_batches(row_length: int, num_rows: int) -> tuple[dict, dict]:
  """A packed batch and an ordinary one: full rows, with as many slots for masked tokens."""
  rng = np.random.default_rng(0)
  max_masked = int(MASK_RATE * row_length) + SEQUENCES_A_PACK
  places = np.arange(8, row_length - 8, 8)
  cuts = [np.sort(rng.choice(places, 2, replace=False)) for _ in range(num_rows)]
  packs = [np.diff([0, *each, row_length]).tolist() for each in cuts]
  alone = [[row_length]] * num_rows
  shape = {"row_length": row_length, "max_masked": max_masked}
  packed = random_batch(packs, rng, max_sequences=SEQUENCES_A_PACK, **shape)
  return packed, random_batch(alone, rng, max_sequences=1, **shape)


def make_step(config: BertConfig, unit: str):
  graphdef, _ = abstract_model(config, "pretraining")

  @jax.jit
  def step(params, batch):
    def loss(params):
      return losses.loss(nnx.merge(graphdef, params)(batch), batch, unit=unit)[0]

    return jax.value_and_grad(loss)(params)

  return step


def measure(size: str, row_length: int, num_rows: int, seconds: float) -> dict:
  """The ratio of the packed step's time to the ordinary one's; takes about `seconds`."""
  config = make_config(size, longest=LONGEST)
  ordinary_config = dataclasses.replace(config, attention_mask="none", position_reset=False)
  packed, ordinary = make_batches(row_length, num_rows)
  params = jax.device_put(draw_params(config, "pretraining", seed=0))
  packed, ordinary = jax.device_put((packed, ordinary))
  plain = make_step(ordinary_config, "token")
  steps = {
    "packed": (make_step(config, "sequence"), params, packed),
    "ordinary": (plain, params, ordinary),
    "again": (plain, params, ordinary),
  }
  for _ in range(2):  # compile, and warm up
    start = time.perf_counter()
    for step, *inputs in steps.values():
      jax.block_until_ready(step(*inputs))
    round_seconds = time.perf_counter() - start
  rounds = max(6, round(seconds / round_seconds))
  runs = {
    name: lambda _, step=step, inputs=inputs: step(*inputs)
    for name, (step, *inputs) in steps.items()
  }
  times = in_turns(runs, rounds=rounds, name=f"{size} {row_length}")
  ratio = quartiles(times["packed"] / times["ordinary"])
  noise = quartiles(times["again"] / times["ordinary"])
  return {
    "size": size,
    "row_length": row_length,
    "rows": num_rows,
    "rounds": rounds,
    "ordinary_seconds": float(np.median(times["ordinary"])),
    "ratio": ratio["median"],
    "ratio_quartiles": [ratio["low"], ratio["high"]],
    "noise": noise["median"],
    "noise_quartiles": [noise["low"], noise["high"]],
  }


def main(arguments: list[str] | None = None):
  parser = make_parser(__doc__)
  add(parser, "--sizes", ["mini", "base"], type=some_of(SIZES))
  about = f"at least {SHORTEST} and at most {LONGEST}"
  add(parser, "--row-lengths", [128, 384, 512], about, type=several(positive))
  add(parser, "--rows", 2, "rows in a batch")
  add(parser, "--seconds", 60, "time for each size and row length, about")
  options = parser.parse_args(arguments)
  for length in options.row_lengths:
    if not SHORTEST <= length <= LONGEST:
      parser.error(f"--row-lengths has {length}; expected {SHORTEST} to {LONGEST}")
  machine = machine_and_device()
  print(f"{machine}\n")
  pairs = (
    measure(size, row_length, options.rows, options.seconds)
    for size, row_length in itertools.product(options.sizes, options.row_lengths)
  )
  left = ("size", "quartiles", "ordinary : itself")
  write(options, machine, results=print_table(pairs, _row, left=left))


def _row(pair: dict) -> dict[str, str]:
  low, high = pair["ratio_quartiles"]
  noise_low, noise_high = pair["noise_quartiles"]
  return {
    "size": pair["size"],
    "S": str(pair["row_length"]),
    "B": str(pair["rows"]),
    "step": f"{pair['ordinary_seconds']:.3f} s",
    "packed : ordinary": f"{pair['ratio']:.4f}",
    "quartiles": f"{low:.4f} to {high:.4f}",
    "ordinary : itself": f"{pair['noise']:.4f} ({noise_low:.4f} to {noise_high:.4f})",
  }


if __name__ == "__main__":
  sys.exit(run(main))
