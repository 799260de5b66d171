"""What all pictures share: size, colours, axes, and how they are written."""

from __future__ import annotations

import io
import pathlib
import textwrap

import matplotlib.axes
import matplotlib.figure
import matplotlib.ticker

from packing import files

COLOURS = ("#2a6f97", "#c1666b", "#6a994e", "#8d6a9f", "#d08c3f", "#555555", "#3aa6a0")
_WIDTH = 115  # characters of a line of the title
PERCENT = matplotlib.ticker.PercentFormatter


def figure(width: float = 9, height: float = 4.5) -> matplotlib.figure.Figure:
  """An empty figure; sizes in inches."""
  return matplotlib.figure.Figure(figsize=(width, height), dpi=120, layout="constrained")


def plain(axes: matplotlib.axes.Axes):
  """A light grid, and no frame above and to the right."""
  axes.spines[["top", "right"]].set_visible(False)
  axes.set_axisbelow(True)
  axes.grid(alpha=0.3)


def save(drawing: matplotlib.figure.Figure, path: pathlib.Path, title: str):
  """Writes a figure as a PNG, whole or not at all.

  Args:
    drawing: whose axes are all made `plain`.
    path: of the PNG.
    title: what the picture shows, in a sentence.
  """
  for axes in drawing.axes:
    plain(axes)
  drawing.suptitle(textwrap.fill(title.removesuffix("."), _WIDTH), fontsize="medium")
  data = io.BytesIO()
  drawing.savefig(data, format="png")
  files.write_bytes(path, data.getvalue())
