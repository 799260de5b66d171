"""The tables of what was really run, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.load_balance_tables import table
from experiments.shares import ONE_PROGRAM, PACKED, UNPADDED


def tables(real: Mapping[str, Any]) -> str:
  """All of them, with what they are in a line before each.

  Args:
    real: of `experiments.real.run`.
  """
  alone, foretold = (
    {way: sum(x) / len(x) for way, x in real[name].items()}
    for name in ("alone", "foretold")
  )
  parts = [
    f"Really run: BERT-{real['size']}, {real['batch']} sequences a device, lengths rounded "
    f"up to a multiple of {real['multiple']}, {real['machine']}. A share of un-padding "
    f"takes {alone[UNPADDED]:.3g} s alone ({foretold[UNPADDED]:.3g} s by the cost model, "
    f"so {real['sequence_seconds']:.3g} s a sequence beyond it), one of packing "
    f"{alone[PACKED]:.3g} s ({foretold[PACKED]:.3g} s)."
  ]
  if rows := real["devices"]:
    parts += [
      "Time that devices of one process wait for the slowest. Foretold: by the simulation, "
      "for the very sequences dealt, and with the time beyond the cost model. Seen: "
      "composed of shares that were measured alone, and together on "
      f"{real['cores']} cores, which they share. Of packing what is seen is noise.",
      table(
        [
          "devices",
          "simulated",
          "foretold",
          "and beyond",
          "seen, composed",
          "seen - foretold",
          "together",
          "packing, composed",
          "packing, together",
        ],
        [_idle_of_devices(x) for x in rows],
      ),
    ]
  if rows := real["processes"]:
    parts += [
      "Time that processes of one device wait for the slowest: by the clock, and by "
      "processor time, which stands where they share cores.",
      table(
        [
          "processes",
          "own core",
          "foretold",
          "and beyond",
          "seen, clock",
          "seen, processor",
          "packing, clock",
          "packing, processor",
        ],
        [_idle_of_processes(x) for x in rows],
      ),
    ]
  parts += [
    "Seconds of a step (quartiles), and sequences a second of packing over un-padding.",
    table(
      [
        "",
        "un-padding",
        "packing",
        "packing, one program",
        "exchange and update",
        "gain foretold",
        "gain seen",
      ],
      [line for x in [*real["devices"], *real["processes"]] for line in _seconds(x)],
    ),
  ]
  return "\n\n".join(parts)


def _idle_of_devices(row: Mapping[str, Any]) -> list[str]:
  composed, together = row["composed"], row["together"]
  return [
    f"{row['devices']}",
    f"{row['simulated']:.1%}",
    f"{row['predicted']:.1%}",
    f"{row['predicted_beyond']:.1%}",
    f"{composed[UNPADDED]:.1%}",
    f"{100 * (composed[UNPADDED] - row['predicted']):+.1f} points",
    f"{together[UNPADDED]:.1%}",
    f"{composed[PACKED]:.1%}",
    f"{together[PACKED]:.1%}",
  ]


def _idle_of_processes(row: Mapping[str, Any]) -> list[str]:
  clock, processor = row["clock"], row["processor"]
  return [
    f"{row['processes']}",
    "yes" if row["own_core"] else "no",
    f"{row['predicted']:.1%}",
    f"{row['predicted_beyond']:.1%}",
    f"{clock[UNPADDED]:.1%}",
    f"{processor[UNPADDED]:.1%}",
    f"{clock[PACKED]:.1%}",
    f"{processor[PACKED]:.1%}",
  ]


def _seconds(row: Mapping[str, Any]) -> list[list[str]]:
  """A line of what was seen and, of devices, one of what is composed."""
  if "processes" in row:
    name = f"{row['processes']} processes" if row["processes"] > 1 else "1 process"
  else:
    name = f"{row['devices']} devices"
  exchange, foretold = f"{row['exchange']:.3f}", f"{row['gain_predicted']:.2f}"
  seconds = row["seconds"]
  ways = UNPADDED, PACKED, ONE_PROGRAM
  shown = (_quartiles(seconds[way]) if way in seconds else "" for way in ways)
  lines = [[name, *shown, exchange, foretold, f"{row['gain']:.2f}"]]
  if "composed_seconds" in row:
    shown = (_quartiles(row["composed_seconds"][way]) for way in (UNPADDED, PACKED))
    gain = f"{row['gain_composed']:.2f}"
    lines.append([f"{name}, composed", *shown, "", exchange, foretold, gain])
  return lines


def _quartiles(values: list[float]) -> str:
  middle, low, high = values
  return f"{middle:.3g} ({low:.3g} to {high:.3g})"
