"""Proves every attention implementation of an accelerator, then times training steps.

    python -m benchmarks.accelerator --out results/h100
    python -m benchmarks.accelerator --out results/h100 --minutes 25 --cases large:512
    python -m benchmarks.accelerator --out results/quick --quick      on any machine

First, each implementation of attention that the device supports is proven, in bfloat16
and float32: packed equals unpacked in outputs, losses and gradients, even if rows end in
padding or are empty, and no sequence influences another. Before rows of a given length
are timed, each implementation is compared with XLA's at that length. An implementation
that fails is reported and not timed.

Then whole training steps take turns, as in benchmarks/speedup.py: steps on packs, and
steps on the same sequences one a row. Sequences have the lengths of Wikipedia's in rows
of 128 and 512 tokens. Longer rows hold sequences of up to 2,048 tokens, as many as fit.

Each result is written at once to results.json and report.md, so a run that is cut off
keeps what it has measured. Cases that --minutes does not allow, or that fail, are listed
there. Only jax, flax, optax, numpy, scipy and highspy are needed. If transformers and a
PyTorch for the same device are installed, PyTorch's BERT then trains on the same
sequences with AdamW.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from model.testing.beside_xla import difference_from_xla

import model
import packing
from benchmarks.command import DTYPES, add, make_parser, run, some_of, write
from benchmarks.small_bert import machine_and_device, make_config
from benchmarks.speedup import make_batches, measure
from benchmarks.steps import MEASURED, not_run_lines, quartiles, spread
from benchmarks.table import record_table
from model import IMPLEMENTATIONS
from model.files import write_json, write_text
from model.testing import TOLERANCES, verify
from training.record.flops import peak_of

HEADS = ("masked tokens, next sentence", "next tokens, learned positions")
WAYS = {
  "masked": "PyTorch, padded to the row, SDPA, head at masked tokens",
  "unpadded": "PyTorch, un-padded, head at masked tokens",
}
MLPERF = 996  # sequences a second per GPU: BERT-large, rows of 512, 8 H200 in FP8


class Case(NamedTuple):
  """A model and its rows; a step has `tokens` tokens, or fewer if memory is short."""

  size: str
  row_length: int
  tokens: int

  @property
  def name(self) -> str:
    return f"{self.size}:{self.row_length}"


CASES = tuple(
  Case(size, row_length, tokens)
  for row_length in (512, 128, 2048, 8192)
  for size, tokens in (("large", 16384), ("base", 32768))
)
QUICK = (Case("tiny", 128, 512), Case("tiny", 512, 1024))


class Record:
  """The results so far, written to results.json and report.md after each change."""

  def __init__(self, folder: pathlib.Path, *, machine: str, peak: dict[str, Any]):
    self._folder = folder
    self.known: dict[str, Any] = {"machine": machine, "peak": peak}
    self.known |= {"proofs": [], "beside_xla": [], "steps": [], "peers": []}
    self.known["left_out"] = []
    self.write()

  def add(self, kind: str, *entries: dict):
    """Adds entries to "proofs", "beside_xla", "steps", "peers" or "left_out"."""
    self.known[kind] += entries
    self.write()

  def write(self):
    write_json(self._folder / "results.json", self.known)
    write_text(self._folder / "report.md", report(self.known))


def prove(record: Record, implementations: Sequence[str]) -> list[str]:
  """Proves implementations; returns those that this device supports and that pass."""
  passes: dict[str, set[bool | None]] = {name: set() for name in implementations}
  for head in HEADS:
    for implementation in implementations:
      for dtype in DTYPES:
        if (head, implementation, dtype) not in verify.cases():
          continue
        print(f"proof: {implementation}, {dtype}, {head}", file=sys.stderr, flush=True)
        try:
          row = verify.verify_case(head, implementation, dtype)
        except jax.errors.JaxRuntimeError as error:  # a kernel that does not compile or run
          row = verify.Row(head, implementation, dtype)  # without numbers, it fails
          case = f"proof of {implementation}"
          record.add("left_out", {"case": case, "why": _first_line(error)})
        entry = {name: _for_json(value) for name, value in dataclasses.asdict(row).items()}
        record.add("proofs", entry | {"passes": row.passes})
        passes[implementation].add(row.passes)
  return [name for name, each in passes.items() if True in each and False not in each]


def beside_xla(
  record: Record, implementations: Sequence[str], dtype: str, row_length: int
) -> list[str]:
  """Compares implementations with XLA's in rows of this length.

  Returns:
    Those that agree with it, and those that cannot run at this length: `measure` records
    why.
  """
  kept = []
  for name in implementations:
    case = {"attention": name, "dtype": dtype, "row_length": row_length}
    known = [x for x in record.known["beside_xla"] if case.items() <= x.items()]
    if not known:
      try:
        size = difference_from_xla(name, dtype, row_length)
        passes = size <= TOLERANCES[dtype]
        known = [case | {"difference": _for_json(size), "passes": passes}]
      except model.AttentionError:
        kept.append(name)
        continue
      except jax.errors.JaxRuntimeError as error:
        known = [case | {"passes": False, "why": _first_line(error)}]
      record.add("beside_xla", *known)
    if known[0]["passes"]:
      kept.append(name)
  return kept


def time_cases(
  record: Record,
  cases: Sequence[Case],
  implementations: Sequence[str],
  *,
  dtype: str,
  rounds: int,
  until: float,
  torch_device: str | None = None,
):
  """Measures cases until `until`, a time of `time.monotonic`; records those left out."""
  longest = 0.0
  for case in cases:
    start = time.monotonic()
    if start + longest > until:
      why = f"no time is left: the longest case so far took {longest:.0f} s"
      record.add("left_out", {"case": case.name, "why": why})
      continue
    print(f"steps: BERT-{case.size}, rows of {case.row_length}", file=sys.stderr)
    what = case.name
    try:
      usable = beside_xla(record, implementations, dtype, case.row_length)
      steps = _measure(case, usable, dtype=dtype, rounds=rounds)
      record.add("steps", *steps)
      what = f"PyTorch's BERT, {case.name}"
      if torch_device and steps:
        rows = steps[0]["rows"]
        measured = peers(
          case, rows=rows, dtype=dtype, rounds=rounds, torch_device=torch_device
        )
        record.add("peers", *measured)
    except (RuntimeError, ImportError) as error:  # of JAX or PyTorch
      record.add("left_out", {"case": what, "why": _first_line(error)})
    longest = max(longest, time.monotonic() - start)


def peers(
  case: Case, *, rows: int, dtype: str, rounds: int, torch_device: str
) -> list[dict]:
  """Times steps of PyTorch's BERT on the sequences of the unpacked steps."""
  from benchmarks.hugging_face import seconds_of_steps  # an extra

  batches = make_batches(plan_of(case.row_length), rows=rows, number=rounds + 1)
  config = make_config(case.size, longest=case.row_length, dtype=jnp.dtype(dtype))
  seconds = seconds_of_steps(config, batches["unpacked"], device=torch_device)
  return [
    {"size": case.size, "row_length": case.row_length, "rows": rows, "way": WAYS[what]}
    | {"sequences_per_second": quartiles(rows / np.array(each))}
    for what, each in seconds.items()
  ]


def find_torch() -> str | None:
  """PyTorch's device, "cuda" or "cpu"; None if PyTorch or transformers is missing.

  To be called before JAX starts its first device, so that JAX leaves some of the GPU's
  memory to PyTorch.
  """
  try:
    import torch
    import transformers  # noqa: F401
  except ImportError:
    return None
  if not torch.cuda.is_available():
    return "cpu"
  os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.6")
  return "cuda"


def _measure(case: Case, implementations: Sequence[str], **options: Any) -> list[dict]:
  """Records of `speedup.measure`; halves the rows until memory suffices."""
  plan = plan_of(case.row_length)
  options |= {"size": case.size, "implementations": implementations}
  rows = max(case.tokens // case.row_length, 1)
  while True:
    try:
      records = measure(plan, rows=rows, **options)
    except jax.errors.JaxRuntimeError as error:
      if "RESOURCE_EXHAUSTED" not in str(error) or rows == 1:
        raise
      rows //= 2
    else:
      return [{"size": case.size, "rows": rows} | record for record in records]


def plan_of(row_length: int) -> packing.Plan:
  """A plan for Wikipedia's sequences: the paper's depth up to 512 tokens, then no limit."""
  histogram = packing.load_histogram(f"wikipedia_{min(row_length, 2048)}")
  if row_length <= 512:
    return packing.pack(histogram, algorithm="optimal", max_sequences_per_pack=3)
  return packing.pack(
    histogram, algorithm="lpfhp", max_sequences_per_pack=None, row_length=row_length
  )


def report(known: dict[str, Any]) -> str:
  """All results as Markdown."""
  peak = known["peak"]
  proofs = [{k: v for k, v in proof.items() if k != "passes"} for proof in known["proofs"]]
  steps = [step for step in known["steps"] if "not_run" not in step]
  parts = [
    f"{known['machine']}. Peak: {peak['flops'] / 1e12:,.2f} TFLOP/s in {peak['dtype']} "
    f"({peak['source']}). Packed and unpacked training are compared in whole steps with "
    "LAMB, by medians and quartiles.",
    verify.table([verify.Row(**proof) for proof in proofs]),
    _beside_table(known["beside_xla"]),
    _step_table(steps, peak["flops"]),
    _peer_table(known["peers"]),
  ]
  parts.append(not_run_lines(known["steps"]))
  if any((step["size"], step["row_length"]) == ("large", 512) for step in steps):
    parts.append(
      f"MLPerf's packed BERT-large at 512 tokens trains on {MLPERF} sequences a second on "
      f"each of 8 H200, in FP8; here the dtype is {peak['dtype']}."
    )
  parts += [f"Left out: {x['case']}: {x['why']}" for x in known["left_out"]]
  return "\n\n".join(filter(None, parts)) + "\n"


def _beside_table(checks: Sequence[dict]) -> str:
  difference = "difference from XLA in float32"
  records = [
    {
      "S": str(check["row_length"]),
      "attention": check["attention"],
      "dtype": check["dtype"],
      difference: f"{check['difference']:.1e}" if "difference" in check else check["why"],
      "": "" if check["passes"] else "FAILS",
    }
    for check in checks
  ]
  return record_table(records, left=("attention", "dtype", difference, ""))


def _step_table(steps: Sequence[dict], peak: float) -> str:
  records = []
  for step in steps:
    seconds, flops = step["seconds"]["packed"]["median"], step["flops"]["packed"]
    record = {
      "BERT": step["size"],
      "S": str(step["row_length"]),
      "rows": str(step["rows"]),
      "attention": step["attention"],
      "packing factor": f"{step['batch_factor']:.3f}",
      "speed-up": spread(step["speedup"], 3),
      "over the factor": spread(step["over_factor"], 3),
      "beside the fastest unpacked": spread(step["over_fastest"], 3),
      "sequences a second": f"{step['batch_factor'] * step['rows'] / seconds:,.1f}",
      "share of the peak, all pairs": f"{flops['model'] / seconds / peak:.1%}",
      "pairs of one sequence": f"{flops['one_sequence'] / seconds / peak:.1%}",
      "GB": f"{step['bytes']['packed'] / 1e9:.2f}",
    }
    records.append(record)
  return record_table(records, left=("BERT", "attention"))


def _peer_table(peers: Sequence[dict]) -> str:
  records = [
    {
      "BERT": peer["size"],
      "S": str(peer["row_length"]),
      "sequences a step": str(peer["rows"]),
      "way": peer["way"],
      "sequences a second": spread(peer["sequences_per_second"], 1),
    }
    for peer in peers
  ]
  return record_table(records, left=("BERT", "way"))


def _for_json(value):
  """The value; the largest float in place of NaN and infinity, which JSON lacks."""
  finite = not isinstance(value, float) or math.isfinite(value)
  return value if finite else sys.float_info.max


def _first_line(error: Exception) -> str:
  return str(error).strip().partition("\n")[0][:300]


def main(arguments: list[str] | None = None):
  parser = make_parser(__doc__)
  parser.add_argument(
    "--out", metavar="DIR", required=True, help="a folder for results.json and report.md"
  )
  add(parser, "--minutes", 8, "start no case that may end after this time")
  parser.add_argument(
    "--quick", action="store_true", help="a tiny model, on any machine; not with --cases"
  )
  names = [case.name for case in CASES]
  parser.add_argument(
    "--cases",
    type=some_of(names),
    help=f"some of {','.join(names)} (default: all, in this order)",
  )
  parser.add_argument(
    "--implementations",
    type=some_of(IMPLEMENTATIONS),
    help=f"of attention, some of {','.join(IMPLEMENTATIONS)} (default: all that can run)",
  )
  options = parser.parse_args(arguments)
  if options.quick and options.cases:
    parser.error("--quick and --cases exclude each other; give one of them")
  until = time.monotonic() + 60 * options.minutes
  torch_device = find_torch()
  device = jax.devices()[0]
  if device.platform == "cpu" and not options.quick:
    parser.error("there is no accelerator, only a CPU. Use --quick or benchmarks.speedup")
  implementations, dtype, rounds = MEASURED, "bfloat16", 10
  cases = [case for case in CASES if not options.cases or case.name in options.cases]
  if options.quick:
    cases, rounds = list(QUICK), 2
  if device.platform == "cpu":
    implementations, dtype = ("xla", "blocks", "splash_interpret"), "float32"
  peak = dataclasses.asdict(peak_of([device], dtype=dtype)) | {"dtype": dtype}
  out = pathlib.Path(options.out)
  try:
    out.mkdir(parents=True, exist_ok=True)
    record = Record(out, machine=machine_and_device(), peak=peak)
  except OSError as error:
    parser.error(f"cannot write into {out}: {error.strerror}")
  if torch_device != {"cpu": "cpu", "gpu": "cuda"}.get(device.platform, ""):
    why = f"PyTorch for this {device.platform} or transformers is not installed"
    record.add("left_out", {"case": "PyTorch's BERT", "why": why})
    torch_device = None
  implementations = options.implementations or implementations
  proven = prove(record, implementations)
  if proven:
    of_steps: dict[str, Any] = {"dtype": dtype, "rounds": rounds, "until": until}
    time_cases(record, cases, proven, **of_steps, torch_device=torch_device)
  write(options, **record.known)
  print(f"\n{report(record.known)}\nWritten to {out}.")
  proofs = record.known["proofs"]
  if failing := dict.fromkeys(x["implementation"] for x in proofs if x["passes"] is False):
    sys.exit(f"error: proofs of {', '.join(failing)} fail; {out / 'report.md'} has them.")
  if not proven:
    sys.exit(
      f"error: {', '.join(implementations)} cannot run on this {device.platform}. Nothing "
      "was timed; give other --implementations."
    )


if __name__ == "__main__":
  sys.exit(run(main))
