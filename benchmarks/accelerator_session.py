"""What `benchmarks.accelerator` measures, part by part, and the record of it."""

from __future__ import annotations

import dataclasses
import functools
import gc
import math
import pathlib
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp

from benchmarks import train_program
from benchmarks.accelerator_report import report, tables
from benchmarks.accelerator_steps import (
  Bench,
  Case,
  Pace,
  choose,
  halving,
  plan_of,
)
from benchmarks.changes import CHANGES
from lab.statistics import quartiles
from lab.timing.models import make_config
from lab.timing.speedup import make_batches
from model.testing import verify
from packing.files import write_json, write_text

WAYS = {
  "masked": "PyTorch, padded to the row, SDPA, head at masked tokens",
  "unpadded": "PyTorch, un-padded, head at masked tokens",
  "compiled": "the padded one with torch.compile",
  "flattened": "transformers' flattening collator, FlashAttention, head at masked tokens",
}


class Record:
  """The results so far, written to results.json and report.md after each change."""

  def __init__(self, folder: pathlib.Path, **about: Any):
    self._folder = folder
    self.known: dict[str, Any] = about
    lists = "proofs", "beside_xla", "steps", "dropout", "changes", "programs", "peers"
    self.known |= {kind: [] for kind in (*lists, "left_out")} | {"kinds": {}}
    self.write()

  def add(self, kind: str, *entries: dict):
    """Adds entries to one of the lists."""
    self.known[kind] += entries
    self.write()

  def leave_out(self, case: str, why: object):
    """Lists what is not measured."""
    text = str(why).strip().partition("\n")[0][:300]
    self.add("left_out", {"case": case, "why": text or type(why).__name__})

  def write(self):
    self.known["tables"] = tables(self.known)
    write_json(self._folder / "results.json", self.known)
    write_text(self._folder / "report.md", report(self.known))


@dataclasses.dataclass
class Session:
  """Measures one part after another, until no time is left."""

  record: Record  # takes the results
  until: float  # a time of `time.monotonic`
  cases: Sequence[Case]  # of steps; the first is also that of the other parts
  dtype: str  # of the computation
  pace: Pace  # how long steps are timed
  proven: Sequence[str]  # implementations of attention whose proofs pass
  torch_device: str | None  # of PyTorch; None to leave it out
  _slowness: float = 1.0  # the longest time of a part, divided by the guess
  _bench: Bench | None = None  # of the first case

  def measure(self, name: str):
    """Measures the part of this name."""
    first = self.cases[0]
    for case in self.cases:
      if case.name == name:
        self._attempt(name, case.seconds, functools.partial(self._time, case))
    if name == "attention":
      chosen = choose(first, self.dtype).implementation
      for other in (name for name in self.proven if name != chosen):
        what = f"{first.name} with {other}"
        self._attempt(what, first.seconds, functools.partial(self._time, first, other))
    if name == "dropout":
      self._attempt(name, 50, self._dropout)
    if name == "changes":
      for change in CHANGES:
        self._attempt(change, 40, functools.partial(self._change, change))
    if name == "train.py":
      self._attempt(name, 90, self._train)
    if name == "pytorch" and self.torch_device:
      self._attempt(name, 120, self._peers)

  def _attempt(self, name: str, seconds: float, measure: Callable[[], None]):
    """Measures what takes `seconds` on an H200, if there is time; lists it if it fails."""
    start, expected = time.monotonic(), seconds * self._slowness
    if start + expected > self.until:
      self.record.leave_out(name, f"no time is left: it may take {expected:.0f} s")
      return
    print(f"measuring: {name}", file=sys.stderr, flush=True)
    try:
      measure()
    except Exception as error:  # of any library; the other parts may still work
      traceback.print_exc()
      self.record.leave_out(name, error)
    taken = time.monotonic() - start
    self._slowness = max(self._slowness, taken / seconds)

  def _make_bench(self, case: Case, implementation: str) -> Bench:
    """Raises ValueError for an attention that is not proven."""
    if implementation not in self.proven:
      raise ValueError(f"the proofs of {implementation} do not pass")
    if not agrees(self.record, implementation, self.dtype, case.row_length):
      raise ValueError(f"{implementation} differs from xla in rows of {case.row_length}")
    pace, dtype = self.pace, self.dtype
    return halving(case.rows, lambda rows: Bench(case, rows, implementation, dtype, pace))

  def _first_bench(self) -> Bench:
    """The first case with the attention that `auto` chooses; it is kept for other parts."""
    if self._bench is None:
      first = self.cases[0]
      self._bench = self._make_bench(first, choose(first, self.dtype).implementation)
    return self._bench

  def _time(self, case: Case, other: str = ""):
    """Times steps with the attention that `auto` chooses, or with another one."""
    chosen = choose(case, self.dtype)
    if case == self.cases[0] and not other:
      bench = self._first_bench()
    else:
      bench = self._make_bench(case, other or chosen.implementation)
    why = "given" if other else chosen.why
    self.record.add("steps", bench.measure() | {"why": why})
    if case in self.cases[:2] and not other:
      if kinds := bench.kinds():
        self.record.known["kinds"][case.name] = kinds
        self.record.write()
      else:
        self.record.leave_out(f"{case.name}, kinds", "JAX's trace has no operations")

  def _dropout(self):
    self.record.add("dropout", self._first_bench().with_dropout())

  def _change(self, name: str):
    self.record.add("changes", self._first_bench().with_change(name))

  def _train(self):
    with tempfile.TemporaryDirectory() as folder:
      result = train_program.measure(
        pathlib.Path(folder),
        self.cases[0],
        steps=20 * self.pace.steps,
        pace=self.pace,
        limit=max(self.until - time.monotonic(), 1.0),
      )
    self.record.add("programs", result)

  def _peers(self):
    first = self.cases[0]
    measured, failed = halving(
      2 * first.rows,  # about as many sequences as a packed step has
      lambda rows: peers(
        first, rows, self.dtype, pace=self.pace, device=self.torch_device or ""
      ),
    )
    self.record.add("peers", *measured)
    for what, why in failed.items():
      self.record.leave_out(WAYS[what], why)


def prove(record: Record, dtype: str) -> list[str]:
  """`verify.quick` in one dtype; returns the implementations that pass on this device."""

  def show(cases: list) -> Iterator:
    for number, case in enumerate(cases, start=1):
      print(f"proof {number} of {len(cases)}", file=sys.stderr, flush=True)
      yield case

  rows, comparisons = verify.quick(show, [dtype])
  record.add("proofs", *map(_entry, rows))
  record.add("beside_xla", *map(_entry, comparisons))
  passes: dict[str, set[bool | None]] = {}
  for row in rows:
    passes.setdefault(row.implementation, set()).add(row.passes)
  return [name for name, each in passes.items() if True in each and False not in each]


def agrees(record: Record, implementation: str, dtype: str, row_length: int) -> bool:
  """Whether an implementation agrees with XLA's in rows of this length, in tokens."""
  case = {"implementation": implementation, "dtype": dtype, "row_length": row_length}
  for known in record.known["beside_xla"]:
    if case.items() <= known.items():
      return known["passes"]
  if implementation == "xla":
    return True
  result = verify.compare_with_xla(implementation, dtype, row_length)
  record.add("beside_xla", _entry(result))
  return result.passes


def _entry(result: verify.Row | verify.KernelComparison) -> dict[str, Any]:
  """For JSON, which lacks NaN and infinity: the largest float in their place."""
  entry = dataclasses.asdict(result)
  for name, value in entry.items():
    if isinstance(value, float) and not math.isfinite(value):
      entry[name] = sys.float_info.max
  return entry | {"passes": result.passes}


def peers(
  case: Case, rows: int, dtype: str, *, pace: Pace, device: str
) -> tuple[list[dict], dict[str, str]]:
  """Times steps of PyTorch's BERT; says why, by key of `WAYS`, where one does not run.

  Un-padded batches differ in shape, so each step of all blocks has a batch of its own.
  """
  import torch

  from benchmarks.hugging_face import seconds_of_steps  # an extra

  number = pace.steps * (pace.blocks + 1)  # one block is not counted
  batches = make_batches(plan_of(case.row_length), rows=rows, number=number)
  config = make_config(case.size, longest=case.row_length, dtype=jnp.dtype(dtype))
  try:
    seconds, failed = seconds_of_steps(
      config,
      batches["unpacked"],
      steps=pace.steps,
      blocks=pace.blocks,
      awaited=pace.awaited,
      device=device,
    )
  finally:
    if device == "cuda":
      gc.collect()
      torch.cuda.empty_cache()  # train.py needs the memory
  measured = [
    {
      "case": case.name,
      "sequences": rows,
      "way": WAYS[what],
      "seconds": quartiles(each["queued"]),
      "awaited": quartiles(each["awaited"]),
    }
    for what, each in seconds.items()
  ]
  return measured, failed
