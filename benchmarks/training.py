"""Times training steps against peers: forward, backward and update on the same sequences.

    python -m benchmarks.training --size mini
    python -m benchmarks.training --size base --sequences 16 --batch-size 4 --rounds 2
    python -m benchmarks.training --ways packed,padded,unpadded --json results/training.json
    python -m benchmarks.training --family modern_bert --histogram wikipedia_1024
    python -m benchmarks.training --ways packed,unpadded --dtypes float32,bfloat16
    python -m benchmarks.training --size base --batch-size 64 --sequences 512   on a GPU

Sequences have the lengths of a built-in histogram and random tokens; 15 % of the tokens are
masked, and for a BERT each sequence has a next-sentence label. All ways start from the same
weights, with AdamW and without dropout; each runs in every dtype. In each round, each way
trains on every sequence twice: once with its steps queued, one after another and with one
wait at the end, and once with each step awaited before the next. These blocks come in
random order. The first round is not counted; ratios are taken per round, of queued steps or
of awaited ones. Before the rounds, each way takes two steps on a few sequences: equal
losses show that all ways do the same work. The time of a step includes the transfer of the
arrays to the device, but not making them. Processor time of all threads is reported beside
wall-clock time. Other programs affect it less, but threads of a pool that spin while they
wait count as working. Freed memory is kept for the next step, for all ways
(training/memory.py).

Peers are Hugging Face's BERT or ModernBERT in PyTorch, on the CPU, in bfloat16 by
`torch.autocast`; `make reference` installs them. They are left out with any other device.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import importlib.util
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import packing
from benchmarks import command
from benchmarks.sample import Sample, draw
from benchmarks.training_tables import (
  PEERS,
  WAYS,
  expand,
  part_rows,
  realised_line,
  split,
  way_rows,
)
from lab.machine import machine_and_device
from lab.options import add, add_some, run, some_of
from lab.table import record_table
from lab.timing.models import ADAMW, FAMILIES, VOCAB_SIZE, make_config
from lab.timing.steps import MEASURED, not_run_lines, why_not
from lab.timing.turns import in_turns, queued
from launch.record.compilations import CompilationCounter
from launch.record.progress import Progress
from model import IMPLEMENTATIONS, BertConfig, EncoderConfig, hf
from packing.commands.program import positive
from pipeline.batches.packed import PackedBatch
from training.mesh import make_mesh
from training.optimizer import adamw
from training.step import TrainingProgram

NEEDED = ("torch", "transformers")  # packages of the peers


class Ours:
  """This project's training program, step by step, with the loss of an ordinary model."""

  def __init__(self, config: EncoderConfig, params: Any = None):
    optimizer = adamw(**ADAMW, clip_norm=0)
    self._program = TrainingProgram(
      config, optimizer, mesh=make_mesh(1), seed=0, loss_unit="token"
    )
    self.step_name = self._program.train_step_name
    self.params = params or jax.device_get(self._program.init()["params"])
    self._state: dict[str, Any] = {}

  def reset(self):
    """Restores the initial weights and makes a new optimizer."""
    self._state = {}
    self._state = jax.block_until_ready(self._program.init(self.params))

  def to_device(self, batch: PackedBatch) -> PackedBatch:
    """The batch unchanged; its transfer is part of a step."""
    return batch

  def step(self, batch: PackedBatch) -> dict[str, Any]:
    """Makes one update; returns its totals. The device may still compute."""
    on_device = self._program.put_batch(batch)
    self._state, totals = self._program.train_step(self._state, on_device)
    return totals

  @staticmethod
  def loss(totals: dict[str, Any]) -> float:
    """The loss before a step, in nats, from what `step` returned; waits for the device."""
    parts = [totals[name] for name in ("mlm_loss", "nsp_loss") if name in totals]
    return sum(float(part.total) / float(part.units) for part in parts)

  def wait(self):
    """Returns when the device has made all steps."""
    jax.block_until_ready(self._state)


def make_learners(
  config: EncoderConfig, keys: Iterable[str], *, threads: int | None
) -> dict[str, Any]:
  """The object that makes the steps of each way, by the way's key.

  `threads` is the number of PyTorch's threads, PyTorch's default if None.
  """
  learners: dict[str, Any] = {}
  params = Ours(config).params
  peers: dict[str, Any] = {}
  for key in keys:
    name, implementation, dtype = split(key)
    if name in PEERS:
      from benchmarks.hugging_face import Computation  # an extra

      dtype = dtype or config.dtype.name
      peers[dtype] = peers.get(dtype) or _hugging_face(config, params, threads, dtype)
      learners[key] = Computation(peers[dtype], PEERS[name][2])
    else:  # a program for each way, so that each pays for its own compilations
      learners[key] = Ours(_own(config, implementation, dtype), params)
  return learners


def _own(config: EncoderConfig, implementation: str, dtype: str) -> EncoderConfig:
  dtype = dtype or config.dtype.name
  return dataclasses.replace(config, attention_impl=implementation, dtype=jnp.dtype(dtype))


def _hugging_face(config: EncoderConfig, params, threads: int | None, dtype: str):
  from benchmarks.hugging_face import HuggingFace  # an extra

  with tempfile.TemporaryDirectory() as folder:
    exported = pathlib.Path(folder) / "exported"
    hf.export_model(config, params, exported)
    return HuggingFace(exported, threads=threads, dtype=dtype)


def not_run(
  config: EncoderConfig, keys: Iterable[str], sample: Sample, *, device: jax.Device
) -> dict[str, str]:
  """For ways that cannot run here, the reason by key."""
  reasons = {}
  for key in keys:
    name, implementation, dtype = split(key)
    if name in PEERS:
      reason = _why_no_peers(device)
    else:
      own = _own(config, implementation, dtype)
      row_lengths = {row_length for _, row_length in sample.batches[WAYS[name][1]]}
      why = (why_not(own, row_length) for row_length in sorted(row_lengths))
      reason = next(filter(None, why), "")
    if reason:
      reasons[key] = reason
  return reasons


def _why_no_peers(device: jax.Device) -> str:
  if missing():
    return "not installed: make reference"
  if device.platform != "cpu":
    return f"not run: PyTorch here is on the CPU, JAX on {device.device_kind}"
  return ""


def missing() -> list[str]:
  """Packages of the peers that are not installed."""
  return [name for name in NEEDED if not importlib.util.find_spec(name)]


def measure(learners: dict[str, Any], sample: Sample, *, rounds: int) -> dict[str, dict]:
  """Measures each way, in turns: real sequences a second, and the losses of first steps.

  Args:
    learners: from `make_learners`.
    sample: whose batches each way trains.
    rounds: that are counted.

  Returns:
    By way, `losses` of its first two steps, `compilations`, `first_seconds`,
    `computed_tokens` of a round; and by the kind of timing, "queued" or "awaited", its
    `rates` and its `processor_rates` of each round.
  """
  counter = CompilationCounter()
  measured: dict[str, dict] = {}
  batches: dict[str, list] = {}
  with Progress("first steps", total=len(learners), unit="ways") as progress:
    for name in progress.over(learners):
      batches[name], measured[name] = _first_steps(learners[name], name, sample, counter)
  runs: dict[tuple[str, str], Callable[[int], Any]] = {}
  for name, learner in learners.items():
    some, awaited = batches[name], functools.partial(_awaited_step, learner)
    runs[name, "queued"] = queued(learner.step, some, steps=len(some), wait=learner.wait)
    runs[name, "awaited"] = queued(awaited, some, steps=len(some))
  seconds = in_turns(runs, rounds=rounds, name="measuring", clock="both")
  for name, kind in runs:
    rates = (len(sample.store) / seconds[name, kind]).T.tolist()
    measured[name][kind] = dict(zip(("rates", "processor_rates"), rates, strict=True))
  return measured


def _awaited_step(learner, batch):
  result = learner.step(batch)
  learner.wait()
  return result


def _first_steps(
  learner, name: str, sample: Sample, counter: CompilationCounter
) -> tuple[list, dict]:
  """Compiles every shape; returns the batches, and the numbers of the first steps."""
  layout = WAYS[split(name).name][1]
  step_name = getattr(learner, "step_name", "")  # PyTorch compiles nothing here
  compiled, began = counter.count(step_name), time.perf_counter()
  few = sample.check_batch(layout)
  learner.reset()
  prepared = learner.to_device(few)
  losses = [learner.loss(learner.step(prepared)) for _ in range(2)]
  batches = [learner.to_device(sample.lay_out(*x)) for x in sample.batches[layout]]
  if step_name:  # compile the other shapes
    shapes = {x["input_ids"].shape: x for x in batches}
    shapes.pop(few["input_ids"].shape)
    for batch in shapes.values():
      learner.step(batch)
    learner.wait()
  return batches, {
    "losses": losses,
    "compilations": counter.count(step_name) - compiled,
    "first_seconds": time.perf_counter() - began,
    "computed_tokens": sum(int(np.prod(x["input_ids"].shape)) for x in batches),
  }


def main(arguments: list[str] | None = None):
  parser = command.make_parser(__doc__, "training")
  add(parser, "--family", "bert", "family of the model", choices=list(FAMILIES))
  command.add_size(parser)
  command.add_histogram(parser)
  add(parser, "--sequences", 64)
  add(parser, "--batch-size", 8, "sequences in a batch with one a row; even")
  add(parser, "--rounds", 5)
  add_some(parser, "--ways", WAYS)
  known, about = some_of(IMPLEMENTATIONS), "attention of our ways"
  add(parser, "--attention-impls", list(MEASURED), about, type=known)
  parser.add_argument(
    "--dtypes",
    type=some_of(command.DTYPES),
    default=[command.default_dtype()],
    metavar="NAMES",
    help=f"of the computation, some of {','.join(command.DTYPES)} "
    "(default: float32 on a CPU, else bfloat16)",
  )
  parser.add_argument(
    "--threads", type=positive, help="PyTorch's threads (default: PyTorch's choice)"
  )
  options = parser.parse_args(arguments)
  histogram = packing.load_histogram(options.histogram)
  longest, dtype = histogram.max_sequence_length, jnp.dtype(options.dtypes[0])
  try:
    config = make_config(options.size, longest=longest, family=options.family, dtype=dtype)
    sample = draw(
      histogram,
      sequences=options.sequences,
      batch_size=options.batch_size,
      vocab_size=VOCAB_SIZE,
    )
  except ValueError as error:  # no such size, or batches that cannot be full
    parser.error(str(error).rstrip("."))
  versions = [f"{x} {importlib.metadata.version(x)}" for x in NEEDED if x not in missing()]
  machine = ", ".join([machine_and_device(), *versions])
  print(machine, flush=True)
  keys = expand(options.ways, options.attention_impls, options.dtypes)
  reasons = not_run(config, keys, sample, device=jax.devices()[0])
  running = [key for key in keys if key not in reasons]
  if not running:
    first = next(iter(reasons.values())).rstrip(".")
    parser.error(f"none of these ways runs here: {first}")
  learners = make_learners(config, running, threads=options.threads)
  measured = measure(learners, sample, rounds=options.rounds)
  lengths = sample.store.lengths
  tables = {
    "ways": way_rows(measured, keys, reasons, sequences=lengths.size),
    "parts": part_rows(measured),
  }
  command.write(options, machine, tables=tables, ways=measured, not_run=reasons)
  name = "BERT" if isinstance(config, BertConfig) else "ModernBERT"
  print(
    f"\n{name}-{options.size}, {', '.join(options.dtypes)}, AdamW; {lengths.size} "
    f"sequences of {options.histogram}, {lengths.mean():.1f} tokens on average; "
    f"{options.batch_size} sequences a step, or {options.batch_size // 2} rows of packs; "
    f"{options.rounds} rounds\n"
  )
  print(record_table(tables["ways"], left=["way"]))
  ours = [
    {"attention": split(key).implementation, "not_run": reason}
    for key, reason in reasons.items()
    if split(key).name not in PEERS
  ]
  packs = sum(len(ids) for ids, _ in sample.batches["packs"])
  for text in (
    not_run_lines(ours),
    realised_line(measured, packing_factor=lengths.size / packs),
    record_table(tables["parts"], left=("of the whole", "what")),
  ):
    if text:
      print(f"\n{text}", flush=True)


if __name__ == "__main__":
  sys.exit(run(main))
