"""Where the time of a packed training step goes, by kind of operation.

The steps are traced with JAX's profiler. Of a GPU the time of the kernels is added up; of a
CPU that of XLA's operations over all threads, where the time of products includes the
reductions and additions that XLA fuses into them.
"""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from lab.table import record_table

# By kind, parts of the names of operations; the first kind with a match counts.
KINDS = {
  "products": ("ynn_fusion", "dot", "gemm", "convolution"),
  "copies and transposes": ("copy", "transpose"),
  "reductions": ("reduce",),
  "element by element": ("fusion", "wrapped", "scatter", "gather"),
}
# The same for kernels of GPUs. XLA names a fusion by the operations that it ends in, or,
# such as the fusions of LayerNorm, only by a number.
GPU_KINDS = {
  "attention": ("sdpa", "fmha", "flash", "cudnn::fusion"),
  "products": ("nvjet", "gemm", "cublas", "cutlass", "xmma", "matmul", "_dot"),
  "reductions": ("reduce",),
  "copies and transposes": ("copy", "transpose", "memset"),
  "element by element": ("loop_", "wrapped", "scatter", "gather"),
  "fusions without a name": ("fusion",),
  "other kernels": ("",),
}


def kind_of(name: str) -> str | None:
  """The kind of a CPU's operation; None for other events of the trace.

  Example:
    >>> kind_of("ynn_fusion.17"), kind_of("copy_bitcast_fusion"), kind_of("end: dot")
    ('products', 'copies and transposes', None)
  """
  if not name[:1].isalpha() or ":" in name or "Execut" in name:
    return None
  return _first_kind(name, KINDS)


def kind_of_kernel(name: str) -> str:
  """The kind of a GPU's kernel.

  Example:
    >>> kind_of_kernel("loop_add_fusion_34"), kind_of_kernel("fusion_2900")
    ('element by element', 'fusions without a name')
  """
  return _first_kind(name.lower(), GPU_KINDS) or ""


def _first_kind(name: str, kinds: Mapping[str, Sequence[str]]) -> str | None:
  matches = (kind for kind, parts in kinds.items() if any(part in name for part in parts))
  return next(matches, None)


def by_kind(events: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
  """Adds up the events of a Chrome trace.

  If the trace has streams of a GPU, only their events count.

  Returns:
    By kind, the one with the most time first: `seconds`, over all threads or streams, and
    `launches`, the number of events.
  """
  events = list(events)
  gpus = {x["pid"] for x in _named(events, "process_name", "GPU")}
  streams = {
    (x["pid"], x["tid"])
    for x in _named(events, "thread_name", "Stream")
    if x["pid"] in gpus
  }
  found: dict[str, dict[str, float]] = {}
  for event in events:
    if event.get("ph") != "X":
      continue
    if not streams:
      kind = kind_of(event.get("name", ""))
    elif (event["pid"], event["tid"]) in streams:
      kind = kind_of_kernel(event["name"])
    else:
      kind = None
    if kind:
      sums = found.setdefault(kind, {"seconds": 0.0, "launches": 0})
      sums["seconds"] += event["dur"] / 1e6
      sums["launches"] += 1
  return dict(sorted(found.items(), key=lambda item: -item[1]["seconds"]))


def _named(events: Sequence[Mapping[str, Any]], what: str, part: str) -> list:
  """Events that name a process or a thread with this part in its name."""
  return [x for x in events if x.get("name") == what and part in x["args"].get("name", "")]


def trace(make_steps: Callable[[], Any], *, steps: int) -> dict[str, dict[str, float]]:
  """`by_kind` for one step.

  On a CPU, `name_operations` must have been called before JAX started its first device;
  otherwise there are no operations.

  Args:
    make_steps: makes steps, and returns arrays that are ready when they are done.
    steps: how many it makes.
  """
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
      jax.block_until_ready(make_steps())
    (path,) = pathlib.Path(folder).rglob("*.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
  return {
    kind: {name: value / steps for name, value in sums.items()}
    for kind, sums in by_kind(events).items()
  }


def name_operations():
  """Lets a CPU's traces name XLA's operations, if JAX has not started a device yet."""
  flag = "--xla_cpu_enable_xprof_traceme=true"
  os.environ["XLA_FLAGS"] = " ".join([*os.environ.get("XLA_FLAGS", "").split(), flag])


def kind_table(kinds: Mapping[str, Mapping[str, float]]) -> str:
  """The result of `trace` as Markdown."""
  total = sum(sums["seconds"] for sums in kinds.values())
  records = [
    {
      "operations": kind,
      "ms a step": f"{1e3 * sums['seconds']:,.2f}",
      "share": f"{sums['seconds'] / total:.1%}",
      "launches a step": f"{sums['launches']:,.0f}",
    }
    for kind, sums in kinds.items()
  ]
  return record_table(records, left=["operations"])
