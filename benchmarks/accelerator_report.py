"""The report of `benchmarks.accelerator`, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.trace import kind_table
from lab.statistics import spread
from lab.table import record_table
from model.testing import verify

# How steps are timed: the key of the times in a record, and what tables call it.
KINDS = (("seconds", "queued"), ("awaited", "awaited"))


def report(known: dict[str, Any]) -> str:
  """All results so far.

  Args:
    known: what `benchmarks.accelerator` writes to results.json.
  """
  proofs = [{k: v for k, v in x.items() if k != "passes"} for x in known["proofs"]]
  comparisons = [{k: v for k, v in x.items() if k != "passes"} for x in known["beside_xla"]]
  versions = ", ".join(f"{name} {number}" for name, number in known["versions"].items())
  sections = [
    ("On an accelerator", _about(known, versions)),
    ("Proofs", verify.table([verify.Row(**x) for x in proofs]) if proofs else ""),
    ("", verify.comparison_table([verify.KernelComparison(**x) for x in comparisons])),
    ("Steps", _steps(known["tables"]["steps"], known["steps"])),
    *(
      (f"Where the time of a packed step goes: {case}", kind_table(kinds))
      for case, kinds in known["kinds"].items()
    ),
    ("Packed steps with dropout", record_table(known["tables"]["dropout"], left=("case",))),
    (
      "Changes, each alone",
      record_table(known["tables"]["changes"], left=("case", "change")),
    ),
    ("train.py", _program_lines(known["programs"])),
    ("PyTorch", record_table(known["tables"]["pytorch"], left=("case", "way"))),
    ("Left out", "\n".join(f"- {x['case']}: {x['why']}" for x in known["left_out"])),
  ]
  parts = [f"## {title}\n\n{text}" if title else text for title, text in sections if text]
  return "\n\n".join(parts).removeprefix("#") + "\n"


def tables(known: dict[str, Any]) -> dict[str, list[dict[str, str]]]:
  """The tables of the report by name, as records; `lab.pages` writes them into pages."""
  peak = known["peak"]["flops"]
  return {
    "steps": [_of_step(step, peak) for step in known["steps"]],
    "dropout": [
      {"case": x["case"], "dropout": f"{x['rate']}"} | _beside(x) for x in known["dropout"]
    ],
    "changes": [
      {"case": x["case"], "change": x["change"]} | _beside(x) for x in known["changes"]
    ],
    "pytorch": [_of_peer(peer, known["steps"]) for peer in known["peers"]],
  }


def _about(known: dict[str, Any], versions: str) -> str:
  peak, pace = known["peak"], known["pace"]
  return (
    f"{known['machine']}; {versions}. XLA_FLAGS: {known['xla_flags'] or 'none'}. "
    f"{known['dtype']}; peak {peak['flops'] / 1e12:,.2f} TFLOP/s ({peak['source']}). Whole "
    f"steps with LAMB, without dropout: medians and quartiles of {pace['blocks']} blocks "
    f"of {pace['steps']} steps, queued one after another as in training, and of "
    f"{pace['awaited']} steps that were awaited one by one. A ratio compares times of one "
    "kind. Products are those of large matrices, timed in the same turns."
  )


def _of_step(step: dict, peak: float) -> dict[str, str]:
  seconds, flops = step["seconds"]["packed"]["median"], step["flops"]["packed"]
  both = {
    f"ms, {name}, {how}": _ms(step[times][kind])
    for kind, name in (("packed", "packed"), ("unpacked", "one a row"))
    for times, how in KINDS
  }
  return {
    "case": step["case"],
    "rows": str(step["rows"]),
    "attention": step["attention"],
    **both,
    "packing factor": f"{step['batch_factor']:.3f}",
    "speed-up over it, queued": spread(step["over_factor"], 3),
    "awaited": spread(step["awaited_over_factor"], 3),
    **{f"sequences/s, {how}": f"{_rate(step, times):,.1f}" for times, how in KINDS},
    "TFLOP/s, queued": f"{flops['model'] / seconds / 1e12:,.2f}",
    "within sequences": f"{flops['one_sequence'] / seconds / 1e12:,.2f}",
    "of products": spread(step["share"]["packed"], 3),
    "of the peak": f"{flops['model'] / seconds / peak:.3f}",
    "GB": f"{step['bytes']['packed'] / 1e9:.2f}",
    "compiled in s": ", ".join(f"{x:.0f}" for x in step["compile_seconds"].values()),
  }


def _ms(seconds: Mapping[str, float]) -> str:
  return spread({name: 1e3 * x for name, x in seconds.items()}, 1)


def _rate(step: dict, times: str) -> float:
  """Sequences a second of packed steps."""
  return step["batch_factor"] * step["rows"] / step[times]["packed"]["median"]


def _steps(records: list[dict[str, str]], steps: Sequence[dict]) -> str:
  if not records:
    return ""
  reasons = dict.fromkeys(f"{x['attention']}: {x['why'].removesuffix('.')}." for x in steps)
  return (
    f"{record_table(records, left=('case', 'attention'))}\n\n{' '.join(reasons)} "
    "TFLOP/s count all pairs of a row's tokens in attention, or only those within "
    "sequences; shares count all pairs. Of two numbers, the second is of one sequence a "
    "row."
  )


def _beside(step: dict) -> dict[str, str]:
  return {
    "ms, queued": f"{1e3 * step['seconds']['median']:,.1f}",
    "time : without, queued": spread(step["ratio"], 3),
    "ms, awaited": f"{1e3 * step['awaited']['median']:,.1f}",
    "time : without, awaited": spread(step["awaited_ratio"], 3),
    "GB": f"{step['bytes'] / 1e9:.2f}",
    "compiled in s": f"{step['compile_seconds']:.0f}",
  }


def _program_lines(programs: Sequence[dict]) -> str:
  return "\n".join(
    f"train.py on BERT-{x['size']}, {x['rows']} rows of {x['row_length']}: "
    f"{x['sequences_per_second']:,.1f} sequences/s, {1e3 * x['seconds']:,.1f} ms a step, "
    f"{x['ratio']:.3f} of the speed of its bare step "
    f"({1e3 * x['bare_seconds']['median']:,.1f} ms), both queued; it waits for input for "
    f"{x['input_share']:.1%} of the time."
    for x in programs
  )


def _of_peer(peer: dict, steps: Sequence[dict]) -> dict[str, str]:
  chosen = [x for x in steps if x["case"] == peer["case"] and x["why"] != "given"]
  ours = chosen[0] if chosen else None
  row = {
    "case": peer["case"],
    "sequences a step": str(peer["sequences"]),
    "way": peer["way"],
  }
  for times, how in KINDS:
    rate = peer["sequences"] / peer[times]["median"]
    row |= {f"ms, {how}": _ms(peer[times]), f"sequences/s, {how}": f"{rate:,.1f}"}
    row[f"packed is faster, {how}"] = f"{_rate(ours, times) / rate:.2f}" if ours else ""
  return row
