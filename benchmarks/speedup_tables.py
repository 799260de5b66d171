"""The tables of `benchmarks/speedup.py`, from its records."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.steps import spread
from benchmarks.table import table

KINDS = ("packed", "unpacked")
# Row length: packing factor and realised speed-up in the paper: table 2, BERT-base, and
# for 512 table 1, NNLSHP at depth 3.
PAPER = {128: (1.17, 1.15), 384: (1.70, 1.68), 512: (2.00, 1.913)}
SPEEDUP_HEADER = (
  "S",
  "attention",
  "p, plan",
  "p, batches",
  "speed-up",
  "over p of the batches",
  "operations, unpacked : packed",
  "beside the fastest unpacked",
  "unpacked : itself",
  "paper: p, speed-up, ratio",
)
SPEEDUP_RIGHT = (0, *range(2, 9))
SHARE_HEADER = (
  "S",
  "attention",
  "step",
  "GFLOP, model",
  "dots : model",
  "XLA : model",
  "LAMB : model",
  "seconds",
  "GFLOP/s",
  "product, GFLOP/s",
  "share",
)


def speedup_row(record: dict) -> list[str]:
  """The cells below `SPEEDUP_HEADER` of an implementation that ran."""
  model = {kind: record["flops"][kind]["model"] for kind in KINDS}
  paper = "not in it"
  if record["row_length"] in PAPER:
    factor, realised = PAPER[record["row_length"]]
    paper = f"{factor:.2f}, {realised}, {realised / factor:.3f}"
  return [
    str(record["row_length"]),
    record["attention"],
    f"{record['plan_factor']:.3f}",
    f"{record['batch_factor']:.3f}",
    spread(record["speedup"], 3),
    spread(record["over_factor"], 3),
    f"{model['unpacked'] / model['packed']:.3f}",
    spread(record["over_fastest"], 3),
    spread(record["noise"], 3),
    paper,
  ]


def share_table(records: Sequence[dict]) -> str:
  """The operations of a step by each count, and its share of the peak."""
  rows = [
    _share_row(record, kind) for record in records if "flops" in record for kind in KINDS
  ]
  return table(SHARE_HEADER, rows, right=(0, *range(3, 11)))


def _share_row(record: dict, kind: str) -> list[str]:
  flops, seconds = record["flops"][kind], record["seconds"][kind]["median"]
  model = flops["model"]
  return [
    str(record["row_length"]),
    record["attention"],
    kind,
    f"{model / 1e9:.2f}",
    f"{flops['dots'] / model:.6f}",
    f"{flops['xla'] / model:.4f}",
    f"{flops['update'] / model:.4f}",
    f"{seconds:.4f}",
    f"{model / seconds / 1e9:,.1f}",
    f"{record['product_rate']['median'] / 1e9:,.1f}",
    spread(record["share"][kind], 3),
  ]
