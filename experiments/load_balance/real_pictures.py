"""Pictures of what was really run."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import matplotlib.ticker
import numpy as np

from experiments.load_balance.pictures import COLOURS, figure, save
from experiments.load_balance.real_tables import seen
from experiments.load_balance.shares import PACKED, UNPADDED


def draw(folder: pathlib.Path, real: Mapping[str, Any]):
  """All of them.

  Args:
    folder: where to.
    real: of `experiments.real.run`.
  """
  if any(x["devices"] > 1 for x in real["cases"]):
    idle(folder / "real_idle.png", real)
  timeline(folder / "real_step.png", real)


def idle(path: pathlib.Path, real: Mapping[str, Any]):
  """Waiting, seen and foretold, un-padding beside packing.

  Args:
    path: of the PNG.
    real: of `experiments.real.run`.
  """
  rows = [x for x in real["cases"] if x["devices"] > 1]
  bars = {
    "un-padding, foretold for the sequences dealt": [x["foretold"] for x in rows],
    "un-padding, seen": [seen(x)[UNPADDED] for x in rows],
    "packing, seen": [seen(x)[PACKED] for x in rows],
  }
  axes = figure().add_subplot()
  colours = ("#e3b7b9", COLOURS[1], COLOURS[0])
  for number, ((name, values), colour) in enumerate(
    zip(bars.items(), colours, strict=True)
  ):
    places = np.arange(len(rows)) + 0.27 * (number - 1)
    middle, low, high = np.array(values).T
    ends = np.array([middle - low, high - middle])
    drawn = axes.bar(
      places, middle, yerr=ends, ecolor="#555555", width=0.25, color=colour, label=name
    )
    axes.bar_label(drawn, [f"{x:.0%}" for x in middle], fontsize="small")
  axes.set_xticks(range(len(rows)), [x["name"] for x in rows])
  axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1, decimals=0))
  axes.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(steps=[1, 2, 5, 10]))
  axes.set_ylim(0, 1.35 * np.max([*bars.values()]))  # room for the names
  axes.set_axisbelow(True)
  axes.set_ylabel("part of a step that devices wait")
  axes.legend(frameon=False)
  own, packed = ([x[0] for x in bars[f"{way}, seen"]] for way in (UNPADDED, PACKED))
  save(
    axes,
    path,
    f"Really run, BERT-{real['size']}: devices wait {min(own):.0%} to {max(own):.0%} of a "
    f"step with un-padding, {min(packed):.0%} to {max(packed):.0%} with packing (median, "
    "quartiles)",
  )


def timeline(path: pathlib.Path, real: Mapping[str, Any]):
  """The first step of the most devices, composed: each at work, then waiting.

  Args:
    path: of the PNG.
    real: of `experiments.real.run`.
  """
  row = max(real["cases"], key=lambda x: x["devices"])
  n, update = row["devices"], real["update"]
  whole = figure()
  top, bottom = whole.subplots(2, sharex=True)
  for axes, way, colour in ((top, UNPADDED, COLOURS[1]), (bottom, PACKED, COLOURS[0])):
    busy = np.array(real["clock"][way][:n])
    places = np.arange(1, n + 1)
    axes.barh(places, busy, color=colour, height=0.7, label=f"{way}: at work")
    left = busy.max()
    axes.barh(places, left - busy, left=busy, color="#e6e6e6", height=0.7, label="waits")
    axes.barh(places, update, left=left, color="#8a8a8a", height=0.7, label="update")
    axes.set_ylabel("device")
    axes.set_yticks(places)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
  bottom.set_xlabel("seconds from the start of the step")
  waits = {way: 1 - np.mean(x[:n]) / max(x[:n]) for way, x in real["clock"].items()}
  save(
    bottom,
    path,
    f"One step of {n} devices, each share measured alone: un-padding waits "
    f"{waits[UNPADDED]:.0%} of the time up to the update, packing {waits[PACKED]:.0%}",
  )
