"""Times packed inference against padding, on the same examples in one run.

    python -m benchmarks.inference
    python -m benchmarks.inference --histograms glue_cola_128 --size mini
    python -m benchmarks.inference --json results/inference.json

Sequences have the lengths of a built-in histogram and random tokens. A model with random
weights predicts as `predict.py` does, from packs, and from padded rows. In each round,
each way predicts all sequences once, in random order of the ways. Wall-clock time from
arrays to logits includes packing; all ways run their batches by the same loop. The first
pass compiles and is reported separately. The answers of each way are compared with those
from rows padded to one length.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

import packing
from benchmarks.command import DTYPES, add_size, make_parser, write
from benchmarks.lengths import draw_lengths
from benchmarks.sample import random_sequences
from lab.machine import machine_and_device
from lab.options import add, run, some_of
from lab.statistics import quartiles, ratio, spread
from lab.table import record_table
from lab.timing.models import VOCAB_SIZE
from lab.timing.turns import measure_rates
from model import BertConfig
from model.models import draw_params
from pipeline.batches.packed import PackedBatch, pack_rows
from pipeline.prediction.chunks import BatchShape, pack_examples
from pipeline.prediction.examples import Example
from pipeline.store import QUESTION_SCHEMA, SCHEMA, SequenceStore
from pipeline.tasks.squad import Window
from training.evaluation import predict as run_batches
from training.evaluation import prediction_config
from training.mesh import make_mesh
from training.step import ModelProgram

HEADS = {"glue": "sequence_classification", "squad": "question_answering"}
PADDED = "padded to the row"  # the others are compared with it
Batches = Callable[[], Iterator[PackedBatch]]


def make_examples(histogram: packing.Histogram, number: int, schema) -> list[Example]:
  rng = np.random.default_rng(0)
  lengths = np.maximum(draw_lengths(histogram, number, rng), 3)
  examples = []
  for name, drawn in enumerate(random_sequences(lengths, rng)):
    row: Sequence = drawn
    if schema == QUESTION_SCHEMA:
      row = Window(*drawn[:2], 0, 0, 0, str(name), "", [], [], 0, [])
    examples.append(Example(str(name), [row], ""))
  return examples


def ways_of(
  examples: list[Example], schema, *, config: BertConfig, size: int
) -> dict[str, Batches]:
  """By name, a function that makes all batches of `size` rows."""
  store = SequenceStore.from_sequences((e.sequences[0] for e in examples), schema)
  row = config.max_position_embeddings

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
  program: ModelProgram, params, ways: dict[str, Batches], number: int, *, rounds: int
) -> dict[str, dict]:
  """Measures each way of `number` sequences, in turns: rates, answers, compilations."""

  def answer(batches: Batches, _) -> list:
    return run_batches(program, params, batches()).logits

  runs = {way: functools.partial(answer, batches) for way, batches in ways.items()}
  logits, measured = measure_rates(runs, number, rounds=rounds, name="predicting")
  for way, values in logits.items():
    pairs = list(zip(values, logits[PADDED], strict=True))
    same = [(a.argmax(0) == b.argmax(0)).all() for a, b in pairs]
    measured[way] |= {
      "largest_difference": max(float(abs(a - b).max()) for a, b in pairs),
      "same_answers": int(np.sum(same)),
    }
  return measured


def way_table(measured: dict[str, dict], number: int) -> str:
  """A row for each way; `number` is the number of sequences."""
  records = [
    {
      "batches": name,
      "sequences a second (quartiles)": spread(quartiles(way["rates"]), 0),
      "packed is faster (quartiles)": ratio(measured["packed"]["rates"], way["rates"]),
      "compilations": str(way["compilations"]),
      "first pass": f"{way['first_seconds']:.1f} s",
      "same answers": f"{way['same_answers']:,} of {number:,}",
      "largest difference": f"{way['largest_difference']:.1e}",
    }
    for name, way in measured.items()
  ]
  return record_table(records, left=["batches"])


def main(arguments: list[str] | None = None):
  parser = make_parser(__doc__, "inference")
  about, names = "built-in histograms", some_of(packing.histogram_names())
  add(parser, "--histograms", ["glue_cola_128", "squad_1_1_384"], about, type=names)
  add_size(parser, "tiny")
  add(parser, "--dtype", "float32", choices=DTYPES)
  add(parser, "--sequences", 1024)
  add(parser, "--batch-size", 8, "rows in a batch")
  add(parser, "--rounds", 7)
  options = parser.parse_args(arguments)
  size = options.batch_size
  here = machine_and_device()
  print(here)
  histograms = {}
  for name in options.histograms:
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
    computed = prediction_config(config, dtype=options.dtype)
    program = ModelProgram(computed, mesh=make_mesh(1), head=head)
    params = jax.device_put(draw_params(config, head, seed=0))
    examples = make_examples(histogram, options.sequences, schema)
    ways = ways_of(examples, schema, config=config, size=size)
    measured = measure(program, params, ways, len(examples), rounds=options.rounds)
    histograms[name] = {"ways": measured}
    print(f"\n{len(examples):,} sequences of {name}, {size} rows of {row} tokens a batch,")
    print(f"BERT-{options.size}, {head}, {options.dtype}\n")
    print(way_table(measured, len(examples)), flush=True)
  write(options, here, histograms=histograms)


if __name__ == "__main__":
  sys.exit(run(main))
