"""The tables of the load balance, in Markdown, and its picture."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib.ticker

from experiments.load_balance import gumbel
from experiments.load_balance.ways import BY_TIME, BY_TOKENS, UNPADDING
from lab.pictures import COLOURS, figure, save
from lab.table import record_table

SPEEDUP = "speed-up over padding"
Columns = Mapping[str, str]  # by header, a format of the row's fields
Records = list[dict[str, str]]  # the lines of a table, by header


def records(result: Mapping[str, Any]) -> dict[str, Records]:
  """The tables of the result of `__main__.run` that documents show, by name.

  Without `BY_TIME`, which is as fast as `BY_TOKENS` to a thousandth.
  """
  batch = result["batch"]
  rows = [x for x in result["rows"] if x["batch"] == batch and x["way"] != BY_TIME]
  made = {
    "speed-up": by_devices(rows, "{speedup:.3f}"),
    "waiting": by_devices(rows, "{idle:.1%}"),
    "seconds": by_devices(rows, "{mean:.3g} ± {deviation:.2g} ({percentile_99:.3g})"),
  }
  both = [
    {"way": f"{x['way']}, batch {x['batch']}"} | {k: x[k] for k in ("devices", "speedup")}
    for x in result["rows"]
    if x["way"] in (UNPADDING, result["packing"])
  ]
  made["batches"] = by_devices(both, "{speedup:.3f}")
  made["section E"] = _distributions(result["paper_method"])
  return made


def tables(result: Mapping[str, Any]) -> str:
  """All tables of the result of `__main__.run`, each after what it shows."""
  batch, network, made = result["batch"], result["network"], records(result)
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
    shown(made["speed-up"]),
    "The share of time that devices wait for the slowest, by number of devices, batch "
    f"{batch}.",
    shown(made["waiting"]),
    f"Seconds of a step: mean ± standard deviation (99th percentile), batch {batch}.",
    shown(made["seconds"]),
    "Real sequences a second divided by those of padding, by the batch of a device.",
    shown(made["batches"]),
    *_paper_method(result["paper_method"], made["section E"]),
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
  return [text, shown(by_columns(rows, columns))] if rows else [text]


def _paper_method(checked: Mapping[str, Any], fits: Records) -> list[str]:
  text = (
    "The paper's method, applied to the simulated speed-ups of "
    f"{gumbel.DEVICES} devices in {checked['steps']:,} steps: Gumbel distributions, with "
    "the largest distance between the fitted and the observed cumulative distribution, and "
    "p of the test of Kolmogorov and Smirnov."
  )
  columns: Columns = {
    "devices": "{devices:,}",
    "simulated": "{simulated:.3f}",
    "estimated": "{estimated:.3f}",
  }
  estimate = "The mean speed-up; the estimate is that of the smallest draw."
  return [text, shown(fits), estimate, shown(by_columns(checked["rows"], columns))]


def _distributions(checked: Mapping[str, Any]) -> Records:
  """The Gumbel distributions of section E: the paper's, and those of the simulation."""
  fit = checked["fit"]
  of_several = {
    "distance": f"{fit['distance']:.3f}",
    "p": "below 0.0001" if fit["p"] < 1e-4 else f"{fit['p']:.4f}",
  }
  paper = gumbel.infer_one_device(gumbel.PAPER)._asdict()
  columns: Columns = {"alpha": "{location:.3f}", "beta": "{scale:.3f}"}
  return [
    {"speed-up of": name, **line, **more}
    for (name, more), line in zip(
      (
        (f"the paper's {gumbel.DEVICES} GPUs", {}),
        ("one of them, inferred", {}),
        (f"{gumbel.DEVICES} simulated devices", of_several),
        ("one of these, inferred", {}),
      ),
      by_columns(
        [gumbel.PAPER._asdict(), paper, checked["several"], checked["one"]], columns
      ),
      strict=True,
    )
  ]


def by_columns(rows: Iterable[Mapping[str, Any]], columns: Columns) -> Records:
  """A line for each row."""
  return [{name: cell.format(**x) for name, cell in columns.items()} for x in rows]


def by_devices(
  rows: Iterable[Mapping[str, Any]], cell: str, *, most: Mapping[str, str] | None = None
) -> Records:
  """A line for each way, with a cell for each number of devices.

  `most` has further columns, by header, for the largest number of devices.
  """
  lines: dict[str, dict[str, str]] = {}
  last: dict[str, dict[str, str]] = {}
  for row in rows:
    line = lines.setdefault(row["way"], {"method": row["way"]})
    line[f"{row['devices']:,}"] = cell.format(**row)
    last[row["way"]] = {name: value.format(**row) for name, value in (most or {}).items()}
  return [line | last[way] for way, line in lines.items()]


def shown(rows: Records) -> str:
  """A table in Markdown; the first column and that of methods have words."""
  return record_table(rows, left=[*list(rows[0])[:1], "method"])


def draw(folder: pathlib.Path, result: Mapping[str, Any]):
  """Draws `speedup.png`: speed-ups by the number of devices, from `__main__.run`."""
  batch = result["batch"]
  lines: dict[str, dict[int, float]] = {}
  for name in (result["packing"], UNPADDING, BY_TOKENS):
    some = [x for x in result["rows"] if x["way"] == name and x["batch"] == batch]
    lines[name] = {x["devices"]: x["speedup"] for x in some}
  flat, plain, even = ([*line.values()] for line in lines.values())
  axes = device_axes([*lines[UNPADDING]], SPEEDUP)
  for (name, line), colour in zip(lines.items(), COLOURS, strict=False):
    style = "s--" if name == BY_TOKENS else "o-"
    axes.plot([*line], [*line.values()], style, color=colour, label=name, markersize=4)
  axes.axhline(1, color="grey", linestyle=":")
  axes.set_ylim(bottom=0.95)
  axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
  save(
    axes.figure,
    folder / "speedup.png",
    f"Un-padding falls from {plain[0]:.2f} to {plain[-1]:.2f}; balanced it stays at "
    f"{min(even):.2f} to {max(even):.2f}, packing at {min(flat):.2f} to {max(flat):.2f} "
    f"({batch} sequences a device, simulated)",
  )


def device_axes(devices: Sequence[int], label: str):
  """Axes over the number of devices."""
  axes = figure().add_subplot()
  mark_devices(axes, devices)
  axes.set_ylabel(label)
  return axes


def mark_devices(axes, devices: Sequence[int]):
  """Marks numbers of devices on an axis by powers of 2."""
  axes.set_xscale("log", base=2)
  marked = [n for n in devices if len(devices) <= 10 or n.bit_length() % 2]
  axes.set_xticks(marked, [f"{n:,}" for n in marked])
  axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
  axes.set_xlabel("devices")
