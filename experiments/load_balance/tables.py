"""The tables of the load balance, in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from experiments.lab.report import table
from experiments.load_balance.shares import ONE_PROGRAM, PACKED, UNPADDED
from experiments.load_balance.ways import UNPADDING

# By header: a format of the row's fields, or a function of the row.
Columns = Mapping[str, str | Callable[[Mapping[str, Any]], str]]


def tables(result: Mapping[str, Any]) -> str:
  """All tables of the result of `__main__.run`, each after what it shows."""
  rows, batch, network = result["rows"], result["batch"], result["network"]
  some = [x for x in rows if x["batch"] == batch]
  both = [
    x | {"way": f"{x['way']}, batch {x['batch']}"}
    for x in rows
    if x["way"] in (UNPADDING, result["packing"])
  ]
  factors = ", ".join(f"{x:.4f} at depth {d}" for d, x in result["packing_factors"].items())
  exchange = ", ".join(f"{s:.2g} s on {n:,}" for n, s in result["exchange_seconds"].items())
  parts = [
    *_device(result["device"]),
    f"Lengths of {result['histogram']}; packing factors {factors}. The exchange of "
    f"gradients is assumed: a ring, {network['bandwidth']:.3g} bytes/s, "
    f"{network['latency']:.1g} s a hop, {network['gradient_bytes'] / 1e6:.0f} MB, so "
    f"{exchange}.",
    "Real sequences a second divided by those of padding, by number of devices, batch "
    f"{batch}.",
    by_devices(some, "{speedup:.3f}"),
    "The share of time that devices wait for the slowest, by number of devices, batch "
    f"{batch}.",
    by_devices(some, "{idle:.1%}"),
    f"Seconds of a step: mean ± standard deviation (99th percentile), batch {batch}.",
    by_devices(some, "{mean:.3g} ± {deviation:.2g} ({percentile_99:.3g})"),
    "Real sequences a second divided by those of padding, by the batch of a device.",
    by_devices(both, "{speedup:.3f}"),
    *_paper_method(result["paper_method"]),
    *(_measured(result["measured"]) if "measured" in result else []),
  ]
  return "\n\n".join(parts)


def _device(device: Mapping[str, Any]) -> list[str]:
  costs = device["coefficients"]
  text = (
    f"A device: {device.get('model', 'model not named')}, "
    f"{device.get('machine', 'machine not named')}. {costs['step']:.3g} s a step, "
    f"{costs['row']:.3g} s a row, {costs['token']:.3g} s a token, "
    f"{costs['token_pair']:.3g} s a pair of tokens; {device['parameters']:,} parameters."
  )
  columns: Columns = {
    "tokens": "{row_length}",
    "rows": "{rows}",
    "seconds of a step (quartiles)": "{seconds:.3f} ({low:.3f} to {high:.3f})",
    "fit": "{relative_error:+.1%}",
  }
  rows = device.get("measurements")
  return [text, by_columns(rows, columns)] if rows else [text]


def _paper_method(checked: Mapping[str, Any] | None) -> list[str]:
  if checked is None:
    return []
  fitted, one = checked["several"], checked["one"]
  text = (
    "The paper's method, applied to the simulated speed-ups of 8 devices: the fit has "
    f"alpha {fitted['location']:.4f} and beta {fitted['scale']:.4f}, so 1 device has alpha "
    f"{one['location']:.3f} and beta {one['scale']:.3f}. The estimate is the mean of the "
    "smallest draw."
  )
  columns: Columns = {
    "devices": "{devices:,}",
    "simulated": "{simulated:.3f}",
    "estimated": "{estimated:.3f}",
  }
  return [text, by_columns(checked["rows"], columns)]


def _measured(measured: Mapping[str, Any]) -> list[str]:
  clock, predicted = (
    {way: sum(x) / len(x) for way, x in measured[name].items()}
    for name in ("clock", "predicted")
  )
  text = (
    f"Measured steps: BERT-{measured['model']}, {measured['batch']} sequences a device, "
    f"lengths rounded up to a multiple of {measured['multiple']}, {measured['machine']}. A "
    f"share is what a device computes in a step. The {measured['shares']} shares measured "
    f"alone take, on average, {clock[PACKED]:.3g} s with packing (predicted: "
    f"{predicted[PACKED]:.3g} s) and {clock[UNPADDED]:.3g} s with un-padding (predicted: "
    f"{predicted[UNPADDED]:.3g} s). Composed: {measured['composed']} steps made of shares "
    f"measured alone. Shared cores: all devices run on {measured['cores']} cores at the "
    "same time, so little waiting shows. Processes have a core each."
  )
  waiting: Columns = {
    "": "{name}",
    "simulated": lambda x: _percent(x["simulated"]),
    "predicted for the same shares": lambda x: _percent(x["predicted"]),
    "predicted at the pace": lambda x: _percent(x["at_pace"]),
    "un-padding, measured": lambda x: _percent(x["measured"][UNPADDED]),
    "measured - predicted, points": lambda x: (
      f"{100 * (x['measured'][UNPADDED]['median'] - x['predicted']['median']):+.1f}"
    ),
    "packing, measured": lambda x: _percent(x["measured"][PACKED]),
    "pace": "{pace:.2f}",
    "seconds more a sequence": "{beyond:+.3g}",
  }
  seconds: Columns = {
    "": "{name}",
    UNPADDED: lambda x: _seconds(x, UNPADDED),
    PACKED: lambda x: _seconds(x, PACKED),
    ONE_PROGRAM: lambda x: _seconds(x, ONE_PROGRAM),
    "exchange and update": "{exchange:.3f}",
    "gain predicted": "{gain_predicted:.2f}",
    "gain measured": lambda x: _gain(x, PACKED),
    "of one program": lambda x: _gain(x, ONE_PROGRAM),
  }
  several = [x for x in measured["cases"] if x["devices"] > 1]
  return [
    text,
    "The share of a step that devices wait for the slowest: median (quartiles) of steps. "
    "Packing's waiting is noise. Pace: packing's measured seconds divided by the predicted "
    "seconds. Last column: by how many seconds a sequence of un-padding exceeds the "
    "prediction at this pace.",
    by_columns(several, waiting),
    "Seconds of a step: median (quartiles). Gain: real tokens a second of packing divided "
    "by those of un-padding, both in two programs; last, with the usual training step of "
    "packing, in one program.",
    by_columns(measured["cases"], seconds),
  ]


def by_columns(
  rows: Iterable[Mapping[str, Any]], columns: Columns, *, left: Container[int] = (0,)
) -> str:
  """A line for each row."""
  cells = [
    [cell.format(**x) if isinstance(cell, str) else cell(x) for cell in columns.values()]
    for x in rows
  ]
  return table(columns, cells, left=left)


def by_devices(
  rows: Iterable[Mapping[str, Any]], cell: str, *, most: Mapping[str, str] | None = None
) -> str:
  """A line for each way, with a cell for each number of devices.

  `most` has further columns, by header, for the largest number of devices.
  """
  lines: dict[str, dict[str, str]] = {}
  last: dict[str, dict[str, str]] = {}
  for row in rows:
    line = lines.setdefault(row["way"], {"": row["way"]})
    line[f"{row['devices']:,}"] = cell.format(**row)
    last[row["way"]] = {name: value.format(**row) for name, value in (most or {}).items()}
  whole = [line | last[way] for way, line in lines.items()]
  return table(whole[0], [line.values() for line in whole])


def _seconds(case: Mapping[str, Any], way: str) -> str:
  seconds = case["seconds"].get(way)
  return "{median:.3g} ({low:.3g} to {high:.3g})".format(**seconds) if seconds else ""


def _gain(case: Mapping[str, Any], way: str) -> str:
  return f"{case['gain'][way]:.2f}" if way in case["gain"] else ""


def _percent(values: Mapping[str, float]) -> str:
  part = {name: 100 * x for name, x in values.items()}
  return "{median:.1f}% ({low:.1f} to {high:.1f})".format(**part)
