"""Where the time of a packed training step goes on a CPU, by kind of operation.

    python -m benchmarks.trace --size base --sequences 8 --batch-size 4

Traces three packed steps of `benchmarks.training` with JAX's profiler, and adds up the time
of XLA's operations over all threads. The time of products includes the reductions and
additions that XLA fuses into them.
"""

from __future__ import annotations

import collections
import gzip
import json
import os
import pathlib
import sys
import tempfile

import jax
import jax.numpy as jnp

import packing
from benchmarks.command import add, add_size, make_parser, run, write
from benchmarks.sample import draw
from benchmarks.small_bert import VOCAB_SIZE, machine_and_device, make_config
from benchmarks.table import record_table
from benchmarks.training import Ours

STEPS = 3
# By kind, parts of the names of operations; the first kind with a match counts.
KINDS = {
  "products": ("ynn_fusion", "dot", "gemm", "convolution"),
  "copies and transposes": ("copy", "transpose"),
  "reductions": ("reduce",),
  "element by element": ("fusion", "wrapped", "scatter", "gather"),
}


def kind_of(name: str) -> str | None:
  """The kind of an operation; None for other events of the trace.

  Example:
    >>> kind_of("ynn_fusion.17"), kind_of("copy_bitcast_fusion"), kind_of("end: dot")
    ('products', 'copies and transposes', None)
  """
  if not name[:1].isalpha() or ":" in name or "Execut" in name:
    return None
  kinds = (kind for kind, parts in KINDS.items() if any(part in name for part in parts))
  return next(kinds, None)


def seconds_by_kind(folder: pathlib.Path) -> collections.Counter[str]:
  """Seconds of each kind of operation, over all threads, from the trace in a folder."""
  (path,) = folder.rglob("*.trace.json.gz")
  seconds: collections.Counter[str] = collections.Counter()
  for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
    kind = kind_of(event.get("name", ""))
    if kind and event.get("ph") == "X":
      seconds[kind] += event["dur"] / 1e6
  return seconds


def main(arguments: list[str] | None = None):
  parser = make_parser(__doc__)
  add_size(parser)
  add(parser, "--sequences", 64)
  add(parser, "--batch-size", 8, "sequences in a batch with one a row; even")
  options = parser.parse_args(arguments)
  # XLA reads XLA_FLAGS when JAX starts its first device.
  flags = os.environ.get("XLA_FLAGS", "")
  os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_enable_xprof_traceme=true"
  try:
    sample = draw(
      packing.load_histogram("wikipedia_512"),
      sequences=options.sequences,
      batch_size=options.batch_size,
      vocab_size=VOCAB_SIZE,
    )
  except packing.InputError as error:
    parser.error(str(error).rstrip("."))
  ours = Ours(make_config(options.size, longest=512, dtype=jnp.dtype("float32")))
  ours.reset()
  batch = sample.lay_out(*sample.batches["packs"][0])
  for _ in range(2):  # the first compiles
    ours.step(batch)
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
      for _ in range(STEPS):
        ours.step(batch)
    seconds = seconds_by_kind(pathlib.Path(folder))
  total = sum(seconds.values())
  records = [
    {
      "operations": kind,
      "seconds a step": f"{seconds[kind] / STEPS:.3f}",
      "share": f"{seconds[kind] / total:.1%}",
    }
    for kind in KINDS
  ]
  print(f"{machine_and_device()}: BERT-{options.size}, packed\n")
  print(record_table(records, left=["operations"]))
  write(options, machine_and_device(), seconds=seconds, steps=STEPS)


if __name__ == "__main__":
  sys.exit(run(main))
