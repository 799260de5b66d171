"""Training steps beside peers: forward, backward and update on the same sequences.

    python benchmarks/training.py --size mini
    python benchmarks/training.py --size base --sequences 16 --batch-size 4 --rounds 2
    python benchmarks/training.py --ways packed,padded,unpadded --json results/training.json

Sequences have the lengths of a built-in histogram and random tokens; 15 % of the tokens are
masked, and each sequence has a next-sentence label. All ways start from the same weights,
with AdamW, float32 and no dropout. A round is every sequence once in each way, all steps of
all ways in random order; ratios are taken round by round. Before that each way takes two
steps on a few sequences: their losses say that the same work is done. The time of a step
includes handing over the arrays, not making them. Processor time, of all threads, is told
beside the clock's: other programs on the machine matter less to it.

Peers are Hugging Face's BERT in PyTorch; `make reference` installs it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
import tqdm

if __package__ in (None, ""):  # as a script: the checkout, not the folder of benchmarks
  sys.path[0] = str(pathlib.Path(__file__).resolve().parent.parent)

import packing
from benchmarks.machine import machine
from benchmarks.sample import BUCKETS, Sample, draw
from model import BertConfig, hf
from pipeline.batches import PackedBatch
from training.compilations import CompilationCounter
from training.mesh import make_mesh, put_batch
from training.optimizer import adamw
from training.step import TrainingProgram

VOCAB_SIZE = 30522
ADAMW: dict[str, Any] = {
  "learning_rate": 1e-4,
  "b1": 0.9,
  "b2": 0.999,
  "eps": 1e-6,
  "weight_decay": 0.01,
}

# By name: what it is called in the table, its batches, and of peers what they compute.
OURS = {
  "packed": ("isopack, packed", "packs"),
  "unpacked": ("isopack, one sequence a row", "rows"),
  "buckets": (f"isopack, {BUCKETS} buckets of lengths", "buckets"),
}
PEERS = {
  "padded": ("Hugging Face, padded to the row", "rows", "whole"),
  "longest": ("Hugging Face, padded to the longest of the batch", "longest", "whole"),
  "sorted": ("Hugging Face, sorted by length", "sorted", "whole"),
  "masked": ("the same, padded to the row, head at masked tokens", "rows", "masked"),
  "sorted_masked": ("the same, sorted, head at masked tokens", "sorted", "masked"),
  "unpadded": ("the same, un-padded, head at masked tokens", "rows", "unpadded"),
}
WAYS: dict[str, tuple] = {**OURS, **PEERS}
NEEDED = ("torch", "transformers")  # by peers
# The product of three quotients is the whole.
PARTS = (
  ("packing", "packed", "unpacked"),
  ("head", "masked", "padded"),
  ("framework", "unpacked", "masked"),
  ("the whole", "packed", "padded"),
)


class Ours:
  """This project's training program, batch by batch.

  The loss is that of `loss_unit="token"`, which is the one of an ordinary BERT.
  """

  def __init__(self, config: BertConfig, params: Any = None):
    optimizer = adamw(**ADAMW, clip_norm=0)
    self._program = TrainingProgram(
      config, optimizer, mesh=make_mesh(1), seed=0, loss_unit="token"
    )
    self.step_name = self._program.train_step_name
    self.params = params or jax.device_get(self._program.init()["params"])
    self._state: dict[str, Any] = {}

  def reset(self):
    """The weights of the start, and a new optimizer."""
    self._state = {}
    self._state = jax.block_until_ready(self._program.init(self.params))

  def prepare(self, batch: PackedBatch) -> PackedBatch:
    return batch

  def step(self, batch: PackedBatch) -> float:
    """One update; the loss before it, in nats."""
    on_device = put_batch(batch, self._program.mesh)
    state, totals = self._program.train_step(self._state, on_device)
    self._state, totals = jax.block_until_ready((state, totals))
    parts = [totals[name] for name in ("mlm_loss", "nsp_loss")]
    return sum(float(part.total) / float(part.units) for part in parts)


def make_learners(
  config: BertConfig, names: Iterable[str], *, attention: str, threads: int
) -> dict[str, Any]:
  """By the name of a way, what takes its steps; peers where they are installed.

  Args:
    config: of the model.
    names: keys of `WAYS`.
    attention: of Hugging Face's padded ways, "sdpa" or "eager".
    threads: of PyTorch.
  """
  names = list(names)
  params = Ours(config).params
  # A program for each way, so that each pays for its own compilations.
  learners: dict[str, Any] = {n: Ours(config, params) for n in names if n in OURS}
  peers = [name for name in names if name in PEERS]
  if peers and not missing():
    from benchmarks.hugging_face import HuggingFace  # an extra

    with tempfile.TemporaryDirectory() as folder:
      hf.export_bert(config, params, pathlib.Path(folder) / "bert")
      peer = HuggingFace(pathlib.Path(folder) / "bert", attention, threads, **ADAMW)
    learners |= {name: peer.computing(PEERS[name][2]) for name in peers}
  return {name: learners[name] for name in names if name in learners}


def missing() -> list[str]:
  """Packages of the peers that are not installed."""
  return [name for name in NEEDED if not importlib.util.find_spec(name)]


def first_losses(learner, batch: PackedBatch) -> list[float]:
  """Of two steps from the weights of the start on one batch, in nats."""
  learner.reset()
  prepared = learner.prepare(batch)
  return [learner.step(prepared) for _ in range(2)]


def measure(learners: dict[str, Any], sample: Sample, *, rounds: int) -> dict[str, dict]:
  """Real sequences a second of each way, in turns; and its first losses."""
  counter = CompilationCounter()
  rng = np.random.default_rng(0)
  found: dict[str, dict] = {}
  batches: dict[str, list] = {}
  for name, learner in tqdm.tqdm(learners.items(), "first steps", leave=False, disable=None):
    layout = WAYS[name][1]
    step_name = getattr(learner, "step_name", "")  # PyTorch compiles nothing here
    compiled, began = counter.count(step_name), time.perf_counter()
    few = sample.check_batch(layout)
    losses = first_losses(learner, few)
    batches[name] = [learner.prepare(sample.lay_out(*x)) for x in sample.batches[layout]]
    if step_name:  # compile the other shapes
      shapes = {x["input_ids"].shape: x for x in batches[name]}
      shapes.pop(few["input_ids"].shape)
      for batch in shapes.values():
        learner.step(batch)
    found[name] = {
      "losses": losses,
      "compilations": counter.count(step_name) - compiled,
      "first_seconds": time.perf_counter() - began,
      "computed_tokens": sum(int(np.prod(x["input_ids"].shape)) for x in batches[name]),
      "rates": [],
      "processor_rates": [],
    }
  steps = [(name, index) for name in learners for index in range(len(batches[name]))]
  with tqdm.tqdm(total=rounds * len(steps), unit="steps", leave=False, disable=None) as progress:
    for _ in range(rounds):
      seconds = {name: np.zeros(2) for name in learners}
      for name, index in [steps[number] for number in rng.permutation(len(steps))]:
        start = _clocks()
        learners[name].step(batches[name][index])
        seconds[name] += _clocks() - start
        progress.update()
      for name, (passed, of_processor) in seconds.items():
        found[name]["rates"].append(len(sample.store) / passed)
        found[name]["processor_rates"].append(len(sample.store) / of_processor)
  return found


def _clocks() -> np.ndarray:
  """The clock on the wall, and the time of the process on all processors; seconds."""
  return np.array([time.perf_counter(), time.process_time()])


def table(found: dict[str, dict], names: Iterable[str], *, sequences: int) -> str:
  """A row for each way, in Markdown; of those that were not run it says so."""
  base = "padded" if "padded" in found else next(iter(found))
  lines = [
    f"| way | sequences a second (quartiles) | {base} = 1 (quartiles) "
    "| by processor time | thousand tokens a second, with padding | compilations "
    "| first steps | loss of steps 1 and 2 |",
    "|---|---:|---:|---:|---:|---:|---:|---:|",
  ]
  for name in names:
    if name not in found:
      lines.append(f"| {WAYS[name][0]} | not installed: make reference | | | | | | |")
      continue
    way = found[name]
    low, middle, high = np.quantile(way["rates"], [0.25, 0.5, 0.75])
    few, ratio, many = _ratio(found, name, base)
    processor = _ratio(found, name, base, rates="processor_rates")[1]
    tokens = way["computed_tokens"] / sequences * middle / 1000
    lines.append(
      f"| {WAYS[name][0]} | {middle:.2f} ({low:.2f} to {high:.2f}) "
      f"| {ratio:.2f} ({few:.2f} to {many:.2f}) "
      f"| {processor:.2f} | {tokens:.2f} | {way['compilations']} "
      f"| {way['first_seconds']:.1f} s | {way['losses'][0]:.5f}, {way['losses'][1]:.5f} |"
    )
  return "\n".join(lines)


def parts(found: dict[str, dict]) -> str:
  """What packing, the head and the framework give of the whole, where all were run."""
  if not {"packed", "unpacked", "masked", "padded"} <= set(found):
    return ""
  lines = ["| of the whole | what | times (quartiles) |", "|---|---|---:|"]
  for part, one, other in PARTS:
    low, middle, high = _ratio(found, one, other)
    lines.append(
      f"| {part} | {WAYS[one][0]} : {WAYS[other][0]} | {middle:.2f} ({low:.2f} to "
      f"{high:.2f}) |"
    )
  return "\n".join(lines)


def _ratio(
  found: dict[str, dict], one: str, other: str, *, rates: str = "rates"
) -> tuple[float, float, float]:
  """Lower quartile, median and upper quartile over rounds."""
  ratios = np.divide(found[one][rates], found[other][rates])
  low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75]).tolist()
  return low, middle, high


def main():
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--size", default="mini", help="of the model (default: mini)")
  parser.add_argument(
    "--histogram", default="wikipedia_512", help="of lengths (default: wikipedia_512)"
  )
  parser.add_argument("--sequences", type=int, default=64, help="default: 64")
  parser.add_argument(
    "--batch-size", type=int, default=8, help="sequences, where one a row (default: 8)"
  )
  parser.add_argument("--rounds", type=int, default=3, help="default: 3")
  parser.add_argument(
    "--ways", default=",".join(WAYS), help=f"some of {','.join(WAYS)} (default: all)"
  )
  parser.add_argument(
    "--attention", default="sdpa", help="of Hugging Face: sdpa or eager (default: sdpa)"
  )
  parser.add_argument("--json", metavar="F.json", help="write all numbers here")
  options = parser.parse_args()
  names = options.ways.split(",")
  if unknown := [name for name in names if name not in WAYS]:
    parser.error(f"--ways has {unknown[0]!r}; expected some of {', '.join(WAYS)}")
  try:
    histogram = packing.load_histogram(options.histogram)
    config = BertConfig.from_size(
      options.size,
      vocab_size=VOCAB_SIZE,
      max_position_embeddings=histogram.max_sequence_length,
      dropout_rate=0.0,
      attention_dropout_rate=0.0,
    )
    sample = draw(
      histogram,
      sequences=options.sequences,
      batch_size=options.batch_size,
      vocab_size=VOCAB_SIZE,
    )
  except ValueError as error:
    parser.error(str(error))
  told = _machine()
  print(told)
  if missing():
    print(f"{' and '.join(missing())} not installed: no peers. make reference", flush=True)
  threads = len(os.sched_getaffinity(0))
  learners = make_learners(config, names, attention=options.attention, threads=threads)
  if not learners:
    parser.error("none of these ways is installed")
  found = measure(learners, sample, rounds=options.rounds)
  lengths = sample.store.lengths
  print(
    f"\nBERT-{options.size}, float32, AdamW; {lengths.size} sequences of "
    f"{options.histogram}, {lengths.mean():.1f} tokens on average; "
    f"{options.batch_size} sequences a step, or {options.batch_size // 2} rows of packs; "
    f"{options.rounds} rounds\n"
  )
  print(table(found, names, sequences=lengths.size))
  print(f"\n{parts(found)}")
  if options.json:
    results = {"machine": told, "options": vars(options), "ways": found}
    pathlib.Path(options.json).write_text(json.dumps(results, indent=1) + "\n")


def _machine() -> str:
  versions = [
    f"{name} {importlib.metadata.version(name)}"
    for name in ("jax", *NEEDED)
    if name not in missing()
  ]
  return f"{machine()}; {jax.devices()[0].device_kind}; {', '.join(versions)}"


if __name__ == "__main__":
  main()
