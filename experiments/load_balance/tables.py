"""The tables of the load balance, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def tables(result: Mapping[str, Any]) -> str:
  """All of them, with what they are in a line before each.

  Args:
    result: of `experiments.load_balance.run`.
  """
  rows, batch = result["rows"], result["batch"]
  network = result["network"]
  devices = sorted({x["devices"] for x in rows})
  some = [x for x in rows if x["batch"] == batch]
  unpadding = [x for x in rows if x["way"] in ("un-padding", result["packing"])]
  for_batches = [x | {"way": f"{x['way']}, batch {x['batch']}"} for x in unpadding]
  exchange = ", ".join(f"{s:.2g} s on {n:,}" for n, s in result["exchange_seconds"].items())
  depths = result["packing_factors"].items()
  factors = ", ".join(f"{factor:.4f} at depth {depth}" for depth, factor in depths)
  parts = [
    "The paper's estimate (section E): speed-up over padding, mean and 80 % of the steps.",
    _estimate(result["estimate"]),
    f"A device: {result['device'].get('model', 'model not named')}, "
    f"{result['device'].get('machine', 'machine not named')}. " + _device(result["device"]),
    _measured(result["device"].get("measurements", [])),
    f"Lengths of {result['histogram']}; packing factors {factors}. Exchange of gradients, "
    f"assumed: ring, {network['bandwidth']:.3g} bytes/s, {network['latency']:.1g} s a hop, "
    f"{network['gradient_bytes'] / 1e6:.0f} MB: {exchange}.",
    f"Real sequences a second over padding's, batch {batch}, by devices.",
    _by_devices(some, devices, lambda x: f"{x['speedup']:.3f}"),
    f"Time that devices wait for the slowest, batch {batch}, by devices.",
    _by_devices(some, devices, lambda x: f"{x['idle']:.1%}"),
    f"Seconds of a step: mean ± standard deviation (99th percentile), batch {batch}.",
    _by_devices(some, devices, _seconds),
    "Real sequences a second over padding's, by batch of a device.",
    _by_devices(for_batches, devices, lambda x: f"{x['speedup']:.3f}"),
    _method(result["paper_method"]),
  ]
  return "\n\n".join(part for part in parts if part)


def _estimate(estimate: Mapping[str, Any]) -> str:
  one, several = estimate["one"], estimate["several"]
  first = estimate["packing_ahead_from"]
  told = (
    f"alpha {several['location']:.4f}, beta {several['scale']:.4f} of "
    f"{several['devices']} devices give alpha {one['location']:.3f}, beta "
    f"{one['scale']:.3f} of one. "
    + (f"Packing ({estimate['packing']}) is ahead from {first} devices." if first else "")
  )
  cells = [
    [f"{x['devices']:,}", f"{x['speedup']:.2f}", f"{x['low']:.2f} to {x['high']:.2f}"]
    for x in estimate["rows"]
  ]
  return f"{told}\n\n{table(['devices', 'un-padding', '80 %'], cells)}"


def _device(device: Mapping[str, Any]) -> str:
  costs = device["coefficients"]
  return (
    f"{costs['step']:.3g} s a step, {costs['row']:.3g} s a row, {costs['token']:.3g} s a "
    f"token, {costs['token_pair']:.3g} s a pair of tokens; {device['parameters']:,} "
    "parameters."
  )


def _measured(measurements: Sequence[Mapping[str, Any]]) -> str:
  if not measurements:
    return ""
  cells = [
    [
      f"{x['row_length']}",
      f"{x['rows']}",
      f"{x['seconds']:.3f} ({x['low']:.3f} to {x['high']:.3f})",
      f"{x['relative_error']:+.1%}",
    ]
    for x in measurements
  ]
  return table(["tokens", "rows", "seconds of a step (quartiles)", "fit"], cells)


def _method(checked: Mapping[str, Any] | None) -> str:
  if checked is None:
    return ""
  fitted, one = checked["several"], checked["one"]
  cells = [
    [f"{x['devices']:,}", f"{x['simulated']:.3f}", f"{x['estimated']:.3f}"]
    for x in checked["rows"]
  ]
  return (
    "The paper's method on the simulated speed-ups of 8 devices: fitted alpha "
    f"{fitted['location']:.4f}, beta {fitted['scale']:.4f}; so of 1 device alpha "
    f"{one['location']:.3f}, beta {one['scale']:.3f}; and the mean of the smallest.\n\n"
    + table(["devices", "simulated", "estimated"], cells)
  )


def _seconds(row: Mapping[str, Any]) -> str:
  return f"{row['mean']:.3g} ± {row['deviation']:.2g} ({row['percentile_99']:.3g})"


def _by_devices(rows: Iterable[Mapping[str, Any]], devices: Sequence[int], shown) -> str:
  lines: dict[str, list[str]] = {}
  for row in rows:
    lines.setdefault(row["way"], [row["way"]]).append(shown(row))
  return table(["", *(f"{n:,}" for n in devices)], lines.values())


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
  """A table in Markdown, its first column to the left.

  Args:
    head: of the columns.
    lines: cells.
  """
  rule = "|---|" + "---:|" * (len(head) - 1)
  cells = [f"| {' | '.join(line)} |" for line in (head, *lines)]
  return "\n".join([cells[0], rule, *cells[1:]])
