"""Tables and pictures of load balance if attention skips other sequences."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from experiments.load_balance.tables import by_devices
from lab.pictures import COLOURS, PERCENT, figure, save

_SHOWN = (  # ways in pictures, with their style; tables have all ways
  ("random packs", "o-"),
  ("Megatron's snake", "s-"),
  ("balance=devices", "D-"),
)
_MOST = {  # columns for the largest number of devices
  "a step's spread": "{steps:.2%}",
  "over whole rows": "{gain:.3f}",
  "price of a pair": "{price:.2f}",
}


def tables(result: Mapping[str, Any]) -> str:
  """All tables, in Markdown."""
  parts: list[str] = []
  rows = result["rows"]
  for case in dict.fromkeys(row["case"] for row in rows):
    some = [row for row in rows if row["case"] == case]
    length, own = some[0]["row_length"], some[0]["rows"]
    source = f" ({result['documents']})" if case.startswith("documents") else ""
    for model in dict.fromkeys(row["model"] for row in some):
      here = [row for row in some if row["model"] == model]
      parts += [
        f"Rows of {length:,} tokens, {case}{source}, {own} a device; {model}. The first "
        "columns have the share of time that devices wait, by the number of devices. The "
        "last three are for the largest number: the standard deviation of a step's time "
        "divided by its mean; the speed-up over attention that computes whole rows; and "
        "how many times as much a pair may cost before whole rows are as fast:",
        by_devices(here, "{waiting:.2%}", most=_MOST),
      ]
  return "\n\n".join(parts)


def draw(folder: pathlib.Path, result: Mapping[str, Any]):
  """`skipping_waiting.png` and `skipping_gain.png`, of BERT-base."""
  rows = [row for row in result["rows"] if row["model"] == "BERT-base"]
  cases = list(dict.fromkeys(row["case"] for row in rows))
  most = max(row["devices"] for row in rows)

  def at(case: str, way: str, value: str) -> dict[int, float]:
    some = [row for row in rows if row["case"] == case and row["way"] == way]
    return {row["devices"]: row[value] for row in some}

  for value, label, digits, title in (
    (
      "waiting",
      "share of the time that devices wait",
      ".1%",
      "With random packs {most:,} devices wait {worst} of their time, with "
      "balance=devices {best}",
    ),
    (
      "gain",
      "speed-up over whole rows",
      ".2f",
      "On {most:,} devices skipping is {worst} times as fast as whole rows with random "
      "packs, {best} with balance=devices",
    ),
  ):
    drawing = figure(4 * len(cases) + 3, 4.5)
    panels = drawing.subplots(1, len(cases), squeeze=False, sharey=True)[0]
    for case, axes in zip(cases, panels, strict=True):
      for (way, style), colour in zip(_SHOWN, COLOURS, strict=False):
        line = at(case, way, value)
        axes.plot([*line], [*line.values()], style, color=colour, label=way, markersize=4)
      axes.set_xscale("log")
      axes.set(xlabel="devices", title=", rows of ".join(case.rsplit("_", 1)))
      if value == "waiting":
        axes.yaxis.set_major_formatter(PERCENT(1))
      else:
        axes.axhline(1, color="grey", linestyle=":")
    panels[0].set_ylabel(label)
    panels[-1].legend(loc="center left", bbox_to_anchor=(1, 0.5))
    worst, best = (
      ", ".join(f"{at(case, way, value)[most]:{digits}}" for case in cases)
      for way in ("random packs", "balance=devices")
    )
    about = title.format(most=most, worst=worst, best=best)
    save(drawing, folder / f"skipping_{value}.png", about)
