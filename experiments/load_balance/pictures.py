"""The picture of the load balance; its title says what it shows."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.ticker

from experiments.load_balance import ways
from lab.pictures import COLOURS, figure, save

SPEEDUP = "speed-up over padding"


def draw(folder: pathlib.Path, result: Mapping[str, Any]):
  """Draws `speedup.png`: speed-ups by the number of devices, from `__main__.run`."""
  batch = result["batch"]
  lines: dict[str, dict[int, float]] = {}
  for name in (result["packing"], ways.UNPADDING, ways.BY_TOKENS):
    some = [x for x in result["rows"] if x["way"] == name and x["batch"] == batch]
    lines[name] = {x["devices"]: x["speedup"] for x in some}
  flat, plain, even = ([*line.values()] for line in lines.values())
  axes = device_axes([*lines[ways.UNPADDING]], SPEEDUP)
  for (name, line), colour in zip(lines.items(), COLOURS, strict=False):
    style = "s--" if name == ways.BY_TOKENS else "o-"
    axes.plot([*line], [*line.values()], style, color=colour, label=name, markersize=4)
  axes.axhline(1, color="grey", linestyle=":")
  axes.set_ylim(bottom=0.95)
  axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
  save(
    axes.figure,
    folder / "speedup.png",
    f"Un-padding falls from {plain[0]:.2f} to {plain[-1]:.2f}; balanced it stays at "
    f"{min(even):.2f} to {max(even):.2f}, packing at {min(flat):.2f} to {max(flat):.2f} "
    f"(batch {batch})",
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
