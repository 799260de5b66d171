"""What one accelerator gives: proofs, training steps, train.py, and PyTorch in comparison.

    python -m benchmarks.accelerator --out results/h200
    python -m benchmarks.accelerator --out results/h200 --cases base:512,pytorch
    python -m benchmarks.accelerator --out results/tiny --cases tiny:128     on any machine

First, each implementation of attention that the device has is proven: packed equals
unpacked in outputs, losses and gradients, and no sequence influences another. One that
fails is reported and not timed. Nor is one in rows of a length where it differs from XLA's.

Then, in the order of --cases, as far as --minutes allows:

- base:512 and the like: steps of BERT-base (modern_base: ModernBERT) in rows of 512 tokens,
  with the attention that `auto` chooses, packed and one sequence a row; queued in blocks,
  as in training, and awaited one by one. Sequences have the lengths of Wikipedia's; rows
  above 512 tokens hold as many as fit. Of the first two cases, also where the time goes,
  from JAX's trace. The first case is also that of the other parts.
- attention: the first case with the other proven implementations.
- dropout: the first case with dropout; queued and awaited.
- changes: the first case with changes that wait for a GPU (benchmarks/changes.py), each
  alone; queued and awaited.
- train.py: the program itself on the standard library's text, and its bare step, queued.
- pytorch: transformers' BERT on sequences of the first case, with AdamW: padded, un-padded,
  with torch.compile, and flattened with FlashAttention; queued and awaited, as ours.

A ratio compares queued steps, or awaited ones, never one with the other.

Each result is written at once to results.json and report.md, so a run that is cut off
keeps what it has measured. What does not fit into --minutes, or fails, is listed there.
With --json results/h200.json, `python -m lab.pages results/h200.json` publishes its tables.
Nothing is installed. Proofs and steps need jax, flax, optax, numpy, scipy and highspy;
train.py needs requirements.txt; pytorch needs transformers and a PyTorch for the same
device, and flash_attn for the flattened batches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import os
import pathlib
import sys
import time

from training import compiler, memory

if __name__ == "__main__":
  compiler.set_flags()  # before JAX is imported

import jax

from benchmarks.accelerator_report import report
from benchmarks.accelerator_session import Record, Session, prove
from benchmarks.accelerator_steps import Case, Pace
from benchmarks.command import make_parser, write
from benchmarks.trace import name_operations
from lab.machine import machine_and_device
from lab.options import add, run, some_of
from launch.record.flops import peak_of

CASES = (
  Case("base", 512, 64, 100),
  Case("large", 512, 64, 150),
  Case("base", 2048, 16, 90),
  Case("modern_base", 8192, 4, 120),
  Case("base", 128, 256, 90),
  Case("modern_base", 1024, 32, 120),
  Case("large", 128, 256, 150),
)
TINY = (Case("tiny", 128, 4), Case("modern_tiny", 128, 4))  # for any machine
# What follows the first two cases, and what follows the first five.
EARLY, LATE = ("dropout", "train.py", "pytorch"), ("changes", "attention")
NAMES = [x.name for x in CASES]
NAMES = [*NAMES[:2], *EARLY, *NAMES[2:5], *LATE, *NAMES[5:]]
PACE, CPU_PACE = Pace(steps=20, blocks=4, awaited=20), Pace(steps=5, blocks=2, awaited=2)
PACKAGES = ("jax", "jaxlib", "flax", "optax", "torch", "transformers", "flash_attn")
JAX_SHARE = "0.5"  # of a GPU's memory; the rest is for PyTorch, or for train.py


def find_torch() -> str | None:
  """PyTorch's device, "cuda" or "cpu"; None if PyTorch or transformers is missing."""
  try:
    import torch
    import transformers  # noqa: F401
  except ImportError:
    return None
  return "cuda" if torch.cuda.is_available() else "cpu"


def versions() -> dict[str, str]:
  """Of the packages that are installed, of JAX's platform and of NVIDIA's driver."""
  found = {}
  for name in PACKAGES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      found[name] = importlib.metadata.version(name)
  found["platform"] = " ".join(jax.devices()[0].client.platform_version.split())
  driver = pathlib.Path("/proc/driver/nvidia/version")
  if driver.exists():
    found["driver"] = driver.read_text().partition("\n")[0]
  return found


def main(arguments: list[str] | None = None):
  parser = make_parser(__doc__, "accelerator")
  parser.add_argument(
    "--out", metavar="DIR", required=True, help="a folder for results.json and report.md"
  )
  add(parser, "--minutes", 10, "start nothing that may end after this time")
  tiny = [case.name for case in TINY]
  parser.add_argument(
    "--cases",
    type=some_of([*NAMES, *tiny]),
    help=f"some of {','.join(NAMES)}, in any order (default: all, in this order), or of "
    f"{','.join(tiny)}",
  )
  options = parser.parse_args(arguments)
  until = time.monotonic() + 60 * options.minutes
  os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", JAX_SHARE)
  if memory.only_cpus(os.environ):
    name_operations()
  compiler.keep_programs()
  device = jax.devices()[0]
  on_cpu = device.platform == "cpu"
  if on_cpu and not options.cases:
    parser.error("there is no accelerator. Use --cases=tiny:128 or benchmarks.speedup")
  dtype, pace = ("float32", CPU_PACE) if on_cpu else ("bfloat16", PACE)
  names = options.cases or NAMES
  by_name = {case.name: case for case in (*CASES, *TINY)}
  out = pathlib.Path(options.out)
  try:
    out.mkdir(parents=True, exist_ok=True)
    record = Record(
      out,
      machine=machine_and_device(),
      versions=versions(),
      xla_flags=os.environ.get("XLA_FLAGS", ""),
      dtype=dtype,
      peak=dataclasses.asdict(peak_of([device], dtype=dtype)),
      pace=pace._asdict(),
    )
  except OSError as error:
    parser.error(f"cannot write into {out}: {error.strerror}")
  torch_device = find_torch()
  if torch_device != {"cpu": "cpu", "gpu": "cuda"}.get(device.platform, ""):
    why = f"PyTorch for this {device.platform} or transformers is not installed"
    record.leave_out("pytorch", why)
    torch_device = None
  session = Session(
    record,
    until=until,
    cases=[by_name[name] for name in names if name in by_name] or CASES[:1],
    dtype=dtype,
    pace=pace,
    proven=prove(record, dtype),
    torch_device=torch_device,
  )
  for name in names:
    session.measure(name)
  write(options, **record.known)
  print(f"\n{report(record.known)}\nWritten to {out}.")
  proofs = record.known["proofs"]
  if failing := dict.fromkeys(x["implementation"] for x in proofs if x["passes"] is False):
    sys.exit(f"error: proofs of {', '.join(failing)} fail; {out / 'report.md'} has them.")


if __name__ == "__main__":
  sys.exit(run(main))
