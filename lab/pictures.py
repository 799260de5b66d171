"""Size, colours, axes and files, which all pictures share."""

from __future__ import annotations

import io
import pathlib
import textwrap

import matplotlib.axes
import matplotlib.figure
import matplotlib.style
import matplotlib.ticker
import numpy as np

from packing import files

matplotlib.style.use("packing.pictures")

COLOURS = tuple(matplotlib.rcParams["axes.prop_cycle"].by_key()["color"])
_WIDTH = 100  # characters of a line of the title, at most
_PER_INCH = 11.2  # characters of the title in an inch of the picture
PERCENT = matplotlib.ticker.PercentFormatter


def figure(width: float = 9, height: float = 4.5) -> matplotlib.figure.Figure:
  """An empty figure; sizes in inches."""
  return matplotlib.figure.Figure(figsize=(width, height))


def band(axes: matplotlib.axes.Axes, x, rows, colour: str, name: str, *, marker: str = ""):
  """The mean of several lines over x, and their range; rows are float[lines, points]."""
  rows = np.array(rows, float)
  axes.plot(x, rows.mean(0), color=colour, label=name, marker=marker, markersize=3)
  if len(rows) > 1:
    axes.fill_between(x, rows.min(0), rows.max(0), color=colour, alpha=0.2, linewidth=0)


def legend_below(drawing: matplotlib.figure.Figure, columns: int):
  """Puts the legend of the first panel, for all panels, below them."""
  handles, labels = drawing.axes[0].get_legend_handles_labels()
  drawing.legend(
    handles, labels, loc="outside lower center", ncols=columns, fontsize="small"
  )


def save(drawing: matplotlib.figure.Figure, path: pathlib.Path, title: str):
  """Writes a figure, whole or not at all; its title says what it shows."""
  for axes in drawing.axes:
    axes.grid()
  width = min(_WIDTH, int(_PER_INCH * drawing.get_figwidth()))
  drawing.suptitle(textwrap.fill(title.removesuffix("."), width))
  data = io.BytesIO()
  drawing.savefig(data, format=path.suffix[1:])
  files.write_bytes(path, data.getvalue())
