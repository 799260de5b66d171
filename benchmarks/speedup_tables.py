"""The tables of `benchmarks/speedup.py`, from its records."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.steps import spread

KINDS = ("packed", "unpacked")
# Row length: packing factor and realised speed-up in the paper: table 2, BERT-base, and
# for 512 table 1, NNLSHP at depth 3.
PAPER = {128: (1.17, 1.15), 384: (1.70, 1.68), 512: (2.00, 1.913)}
SPEEDUP_HEADER = (
  "| S | attention | p, plan | p, batches | speed-up | over p of the batches "
  "| operations, unpacked : packed | beside the fastest unpacked "
  "| unpacked : itself | paper: p, speed-up, ratio |\n"
  "|---:|---|---:|---:|---:|---:|---:|---:|---:|---|"
)


def speedup_line(record: dict) -> str:
  """A row below `SPEEDUP_HEADER`, of an implementation that ran."""
  model = {kind: record["flops"][kind]["model"] for kind in KINDS}
  over, fastest, noise = (
    spread(record[x], 3) for x in ("over_factor", "over_fastest", "noise")
  )
  paper = "not in it"
  if record["row_length"] in PAPER:
    factor, realised = PAPER[record["row_length"]]
    paper = f"{factor:.2f}, {realised}, {realised / factor:.3f}"
  return (
    f"| {record['row_length']} | {record['attention']} | {record['plan_factor']:.3f} "
    f"| {record['batch_factor']:.3f} | {spread(record['speedup'], 3)} | {over} "
    f"| {model['unpacked'] / model['packed']:.3f} | {fastest} | {noise} | {paper} |"
  )


def share_table(records: Sequence[dict]) -> str:
  """Operations of a step by each count, and the share of the peak."""
  lines = [
    "| S | attention | step | GFLOP, model | dots : model | XLA : model | LAMB : model "
    "| seconds | GFLOP/s | product, GFLOP/s | share |",
    "|---:|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
  ]
  for record in (x for x in records if "flops" in x):
    for kind in KINDS:
      flops, seconds = record["flops"][kind], record["seconds"][kind]["median"]
      model = flops["model"]
      lines.append(
        f"| {record['row_length']} | {record['attention']} | {kind} | {model / 1e9:.2f} "
        f"| {flops['dots'] / model:.6f} | {flops['xla'] / model:.4f} "
        f"| {flops['update'] / model:.4f} | {seconds:.4f} "
        f"| {model / seconds / 1e9:,.1f} | {record['product_rate']['median'] / 1e9:,.1f} "
        f"| {spread(record['share'][kind], 3)} |"
      )
  return "\n".join(lines)
