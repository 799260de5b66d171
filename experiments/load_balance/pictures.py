"""Pictures of the load balance, one finding each."""

from __future__ import annotations

import io
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.figure
import matplotlib.ticker
import numpy as np
import scipy.stats

from experiments.load_balance import gumbel
from experiments.load_balance.cost import Coefficients, Measurement
from experiments.load_balance.gumbel import Gumbel
from experiments.load_balance.ways import BY_TOKENS, UNPADDING
from packing import files

COLOURS = ("#2a6f97", "#c1666b", "#6a994e", "#8d6a9f", "#d08c3f", "#555555", "#3aa6a0")


def draw(folder: pathlib.Path, result: Mapping[str, Any]):
  """All of them.

  Args:
    folder: where to.
    result: of the whole command.
  """
  rows, batch = result["rows"], result["batch"]
  of_paper = result["estimate"]
  estimate(
    folder / "estimate.png",
    gumbel.Gumbel(**of_paper["one"]),
    packing=of_paper["packing"],
    most=of_paper["rows"][-1]["devices"],
  )
  distributions(
    folder / "distributions.png",
    gumbel.Gumbel(**of_paper["one"]),
    gumbel.PAPER,
    devices=gumbel.PAPER_DEVICES,
  )

  def series(value: str, ways: Sequence[str], size: int) -> dict[str, dict[int, float]]:
    return {
      way: {x["devices"]: x[value] for x in rows if x["way"] == way and x["batch"] == size}
      for way in ways
    }

  best = result["packing"]
  shown = series("speedup", [best, UNPADDING, BY_TOKENS], batch)
  flat, plain, even = ([*line.values()] for line in shown.values())
  lines(
    folder / "speedup.png",
    shown,
    title=f"Un-padding goes from {plain[0]:.2f} to {plain[-1]:.2f}, balanced it stays at "
    f"{min(even):.2f} to {max(even):.2f}, packing at {min(flat):.2f} to {max(flat):.2f} "
    f"(batch {batch})",
    label="speed-up over padding",
  )
  others = ["sorted batches", "length buckets"]
  shown = series("speedup", [*others, *(f"{x}, the same on all" for x in others)], batch)
  last = [list(line.values())[-1] for line in shown.values()]
  lines(
    folder / "sorting.png",
    shown,
    title=f"Sorting and buckets come to {last[0]:.2f} and {last[1]:.2f} where each device "
    f"has its own length, {last[2]:.2f} and {last[3]:.2f} where all have one",
    label="speed-up over padding",
  )
  batches = sorted({x["batch"] for x in rows})
  idle = {
    f"un-padding, batch {b}": series("idle", [UNPADDING], b)[UNPADDING] for b in batches
  }
  most = [max(line.values()) for line in idle.values()]
  lines(
    folder / "idle.png",
    idle,
    title=f"Un-padding: devices wait up to {max(most):.0%} of the time, and up to "
    f"{most[-1]:.0%} with batch {batches[-1]}",
    label="time that devices wait for the slowest, fraction",
  )
  if checked := result["paper_method"]:
    extrapolation(folder / "paper_method.png", checked["rows"])
  if measured := result["device"].get("measurements"):
    fields = Measurement._fields
    fitted_steps(
      folder / "fit.png",
      [Measurement(*(x[name] for name in fields)) for x in measured],
      Coefficients(**result["device"]["coefficients"]),
    )


def estimate(path: pathlib.Path, one: Gumbel, *, packing: float, most: int):
  """The paper's Figure 5: the expected speed-up, and where four of five steps lie.

  Args:
    path: of the PNG.
    one: the distribution of one device.
    packing: its speed-up.
    most: devices.
  """
  devices = _powers(most)
  axes = _axes(devices, "speed-up over padding")
  low, high = (
    [gumbel.quantile_of_slowest(one, n, probability=p) for n in devices] for p in (0.1, 0.9)
  )
  mean = [gumbel.mean_of_slowest(one, n) for n in devices]
  axes.fill_between(devices, low, high, color=COLOURS[1], alpha=0.2, linewidth=0)
  axes.plot(devices, mean, "o-", color=COLOURS[1])
  axes.axhline(packing, color=COLOURS[0])
  axes.axhline(1, color="grey", linestyle=":")
  _label(axes, devices[-1], mean[0] - 0.48, "un-padding (mean; 80 % of steps)", COLOURS[1])
  _label(axes, devices[-1], packing + 0.03, f"packing {packing}", COLOURS[0])
  axes.set_ylim(0.95, max(high) * 1.02)
  save(
    axes,
    path,
    f"The paper's estimate: un-padding is {mean[0]:.2f} times as fast as padding on 1 "
    f"device, {mean[-1]:.2f} times on {most:,}",
  )


def distributions(path: pathlib.Path, one: Gumbel, several: Gumbel, *, devices: int):
  """The paper's Figure 6: the fit of several devices, and what it says of one.

  Args:
    path: of the PNG.
    one: the distribution of one device.
    several: the fitted one of several.
    devices: how many these are.
  """
  axes = figure().add_subplot()
  speedup = np.linspace(1, 3.5, 400)
  of_one = scipy.stats.gumbel_r(*one)
  slowest = devices * of_one.sf(speedup) ** (devices - 1) * of_one.pdf(speedup)
  fitted = scipy.stats.gumbel_r(*several).pdf(speedup)
  axes.plot(speedup, fitted, color=COLOURS[1], label=f"{devices} devices, fitted")
  axes.plot(speedup, of_one.pdf(speedup), color=COLOURS[3], label="1 device, inferred")
  told = f"the slowest of {devices} such devices"
  axes.plot(speedup, slowest, "--", color=COLOURS[3], label=told)
  axes.set(xlabel="speed-up over padding", ylabel="density", xlim=(1, 3.5))
  axes.set_ylim(bottom=0)
  axes.legend(frameon=False)
  save(
    axes,
    path,
    f"The paper's speed-ups: {several.location:.2f} most often on {devices} devices, "
    f"{one.location:.2f} on one, and wider",
  )


def lines(
  path: pathlib.Path,
  values: Mapping[str, Mapping[int, float]],
  *,
  title: str,
  label: str,
):
  """Lines over the number of devices.

  Args:
    path: of the PNG.
    values: by name, those of each number of devices.
    title: what the picture shows.
    label: of the values; ends in "fraction" where they are to be percent.
  """
  devices = sorted({n for line in values.values() for n in line})
  fraction = label.endswith("fraction")
  axes = _axes(devices, label.removesuffix(", fraction"))
  for (name, line), colour in zip(values.items(), COLOURS, strict=False):
    style = "s--" if "balanced" in name else "o-"
    axes.plot(
      list(line), list(line.values()), style, color=colour, label=name, markersize=4
    )
  if fraction:
    axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1))
    axes.set_ylim(bottom=0)
  else:
    axes.axhline(1, color="grey", linestyle=":")
    axes.set_ylim(bottom=0.95)
  axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
  save(axes, path, title)


def extrapolation(path: pathlib.Path, found: Sequence[Mapping[str, float]]):
  """The paper's method on simulated steps, beside what it is meant to foretell.

  Args:
    path: of the PNG.
    found: `devices`, `simulated` and `estimated` speed-ups.
  """
  devices = [int(x["devices"]) for x in found]
  axes = _axes(devices, "speed-up over padding, computing only")
  for name, colour, label in (
    ("simulated", COLOURS[1], "simulated, each number of devices"),
    ("estimated", COLOURS[3], "estimated from 8 devices by the paper's method"),
  ):
    axes.plot(devices, [x[name] for x in found], "o-", color=colour, label=label)
  axes.legend(frameon=False)
  off = [x["estimated"] / x["simulated"] - 1 for x in found]
  save(
    axes,
    path,
    f"The paper's method on the simulated 8 devices: {off[0]:+.1%} off on "
    f"{devices[0]}, {off[-1]:+.1%} on {devices[-1]:,}",
  )


def fitted_steps(
  path: pathlib.Path, measurements: Sequence[Measurement], costs: Coefficients
):
  """Measured steps and the fitted time.

  Args:
    path: of the PNG.
    measurements: of all shapes.
    costs: fitted to them.
  """
  axes = figure().add_subplot()
  lengths = np.linspace(0, max(x.row_length for x in measurements), 100)
  for rows, colour in zip(sorted({x.rows for x in measurements}), COLOURS, strict=False):
    some = [x for x in measurements if x.rows == rows]
    middle = np.array([x.seconds for x in some])
    ends = np.abs(np.array([[x.low for x in some], [x.high for x in some]]) - middle)
    axes.errorbar([x.row_length for x in some], middle, ends, fmt="o", color=colour)
    fitted = costs.step + rows * costs.row_seconds(lengths)
    axes.plot(lengths, fitted, color=colour, label=f"{rows} rows" if rows > 1 else "1 row")
  axes.set(xlabel="tokens of a row", ylabel="seconds of a step", xlim=0, ylim=0)
  axes.legend(loc="upper left", frameon=False)
  share = lengths[-1] ** 2 * costs.token_pair / costs.row_seconds(lengths[-1])
  save(
    axes,
    path,
    f"Measured steps (quartiles) and fit: {share:.0%} of a row of {lengths[-1]:.0f} "
    "tokens grows with the square",
  )


def _powers(most: int) -> list[int]:
  return [2**k for k in range(most.bit_length())]


def figure():
  """An empty one, of the size of all of them."""
  return matplotlib.figure.Figure(figsize=(9, 4.5), dpi=120, layout="constrained")


def _axes(devices: Sequence[int], label: str):
  axes = figure().add_subplot()
  axes.set_xscale("log", base=2)
  shown = [n for n in devices if len(devices) <= 10 or n.bit_length() % 2]
  axes.set_xticks(shown, [f"{n:,}" for n in shown])
  axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
  axes.set(xlabel="devices", ylabel=label)
  return axes


def _label(axes, x: float, y: float, text: str, colour: str):
  axes.text(x, y, text, color=colour, ha="right", va="bottom")


def save(axes, path: pathlib.Path, title: str):
  """Writes the figure of some axes.

  Args:
    axes: of it.
    path: of the PNG.
    title: what the picture shows.
  """
  axes.spines[["top", "right"]].set_visible(False)
  axes.grid(alpha=0.3)
  axes.figure.suptitle(title, fontsize="medium")
  data = io.BytesIO()
  axes.figure.savefig(data, format="png")
  files.write_bytes(path, data.getvalue())
