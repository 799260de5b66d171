"""The tables of what was really run, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.load_balance.shares import ONE_PROGRAM, PACKED, UNPADDED
from experiments.load_balance.tables import table

_SEEN = {
  "clock": "by the clock",
  "processor": "by processor time",
  "together": "shared cores",
}


def tables(real: Mapping[str, Any]) -> str:
  """All of them, with what they are in a line before each.

  Args:
    real: of `experiments.real.run`.
  """
  clock, foretold = (
    {way: sum(x) / len(x) for way, x in shares.items()}
    for shares in (real["clock"], real["foretold"])
  )
  several = [x for x in real["cases"] if x["devices"] > 1]
  parts = [
    f"Really run: BERT-{real['size']}, {real['batch']} sequences a device, lengths rounded "
    f"up to a multiple of {real['multiple']}, {real['machine']}. A share is what a device "
    f"does in a step. Of {real['shares']} measured alone one of packing takes "
    f"{clock[PACKED]:.3g} s, {real['pace']:.2f} times what the cost model foretells "
    f"({foretold[PACKED]:.3g} s); one of un-padding {clock[UNPADDED]:.3g} s, foretold "
    f"{foretold[UNPADDED]:.3g} s, so at that pace {real['beyond']:+.3g} s a sequence.",
    "The part of a step that devices wait for the slowest: median (quartiles) of steps. "
    f"Seen: devices are composed, {real['composed']} times, of shares measured alone; "
    f"processes run at the same time. Shared cores: all run on {real['cores']} cores at "
    "the same time, and the clock is no measure. Of packing what is seen is noise. "
    "Un-padding here adds up gradients of all parameters for each sequence, whatever its "
    "length: that makes it slower, and its devices more alike.",
    table(["", *(x["name"] for x in several)], _idle(several)),
    "Beside the cost model, which was fitted on all cores: seconds of a share of packing "
    "over those foretold, and what a sequence of un-padding takes more at that pace. Of "
    "devices from the shares alone, of processes from their own steps.",
    table(
      ["", "pace", "seconds more a sequence"],
      [[x["name"], f"{x['pace']:.2f}", f"{x['beyond']:+.3g}"] for x in real["cases"]],
    ),
    "Seconds of a step: median (quartiles), and real tokens a second of packing over "
    "un-padding: gain, where both have two programs; of one program, the step of training.",
    table(
      [
        "",
        "un-padding",
        "packing",
        "packing, one program",
        "exchange and update",
        "gain foretold",
        "gain seen",
        "of one program",
      ],
      [line for x in real["cases"] for line in _seconds(x, real["update"])],
    ),
  ]
  return "\n\n".join(parts)


def _idle(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
  """A line for each way to know, a cell for each case."""
  names = ("simulated", "foretold", "foretold_beyond")
  labels = ("simulated", "foretold for the sequences dealt", "and at the pace seen")
  lines = [
    [label, *(_percent(x[name]) for x in rows)]
    for name, label in zip(names, labels, strict=True)
  ]
  for way in (UNPADDED, PACKED):
    for how, told in _SEEN.items():
      cells = [_percent(x["idle"][how][way]) if how in x["idle"] else "" for x in rows]
      lines.append([f"{way}, seen, {told}", *cells])
    if way == UNPADDED:
      off = [100 * (seen(x)[way][0] - x["foretold"][0]) for x in rows]
      lines.append(["seen - foretold, points", *(f"{x:+.1f}" for x in off)])
  return lines


def seen(row: Mapping[str, Any]) -> Mapping[str, Sequence[float]]:
  """Waiting by way: by the clock, or by processor time where processes share cores.

  Args:
    row: of a case.

  Returns:
    Median and quartiles.
  """
  return row["idle"].get("clock", row["idle"]["processor"])


def _seconds(row: Mapping[str, Any], update: float) -> list[list[str]]:
  """A line of what was seen; of devices, whose cores are shared, then what is composed."""
  seconds, composed = row["seconds"], row.get("composed_seconds")
  shown = (_quartiles(seconds[way]) for way in (UNPADDED, PACKED, ONE_PROGRAM))
  gains = [f"{row['gain_foretold']:.2f}", f"{row['gain']:.2f}"]
  line = [row["name"], *shown, f"{row['exchange']:.3f}"]
  if composed is None:
    return [[*line, *gains, f"{row['gain_one_program']:.2f}"]]
  shown = (_quartiles(composed[way]) for way in (UNPADDED, PACKED))
  alone = [f"{row['name']}, composed", *shown, "", f"{update:.3f}", *gains, ""]
  return [[*line, "", "", ""], alone]


def _quartiles(values: Sequence[float]) -> str:
  middle, low, high = values
  return f"{middle:.3g} ({low:.3g} to {high:.3g})"


def _percent(values: Sequence[float]) -> str:
  middle, low, high = (100 * x for x in values)
  return f"{middle:.1f}% ({low:.1f} to {high:.1f})"
