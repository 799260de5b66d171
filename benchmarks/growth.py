"""How time and memory of a training step grow.

    python -m benchmarks.growth --picture growth.png
    python -m benchmarks.growth --only depth,rows --rounds 5

Four curves: over the row length S, the sequences M of a row, the rows B of a step and the
parameters of the model. Rows are full, packs of M equal sequences; the step is that of
training, LAMB too. Each round runs every shape once, in another order. Memory is XLA's
plan of the compiled step: arguments (with parameters and optimizer), results and temporary
arrays; it is the same each time. An exponent is the least-squares slope of log y over
log x, for all points and for the upper half of them. The exponents of time are computed
round by round: median and quartiles.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.command import (
  add_clock,
  add_number,
  add_picture,
  make_parser,
  run,
  some_of,
  write,
)
from benchmarks.small_bert import count_parameters, machine_and_device, make_program
from benchmarks.steps import (
  Trainer,
  compile_step,
  in_turns,
  quartiles,
  random_batch,
  spread,
)
from benchmarks.table import table
from training.mesh import put_batch
from training.record.progress import Progress


class Shape(NamedTuple):
  """The shape of a step."""

  size: str  # of the model
  row_length: int  # S, in tokens
  depth: int  # M, sequences of a row
  rows: int  # B


def _vary(base: Shape, **values) -> list[Shape]:
  ((field, each),) = values.items()
  return [base._replace(**{field: value}) for value in each]


SHORT, LONG = Shape("mini", 128, 1, 4), Shape("mini", 512, 1, 4)
CURVES = {
  "row_length": _vary(SHORT, row_length=(64, 128, 256, 512, 1024)),
  "depth": _vary(LONG, depth=(1, 2, 4, 8, 16)),
  "rows": _vary(SHORT, rows=(1, 2, 4, 8, 16, 32)),
  "size": _vary(SHORT, size=("tiny", "mini", "small", "medium")),
}
NAMES = {
  "row_length": "row length S, tokens",
  "depth": "sequences of a row M",
  "rows": "rows of a step B",
  "size": "parameters",
}
LONGEST = 1024  # positions of all models


def make_batch(shape: Shape) -> dict[str, np.ndarray]:
  """Full rows of equal sequences.

  Example:
    >>> batch = make_batch(Shape("tiny", row_length=8, depth=2, rows=1))
    >>> batch["segment_ids"].tolist()
    [[1, 1, 1, 1, 2, 2, 2, 2]]
  """
  cuts = np.linspace(0, shape.row_length, shape.depth + 1).astype(int)
  return random_batch(
    [np.diff(cuts).tolist()] * shape.rows,
    np.random.default_rng(0),
    row_length=shape.row_length,
    max_sequences=shape.depth,
  )


def exponents(x: Sequence[float], y: np.ndarray) -> np.ndarray:
  """Of y = c x^e: slopes of the least-squares lines through log y over log x.

  Args:
    x: float[n], at least two different ones.
    y: float[..., n].

  Returns:
    e, float[...].

  Example:
    >>> exponents([1, 2, 4], np.array([[3.0, 12, 48], [5, 5, 5]])).round(6).tolist()
    [2.0, 0.0]
  """
  log_x = np.log(x) - np.log(x).mean()
  return np.log(y) @ log_x / (log_x @ log_x)


def growth(
  x: Sequence[float], seconds: np.ndarray, memory: Sequence[int]
) -> dict[str, Any]:
  """The numbers of one curve.

  Args:
    x: float[n], rising.
    seconds: float[rounds, n].
    memory: int[n], in bytes.

  Returns:
    `x`; `seconds`, quartiles of each point; `bytes`; `time_exponent` and
    `memory_exponent` of all points, and with `_upper` of the upper half, at least two.
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


def measure(names: Sequence[str], *, rounds: int, clock: str) -> dict[str, dict]:
  """`growth` of the curves by name; a shape that two curves share is run once."""
  shapes = sorted({shape for name in names for shape in CURVES[name]})
  sizes = sorted({shape.size for shape in shapes})
  programs = {size: make_program(size, longest=LONGEST) for size in sizes}
  trainers = {size: Trainer(program) for size, program in programs.items()}
  runs, memory, arguments = {}, {}, {}
  with Progress("compiling", total=len(shapes), unit="shapes") as progress:
    for shape in progress.over(shapes):
      program, trainer = programs[shape.size], trainers[shape.size]
      batch = put_batch(make_batch(shape), program.mesh)
      step = compile_step(program, batch)
      memory[shape], arguments[shape] = step.bytes, step.argument_bytes
      runs[shape] = functools.partial(_run, trainer, step, batch)
  seconds = in_turns(runs, rounds=rounds, seed=0, name="measuring", clock=clock)
  curves = {}
  for name in names:
    values = [getattr(shape, name) for shape in CURVES[name]]
    if name == "size":
      values = [count_parameters(programs[size]) for size in values]
    curves[name] = growth(
      values,
      np.stack([seconds[shape] for shape in CURVES[name]], 1),
      [memory[shape] for shape in CURVES[name]],
    )
    curves[name]["argument_bytes"] = [arguments[shape] for shape in CURVES[name]]
  return curves


def _run(trainer: Trainer, step, batch, _):
  return trainer.start(step, batch)


def finding(name: str, curve: dict) -> str:
  """One sentence."""
  first, last = curve["seconds"][0]["median"], curve["seconds"][-1]["median"]
  what = NAMES[name].partition(",")[0]
  return (
    f"{what} times {curve['x'][-1] / curve['x'][0]:.3g}: time times "
    f"{last / first:.3g} (exponent {curve['time_exponent']['median']:.2f}, upper half "
    f"{curve['time_exponent_upper']['median']:.2f}), memory times "
    f"{curve['bytes'][-1] / curve['bytes'][0]:.3g} ({curve['memory_exponent']:.2f}, "
    f"{curve['memory_exponent_upper']:.2f})"
  )


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
  return table(header, rows, right=range(1, 7))


def points(name: str, curve: dict) -> str:
  """The measured points of a curve."""
  header = (NAMES[name], "seconds (quartiles)", "MB", "of them state and batch")
  each = (curve["x"], curve["seconds"], curve["bytes"], curve["argument_bytes"])
  rows = [
    [f"{x:,}", spread(seconds, 4), f"{memory / 1e6:,.0f}", f"{arguments / 1e6:,.0f}"]
    for x, seconds, memory, arguments in zip(*each, strict=True)
  ]
  return table(header, rows, right=range(4))


def draw(curves: Mapping[str, dict], path: str):
  """A panel a curve, seconds on the left, memory on the right, all logarithmic."""
  import matplotlib.figure
  import matplotlib.ticker

  figure = matplotlib.figure.Figure(figsize=(11, 7), dpi=110, layout="constrained")
  panels = figure.subplots(2, 2).flat
  time_colour, memory_colour = "#2a6f97", "#c1666b"
  for axes, (name, curve) in zip(panels, curves.items(), strict=False):
    x = curve["x"]
    median, low, high = (
      np.array([point[key] for point in curve["seconds"]])
      for key in ("median", "low", "high")
    )
    axes.errorbar(x, median, [median - low, high - median], fmt="o-", color=time_colour)
    other = axes.twinx()
    other.plot(x, np.array(curve["bytes"]) / 1e6, "s--", color=memory_colour)
    axes.set_xscale("log", base=2)
    labels = [f"{n:,}" if n < 1e6 else f"{n / 1e6:.1f} M" for n in x]
    axes.set_xticks(x, labels)
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    sides = ((axes, "seconds a step", time_colour), (other, "MB", memory_colour))
    for side, label, colour in sides:
      side.set_yscale("log")
      least, most = side.get_ylim()
      side.set_ylim(min(least, most / 10), 1.3 * most)  # a flat curve looks flat
      side.yaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
      side.set_ylabel(label, color=colour)
      side.yaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
      side.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
      side.spines["top"].set_visible(False)
    axes.set_xlabel(NAMES[name])
    axes.set_title(
      f"exponent of time {curve['time_exponent']['median']:.2f}, upper half "
      f"{curve['time_exponent_upper']['median']:.2f};\nof memory "
      f"{curve['memory_exponent']:.2f}, upper half {curve['memory_exponent_upper']:.2f}",
      fontsize=10,
    )
  figure.savefig(path)


def main(arguments: list[str] | None = None):
  parser = make_parser(__doc__)
  parser.add_argument(
    "--only",
    type=some_of(CURVES),
    default=list(CURVES),
    help=f"default: all, {','.join(CURVES)}",
  )
  add_number(parser, "--rounds", 11)
  add_clock(parser)
  add_picture(parser)
  options = parser.parse_args(arguments)
  machine = machine_and_device()
  print(machine, flush=True)
  curves = measure(options.only, rounds=options.rounds, clock=options.clock)
  write(options, machine, curves=curves)
  print(f"\nExponents, {options.rounds} rounds, {options.clock} time\n\n{summary(curves)}")
  for name, curve in curves.items():
    print(f"\n{finding(name, curve)}.\n\n{points(name, curve)}")
  if options.picture:
    draw(curves, options.picture)


if __name__ == "__main__":
  sys.exit(run(main))
