"""What packing costs: the packed model against an ordinary one on the same shapes.

  python benchmarks/overhead.py --sizes mini,base --row-lengths 128,384,512 --json FILE

Both do the same work: rows of S tokens, B rows, P masked tokens. The ordinary model has
a padding mask, the row's own positions, one sequence a row and the mean over tokens. The
packed model compares segment ids, looks positions up, reads M sequences' [CLS] and
averages per sequence. A step is the loss and all gradients. Steps of the two alternate,
in random order within each pair, and the ratio is taken pair by pair: median and
quartiles. A second ordinary model in the same rounds says how far noise alone goes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
import time

import flax.nnx as nnx
import jax
import numpy as np
import tqdm

if __package__ in (None, ""):  # as a script: the checkout, not the folder of benchmarks
  sys.path[0] = str(pathlib.Path(__file__).resolve().parent.parent)

from benchmarks.machine import machine
from benchmarks.small_bert import MASK_RATE, VOCAB_SIZE, make_config
from model import BertConfig, BertForPreTraining, losses
from model.layout import lay_out

SEQUENCES_A_PACK = 3


def make_batches(row_length: int, num_rows: int, seed: int = 0) -> tuple[dict, dict]:
  """A packed batch and an ordinary one of full rows, with as many masked tokens."""
  rng = np.random.default_rng(seed)
  max_masked = int(MASK_RATE * row_length) + SEQUENCES_A_PACK

  def sequence(length: int) -> dict:
    positions = np.sort(rng.choice(length, round(MASK_RATE * length), replace=False))
    return {
      "input_ids": rng.integers(VOCAB_SIZE, size=length),
      "token_type_ids": np.arange(length) >= length // 2,
      "mlm_positions": positions,
      "mlm_labels": rng.integers(VOCAB_SIZE, size=positions.size),
      "sequence_label": int(rng.integers(2)),
    }

  def pack() -> list[dict]:
    cuts = np.sort(rng.choice(np.arange(8, row_length - 8, 8), 2, replace=False))
    return [sequence(n) for n in np.diff([0, *cuts, row_length])]

  fields = {"row_length": row_length, "max_masked": max_masked}
  packed = lay_out([pack() for _ in range(num_rows)], **fields)
  ordinary = lay_out([[sequence(row_length)] for _ in range(num_rows)], **fields)
  return packed, ordinary


def make_step(config: BertConfig, unit: str):
  abstract = nnx.eval_shape(lambda: BertForPreTraining(config, rngs=nnx.Rngs(0)))
  graphdef = nnx.graphdef(abstract)

  @jax.jit
  def step(params, batch):
    def loss(params):
      return losses.loss(nnx.merge(graphdef, params)(batch), batch, unit=unit)[0]

    return jax.value_and_grad(loss)(params)

  return step


def measure(size: str, row_length: int, num_rows: int, seconds: float) -> dict:
  """Ratios of the packed step's time to the ordinary one's, for so many seconds."""
  config = make_config(size, longest=512)
  ordinary_config = dataclasses.replace(config, attention_mask="none", position_reset=False)
  packed, ordinary = make_batches(row_length, num_rows)
  model = BertForPreTraining(config, rngs=nnx.Rngs(0))
  params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
  packed, ordinary = jax.device_put((packed, ordinary))
  plain = make_step(ordinary_config, "token")
  steps = {
    "packed": (make_step(config, "sequence"), packed),
    "ordinary": (plain, ordinary),
    "again": (plain, ordinary),
  }
  for _ in range(2):  # compile, and warm up
    start = time.perf_counter()
    for step, batch in steps.values():
      jax.block_until_ready(step(params, batch))
    round_seconds = time.perf_counter() - start
  rounds = max(6, round(seconds / round_seconds))
  rng = np.random.default_rng(0)
  found: dict[str, list[float]] = {name: [] for name in steps}
  for _ in tqdm.trange(rounds, desc=f"{size} {row_length}", leave=False):
    for name in rng.permutation(list(steps)):
      step, batch = steps[name]
      start = time.perf_counter()
      jax.block_until_ready(step(params, batch))
      found[name].append(time.perf_counter() - start)
  times = {name: np.array(values) for name, values in found.items()}
  low, middle, high = np.quantile(times["packed"] / times["ordinary"], (0.25, 0.5, 0.75))
  noise = np.quantile(times["again"] / times["ordinary"], (0.25, 0.5, 0.75))
  return {
    "size": size,
    "row_length": row_length,
    "rows": num_rows,
    "rounds": rounds,
    "ordinary_seconds": float(np.median(times["ordinary"])),
    "ratio": float(middle),
    "ratio_quartiles": [float(low), float(high)],
    "noise": float(noise[1]),
    "noise_quartiles": [float(noise[0]), float(noise[2])],
  }


def main():
  parser = argparse.ArgumentParser(
    description=__doc__.split("\n")[0],
    epilog=__doc__.partition("\n\n")[2],
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("--sizes", default="mini,base", help="default: mini,base")
  parser.add_argument("--row-lengths", default="128,384,512", help="default: 128,384,512")
  parser.add_argument("--rows", type=int, default=2, help="B (default: 2)")
  parser.add_argument(
    "--seconds", type=float, default=60, help="for each pair, about (default: 60)"
  )
  parser.add_argument("--json", metavar="FILE", help="write the results there")
  options = parser.parse_args()
  device = f"{machine()}, {jax.devices()[0].device_kind}"
  print(f"{device}, jax {jax.__version__}\n")
  print("| size | S | B | step | packed : ordinary | quartiles | ordinary : itself |")
  print("|---|---:|---:|---:|---:|---|---|")
  results = []
  for size in options.sizes.split(","):
    for row_length in map(int, options.row_lengths.split(",")):
      found = measure(size, row_length, options.rows, options.seconds)
      low, high = found["ratio_quartiles"]
      noise_low, noise_high = found["noise_quartiles"]
      print(
        f"| {size} | {row_length} | {options.rows} | {found['ordinary_seconds']:.3f} s "
        f"| {found['ratio']:.4f} | {low:.4f} to {high:.4f} "
        f"| {found['noise']:.4f} ({noise_low:.4f} to {noise_high:.4f}) |",
        flush=True,
      )
      results.append(found)
  if options.json:
    record = {"machine": device, "jax": jax.__version__, "results": results}
    pathlib.Path(options.json).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
  main()
