"""Packed inference beside padding, on the same examples in one run.

    python benchmarks/inference.py
    python benchmarks/inference.py --histograms glue_cola_128 --size mini
    python benchmarks/inference.py --json results/inference.json

Sequences have the lengths of a built-in histogram and random tokens; a random model
answers them, as in `predict.py`. The ways take turns, in another order each round, and
each round is all sequences once, arrays to logits, by the clock: the packing itself is
counted. The first round compiles and is reported separately. The answers of each way are
compared with those of rows that are padded to one length.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np
import tqdm

if __package__ in (None, ""):  # as a script: the checkout, not the folder of benchmarks
  sys.path[0] = str(pathlib.Path(__file__).resolve().parent.parent)

import packing
from benchmarks.machine import machine
from model import BertConfig, weights
from model.models import draw_params
from pipeline.batches.packed import PackedBatch, pack_rows
from pipeline.prediction.chunks import BatchShape, pack_examples
from pipeline.prediction.examples import Example
from pipeline.store import QUESTION_SCHEMA, SCHEMA, SequenceStore, StoredSequence
from pipeline.tasks.squad import Window
from training.evaluation import make_program
from training.evaluation import predict as run_batches
from training.mesh import make_mesh
from training.record.compilations import CompilationCounter
from training.step import ModelProgram

VOCAB_SIZE, CLS, SEP, FIRST_WORD = 30522, 101, 102, 999
HEADS = {"glue": "sequence_classification", "squad": "question_answering"}
PADDED = "padded to the row"  # what the others are held against
Batches = Callable[[], Iterator[PackedBatch]]


def make_examples(histogram: packing.Histogram, number: int, schema) -> list[Example]:
  rng = np.random.default_rng(0)
  lengths = np.arange(1, histogram.max_sequence_length + 1)
  drawn = rng.choice(lengths, number, p=histogram.counts / histogram.num_sequences)
  examples = []
  for name, length in enumerate(np.maximum(drawn, 3).tolist()):
    ids = [CLS, *rng.integers(FIRST_WORD, VOCAB_SIZE, length - 2).tolist(), SEP]
    first_type = length // 2 + 1
    row: Sequence = StoredSequence(ids, first_type, 0)
    if schema == QUESTION_SCHEMA:
      row = Window(ids, first_type, 0, 0, 0, str(name), "", [], [], 0, [])
    examples.append(Example(str(name), [row], ""))
  return examples


def ways_of(examples: list[Example], schema, *, row: int, size: int) -> dict[str, Batches]:
  """By name: a function that gives all batches; B rows each, sequences by their numbers."""
  store = SequenceStore.from_sequences((e.sequences[0] for e in examples), schema)

  def packed() -> Iterator[PackedBatch]:
    shape = BatchShape(row, batch_size=size)
    (chunk,) = pack_examples(examples, schema, shape=shape, chunk_size=len(examples))
    return chunk.batches()

  def one_a_row(order: np.ndarray, longest: Callable[[np.ndarray], int]) -> Iterator:
    rows = np.full(-(-order.size // size) * size, -1, np.int64)
    rows[: order.size] = order
    for ids in rows.reshape(-1, size, 1):
      yield pack_rows(store, ids, row_length=longest(store.lengths[ids[ids >= 0]]))

  numbers = np.arange(len(store))
  by_length = np.argsort(store.lengths, kind="stable")
  return {
    "packed": packed,
    PADDED: lambda: one_a_row(numbers, lambda _: row),
    "padded to the longest of the batch": lambda: one_a_row(numbers, np.max),
    "sorted by length, padded to the longest": lambda: one_a_row(by_length, np.max),
  }


def measure(
  program: ModelProgram, params, ways: dict[str, Batches], *, rounds: int
) -> dict[str, dict]:
  """Sequences a second of each way, in turns; and what they answer, and compile."""
  counter = CompilationCounter()
  rng = np.random.default_rng(0)
  found: dict[str, dict] = {}
  logits = {}
  for name, batches in ways.items():
    before, start = counter.count("_eval_step"), time.perf_counter()
    logits[name] = run_batches(program, params, batches()).logits
    found[name] = {
      "first_seconds": time.perf_counter() - start,
      "compilations": counter.count("_eval_step") - before,
      "rates": [],
    }
  for _ in tqdm.trange(rounds, leave=False):
    for name in rng.permutation(list(ways)).tolist():
      start = time.perf_counter()
      number = len(run_batches(program, params, ways[name]()).logits)
      found[name]["rates"].append(number / (time.perf_counter() - start))
  for name, values in logits.items():
    pairs = list(zip(values, logits[PADDED], strict=True))
    found[name]["largest_difference"] = max(float(abs(a - b).max()) for a, b in pairs)
    same = [(a.argmax(0) == b.argmax(0)).all() for a, b in pairs]
    found[name]["same_answers"] = int(np.sum(same))
  return found


def table(found: dict[str, dict], number: int) -> str:
  lines = [
    "| batches | sequences a second (quartiles) | packed is faster (quartiles) "
    "| compilations | first pass | same answers | largest difference |",
    "|---|---:|---:|---:|---:|---:|---:|",
  ]
  for name, way in found.items():
    low, middle, high = np.quantile(way["rates"], [0.25, 0.5, 0.75])
    ratios = np.divide(found["packed"]["rates"], way["rates"])
    few, ratio, many = np.quantile(ratios, [0.25, 0.5, 0.75])
    lines.append(
      f"| {name} | {middle:,.0f} ({low:,.0f} to {high:,.0f}) | {ratio:.2f} ({few:.2f} to "
      f"{many:.2f}) | {way['compilations']} | {way['first_seconds']:.1f} s | "
      f"{way['same_answers']:,} of {number:,} | {way['largest_difference']:.1e} |"
    )
  return "\n".join(lines)


def main():
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    "--histograms",
    default="glue_cola_128,squad_1_1_384",
    help="of packing.histogram_names (default: glue_cola_128,squad_1_1_384)",
  )
  parser.add_argument("--size", default="tiny", help="of the model (default: tiny)")
  parser.add_argument("--dtype", default="float32", help="default: float32")
  parser.add_argument("--sequences", type=int, default=1024, help="default: 1024")
  parser.add_argument("--batch-size", type=int, default=8, help="rows (default: 8)")
  parser.add_argument("--rounds", type=int, default=7, help="default: 7")
  parser.add_argument("--json", metavar="F.json", help="write all numbers here")
  options = parser.parse_args()
  mesh = make_mesh()
  size = -(-options.batch_size // mesh.size) * mesh.size
  devices = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
  told = f"{machine()}; {devices}, jax {jax.__version__}"
  results: dict = {"machine": told, "options": vars(options), "histograms": {}}
  print(told)
  for name in options.histograms.split(","):
    histogram = packing.load_histogram(name)
    row = histogram.max_sequence_length
    head = HEADS.get(name.partition("_")[0], "sequence_classification")
    schema = QUESTION_SCHEMA if head == "question_answering" else SCHEMA
    config = BertConfig.from_size(
      options.size,
      vocab_size=VOCAB_SIZE,
      max_position_embeddings=row,
      initializer_range=0.2,  # so that answers differ from sequence to sequence
    )
    stored = weights.StoredModel(pathlib.Path(), head, config, None, (), None, dict)
    program = make_program(stored, mesh=mesh, dtype=options.dtype)
    params = jax.jit(lambda config=config, head=head: draw_params(config, head, seed=0))()
    examples = make_examples(histogram, options.sequences, schema)
    ways = ways_of(examples, schema, row=row, size=size)
    found = measure(program, params, ways, rounds=options.rounds)
    results["histograms"][name] = found
    print(f"\n{len(examples):,} sequences of {name}, {size} rows of {row} tokens a batch, ")
    print(f"BERT-{options.size}, {head}, {options.dtype}\n")
    print(table(found, len(examples)), flush=True)
  if options.json:
    pathlib.Path(options.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
  main()
