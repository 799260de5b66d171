"""How time and memory of a training step grow.

    python -m benchmarks.growth --picture growth.png
    python -m benchmarks.growth --only depth,rows --rounds 5

There are four curves: over the row length S, the sequences M in a row, the rows B in a step
and the parameters of the model. Rows are full packs of M equal sequences, and a step is a
whole training step with LAMB. Each round runs every shape once, in random order. Memory is
what XLA plans for the compiled step: arguments (with parameters and optimizer state),
results and temporary arrays; it is the same in each round. An exponent is the least-squares
slope of log y against log x, over all points and over their upper half. The exponents of
time are computed per round and reported as median and quartiles.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks import command
from lab.machine import machine_and_device
from lab.options import add, add_some, run
from lab.statistics import quartiles, spread
from lab.table import record_table, table
from lab.timing import steps, turns
from lab.timing.models import make_program
from launch.record.parameters import count_parameters
from launch.record.progress import Progress
from training.mesh import put_batch


class Shape(NamedTuple):
  """The shape of a step."""

  size: str  # of the model
  row_length: int  # S, in tokens
  depth: int  # M, sequences in a row
  rows: int  # B


SHORT, LONG = Shape("mini", 128, 1, 4), Shape("mini", 512, 1, 4)
CURVES = {
  "row_length": [SHORT._replace(row_length=2**n) for n in range(6, 11)],
  "depth": [LONG._replace(depth=2**n) for n in range(5)],
  "rows": [SHORT._replace(rows=2**n) for n in range(6)],
  "size": [SHORT._replace(size=size) for size in ("tiny", "mini", "small", "medium")],
}
NAMES = {
  "row_length": "row length S, tokens",
  "depth": "sequences of a row M",
  "rows": "rows of a step B",
  "size": "parameters",
}
LONGEST = 1024  # position embeddings of all models


def exponents(x: Sequence[float], y: np.ndarray) -> np.ndarray:
  """e of y = c x^e: the slopes of least-squares lines of log y against log x.

  x is float[n], with at least two different values; y is float[..., n] and e float[...].

  Example:
    >>> exponents([1, 2, 4], np.array([[3.0, 12, 48], [5, 5, 5]])).round(6).tolist()
    [2.0, 0.0]
  """
  log_x = np.log(x) - np.log(x).mean()
  return np.log(y) @ log_x / (log_x @ log_x)


def growth(
  x: Sequence[float], seconds: np.ndarray, memory: Sequence[int]
) -> dict[str, Any]:
  """The numbers of one curve: quartiles of seconds, and exponents.

  x is float[n], ascending; seconds are float[rounds, n]; memory is int[n], in bytes.
  Exponents with the suffix `_upper` are those of the upper half of the points, at least
  two.
  """
  half = slice(min(len(x) // 2, len(x) - 2), None)
  of_memory = np.array(memory, float)
  return {
    "x": list(x),
    "seconds": [quartiles(point) for point in seconds.T],
    "bytes": list(memory),
    "time_exponent": quartiles(exponents(x, seconds)),
    "time_exponent_upper": quartiles(exponents(x[half], seconds[:, half])),
    "memory_exponent": float(exponents(x, of_memory)),
    "memory_exponent_upper": float(exponents(x[half], of_memory[half])),
  }


def measure(names: Sequence[str], *, rounds: int) -> dict[str, dict]:
  """Measures curves; returns the `growth` of each by name.

  A shape that two curves share is run once.
  """
  shapes = sorted({shape for name in names for shape in CURVES[name]})
  sizes = sorted({shape.size for shape in shapes})
  programs = {size: make_program(size, longest=LONGEST) for size in sizes}
  trainers = {size: steps.Trainer(program) for size, program in programs.items()}
  runs, memory, arguments = {}, {}, {}
  with Progress("compiling", total=len(shapes), unit="shapes") as progress:
    for shape in progress.over(shapes):
      program, trainer = programs[shape.size], trainers[shape.size]
      rows = steps.full_rows(shape.row_length, shape.depth, shape.rows)
      batch = put_batch(rows, program.mesh)
      step = steps.compile_step(program, batch)
      memory[shape], arguments[shape] = step.bytes, step.argument_bytes
      runs[shape] = trainer.runs(step, [batch])
  seconds = turns.in_turns(runs, rounds=rounds, name="measuring")
  curves = {}
  for name in names:
    values = [getattr(shape, name) for shape in CURVES[name]]
    if name == "size":
      states = (programs[size].abstract_state() for size in values)
      values = [count_parameters(state["params"]) for state in states]
    curves[name] = growth(
      values,
      np.stack([seconds[shape] for shape in CURVES[name]], 1),
      [memory[shape] for shape in CURVES[name]],
    )
    curves[name]["argument_bytes"] = [arguments[shape] for shape in CURVES[name]]
  return curves


def summary(curves: Mapping[str, dict]) -> str:
  """The exponents of all curves."""
  header = ("over", "from", "to", "time", "its upper half", "memory", "its upper half")
  rows = [
    [
      NAMES[name],
      f"{curve['x'][0]:,}",
      f"{curve['x'][-1]:,}",
      spread(curve["time_exponent"]),
      spread(curve["time_exponent_upper"]),
      f"{curve['memory_exponent']:.2f}",
      f"{curve['memory_exponent_upper']:.2f}",
    ]
    for name, curve in curves.items()
  ]
  return table(header, rows)


def points(name: str, curve: dict) -> str:
  """The measured points of a curve."""
  records = [
    {
      NAMES[name]: f"{x:,}",
      "seconds (quartiles)": spread(curve["seconds"][i], 4),
      "MB": f"{curve['bytes'][i] / 1e6:,.0f}",
      "of them state and batch": f"{curve['argument_bytes'][i] / 1e6:,.0f}",
    }
    for i, x in enumerate(curve["x"])
  ]
  return record_table(records, left=())


def draw(curves: Mapping[str, dict], path: str):
  """Draws two panels per curve, seconds above memory; all axes are logarithmic."""
  from matplotlib.ticker import LogLocator, NullLocator

  from lab import pictures

  drawing = pictures.figure(14, 7)
  panels = drawing.subplots(2, len(curves), squeeze=False)
  for (above, below), (name, curve) in zip(panels.T, curves.items(), strict=True):
    median, low, high = (
      np.array([point[key] for point in curve["seconds"]])
      for key in ("median", "low", "high")
    )
    above.errorbar(curve["x"], median, [median - low, high - median], fmt="o-")
    below.plot(curve["x"], np.array(curve["bytes"]) / 1e6, "s--", color="C1")
    slopes = {
      above: (curve["time_exponent"]["median"], curve["time_exponent_upper"]["median"]),
      below: (curve["memory_exponent"], curve["memory_exponent_upper"]),
    }
    for axes, (whole, upper) in slopes.items():
      axes.set(xscale="log", yscale="log")
      names = [f"{x:,}" if x < 1e6 else f"{x / 1e6:.0f}M" for x in curve["x"]]
      axes.set_xticks(curve["x"], names)
      axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
      axes.yaxis.set_major_formatter("{x:g}")
      for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
      least, most = axes.get_ylim()
      axes.set_ylim(min(least, most / 10), 1.1 * most)  # a flat curve looks flat
      axes.set_title(f"exponent {whole:.2f}, upper half {upper:.2f}")
    below.set_xlabel(NAMES[name])
  panels[0, 0].set_ylabel("seconds a step")
  panels[1, 0].set_ylabel("MB")
  pictures.save(drawing, pathlib.Path(path), "Growth of a training step's time and memory")


def main(arguments: list[str] | None = None):
  parser = command.make_parser(__doc__, "growth")
  add_some(parser, "--only", CURVES)
  add(parser, "--rounds", 11)
  command.add_picture(parser)
  options = parser.parse_args(arguments)
  machine = machine_and_device()
  print(machine, flush=True)
  curves = measure(options.only, rounds=options.rounds)
  command.write(options, machine, curves=curves)
  print(f"\nExponents, {options.rounds} rounds, wall-clock time\n\n{summary(curves)}")
  for name, curve in curves.items():
    print(f"\n{points(name, curve)}")
  if options.picture:
    draw(curves, options.picture)


if __name__ == "__main__":
  sys.exit(run(main))
