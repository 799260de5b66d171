"""The tables of the sharded step, in Markdown, and its picture."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from experiments.load_balance.sharded import BATCH, BLOCK, PACKING
from experiments.load_balance.tables import Columns, Records, by_columns, device_axes, shown
from experiments.load_balance.ways import UNPADDING
from lab.pictures import COLOURS, PERCENT, save
from lab.statistics import spread


def records(result: Mapping[str, Any]) -> dict[str, Records]:
  """The tables of the result of `__main__.run_sharded`, by name."""
  columns: Columns = {
    "devices": "{devices:,}",
    "blocks counted": "{blocks:.1%}",
    "fitted cost": "{cost:.1%}",
    "measured": "{measured}",
  }
  measured = result["measured"]
  rows = [
    {"devices": n, "measured": "", **of_devices}
    for n, of_devices in result["expected"].items()
  ]
  if measured is None:
    return {"devices": by_columns(rows, columns)}
  for row in rows:
    if row["devices"] == measured["devices"]:
      row["measured"] = _waiting(measured["methods"][UNPADDING])
  return {
    "methods": [_line(name, x) for name, x in measured["methods"].items()],
    "devices": by_columns(rows, columns),
  }


def _line(method: str, found: Mapping[str, Any]) -> dict[str, str]:
  waiting = found["waiting"]
  return {
    "method": method,
    "blocks of a device: mean, most": "{mean:.1f}, {most:.1f}".format(**found["blocks"]),
    "waiting, by blocks": f"{waiting['blocks']:.1%}",
    "by fitted cost": f"{waiting['cost']:.1%}",
    "measured": _waiting(found),
    "seconds": spread(found["seconds"]),
    "to all as the slowest": spread(found["to_alike"]),
    "real tokens a second": f"{found['real_tokens']:,.0f}",
  }


def _waiting(found: Mapping[str, Any]) -> str:
  waited = found["waiting"]["measured"]
  near_0 = {name: round(x, 3) + 0.0 for name, x in waited.items()}  # not -0.0 %
  return "{mean:.1%} ({low:.1%} to {high:.1%})".format(**near_0)


def tables(result: Mapping[str, Any]) -> str:
  """All tables, each after what it shows."""
  measured, made = result["measured"], records(result)
  if measured is None:
    parts = ["No step was measured: devices need a core each, and there is only one."]
  else:
    parts = [
      f"A step sharded over {measured['devices']} devices, a core each: BERT-"
      f"{measured['model']}, {measured['machine']}. Packing, a device has as many packs as "
      f"hold about {BATCH} sequences; un-padding, it has {BATCH} sequences, each in as "
      f"many blocks of {BLOCK} tokens as it needs. {measured['steps']} steps of each, "
      f"compiled {measured['compilations']} times for both. Waiting is the share of the "
      "time that devices wait for the slowest, measured in processor time: the mean "
      "(quartiles of the steps). Seconds are those of the clock: the median (quartiles), "
      "and their ratio to a step in which each device has the rows of the slowest.",
      shown(made["methods"]),
    ]
  return "\n\n".join(
    [
      *parts,
      f"The share of the time that devices wait with un-padding, {BATCH} sequences a "
      "device, by their number: 1 - mean / most blocks, and the same with the fitted cost "
      "of a row of these blocks, both of simulated steps; and measured.",
      shown(made["devices"]),
    ]
  )


def draw(folder: pathlib.Path, result: Mapping[str, Any]):
  """Draws `sharded_step.png`: the share of the time that devices wait, by their number."""
  expected, measured = result["expected"], result["measured"]
  axes = device_axes([*expected], "share of the time that devices wait")
  for name, label, style, colour in (
    ("blocks", "un-padding, blocks counted", "o-", 1),
    ("cost", "un-padding, fitted cost", "s--", 3),
  ):
    shares = [of_devices[name] for of_devices in expected.values()]
    axes.plot([*expected], shares, style, color=COLOURS[colour], label=label, markersize=4)
  most = max(expected)
  waiting = f"{expected[most]['blocks']:.0%}"
  title = f"With un-padding {most:,} devices wait {waiting} of the time (simulated)"
  if measured:
    title += f"; measured on {measured['devices']}: "
    title += ", ".join(
      f"{method} {x['waiting']['measured']['mean']:.1%}"
      for method, x in measured["methods"].items()
    )
    for method, colour, aside in ((UNPADDING, 1, 0.97), (PACKING, 0, 1.03)):
      found = measured["methods"][method]["waiting"]["measured"]
      mean = found["mean"]
      axes.errorbar(
        [measured["devices"] * aside],
        [mean],
        yerr=[[max(0.0, mean - found["low"])], [max(0.0, found["high"] - mean)]],
        fmt="D",
        color=COLOURS[colour],
        label=f"{method}, measured: mean and quartiles of the steps",
        capsize=4,
        markersize=4,
      )
  axes.yaxis.set_major_formatter(PERCENT(1))
  axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
  save(axes.figure, folder / "sharded_step.png", title)
