"""Pictures of the load balance; the title of each says what it shows."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.ticker
import numpy as np

from experiments.lab.pictures import COLOURS, PERCENT, figure, save
from experiments.load_balance import ways
from experiments.load_balance.cost import Coefficients

SPEEDUP = "speed-up over padding"


def draw(folder: pathlib.Path, result: Mapping[str, Any]):
  """Draws, as PNGs, everything that the result of `__main__.run` has so far."""
  rows, batch = result["rows"], result["batch"]

  def line(value: str, way: str, size: int = batch) -> dict[int, float]:
    some = [x for x in rows if x["way"] == way and x["batch"] == size]
    return {x["devices"]: x[value] for x in some}

  over = {
    name: line("speedup", name)
    for name in (result["packing"], ways.UNPADDING, ways.BY_TOKENS)
  }
  flat, plain, even = ([*x.values()] for x in over.values())
  _over_devices(
    folder / "speedup.png",
    over,
    f"Un-padding falls from {plain[0]:.2f} to {plain[-1]:.2f}; balanced it stays at "
    f"{min(even):.2f} to {max(even):.2f}, packing at {min(flat):.2f} to {max(flat):.2f} "
    f"(batch {batch})",
  )
  names = [
    f"{way}{same}" for same in ("", ways.SAME) for way in (ways.SORTED, ways.BUCKETS)
  ]
  over = {name: line("speedup", name) for name in names}
  last = [[*x.values()][-1] for x in over.values()]
  _over_devices(
    folder / "sorting.png",
    over,
    f"On the most devices, sorting and buckets are at {last[0]:.2f} and {last[1]:.2f} if "
    f"each device has its own length, at {last[2]:.2f} and {last[3]:.2f} if all have one",
  )
  batches = sorted({x["batch"] for x in rows})
  over = {f"un-padding, batch {b}": line("idle", ways.UNPADDING, b) for b in batches}
  idle = [max(x.values()) for x in over.values()]
  _over_devices(
    folder / "idle.png",
    over,
    f"Un-padding: devices wait up to {max(idle):.0%} of the time, and up to "
    f"{idle[-1]:.0%} with batch {batches[-1]}",
    label="share of the time that devices wait",
  )
  if checked := result["paper_method"]:
    over = {
      name: {x["devices"]: x[name.partition(" ")[0]] for x in checked["rows"]}
      for name in ("estimated from 8 devices", "simulated")
    }
    first, *_, final = checked["rows"]
    off = [x["estimated"] / x["simulated"] - 1 for x in (first, final)]
    _over_devices(
      folder / "paper_method.png",
      over,
      f"The paper's method on the simulated 8 devices: {off[0]:+.1%} off on "
      f"{first['devices']}, {off[1]:+.1%} on {final['devices']:,}",
      label=f"{SPEEDUP}, without the exchange",
    )
  if measurements := result["device"].get("measurements"):
    costs = Coefficients(**result["device"]["coefficients"])
    _fit(folder / "fit.png", measurements, costs)
  if measured := result.get("measured"):
    _waiting(folder / "measured_idle.png", measured)


def _over_devices(
  path: pathlib.Path,
  lines: Mapping[str, Mapping[int, float]],
  title: str,
  *,
  label: str = SPEEDUP,
):
  """Lines by name, over the number of devices: speed-ups, or shares of time."""
  axes = device_axes(sorted({n for line in lines.values() for n in line}), label)
  for (name, line), colour in zip(lines.items(), COLOURS, strict=False):
    style = "s--" if "balanced" in name else "o-"
    axes.plot([*line], [*line.values()], style, color=colour, label=name, markersize=4)
  if label.startswith(SPEEDUP):
    axes.axhline(1, color="grey", linestyle=":")
    axes.set_ylim(bottom=0.95)
  else:
    axes.yaxis.set_major_formatter(PERCENT(1))
    axes.set_ylim(bottom=0)
  axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
  save(axes.figure, path, title)


def _fit(
  path: pathlib.Path, measurements: Sequence[Mapping[str, float]], costs: Coefficients
):
  """Measured steps (of `Measurement`) and the fitted time."""
  drawing = figure()
  axes = drawing.add_subplot()
  lengths = np.linspace(0, max(x["row_length"] for x in measurements), 100)
  for rows, colour in zip(sorted({x["rows"] for x in measurements}), COLOURS, strict=False):
    some = [x for x in measurements if x["rows"] == rows]
    middle, low, high = ([x[name] for x in some] for name in ("seconds", "low", "high"))
    ends = np.abs(np.array([low, high]) - middle)
    axes.errorbar([x["row_length"] for x in some], middle, ends, fmt="o", color=colour)
    fitted = costs.step + rows * costs.row_seconds(lengths)
    axes.plot(lengths, fitted, color=colour, label=f"{rows} rows" if rows > 1 else "1 row")
  axes.set(xlabel="tokens of a row", ylabel="seconds of a step", xlim=0, ylim=0)
  axes.legend(loc="upper left")
  share = lengths[-1] ** 2 * costs.token_pair / costs.row_seconds(lengths[-1])
  save(
    drawing,
    path,
    f"Measured steps (quartiles) and fit: {share:.0%} of a row of {lengths[-1]:.0f} "
    "tokens grows with the square",
  )


def _waiting(path: pathlib.Path, measured: Mapping[str, Any]):
  """Waiting, predicted and measured, by way."""
  found = measured["ways"]
  places = np.arange(len(found))
  drawing = figure()
  axes = drawing.add_subplot()
  for name, offset, colour in (("predicted", -0.2, "0.75"), ("measured", 0.2, COLOURS[0])):
    values = [x[name] for x in found.values()]
    drawn = axes.bar(places + offset, values, width=0.38, color=colour, label=name)
    axes.bar_label(drawn, [f"{x:.1%}" for x in values])
  low, high = np.array([x["quartiles"] for x in found.values()]).T
  axes.vlines(places + 0.34, low, high, color="#555555", label="quartiles of steps")
  axes.set_xticks(places, [*found])
  axes.yaxis.set_major_formatter(PERCENT(1, decimals=0))
  axes.set_ylim(bottom=0)
  axes.set_ylabel("share of a step that devices wait")
  axes.legend()
  shares = ", ".join(f"{x['measured']:.1%} with {way}" for way, x in found.items())
  save(
    drawing,
    path,
    f"BERT-{measured['model']}, {measured['devices']} processes on a core each: they wait "
    f"{shares}",
  )


def device_axes(devices: Sequence[int], label: str):
  """Axes over the number of devices."""
  axes = figure().add_subplot()
  axes.set_xscale("log", base=2)
  marked = [n for n in devices if len(devices) <= 10 or n.bit_length() % 2]
  axes.set_xticks(marked, [f"{n:,}" for n in marked])
  axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
  axes.set(xlabel="devices", ylabel=label)
  return axes
