"""Pictures of rows: bars of sequences, with a grey rest of padding."""

from __future__ import annotations

import io
import itertools
import pathlib

import numpy as np

from packing import errors, files
from packing.commands.advisor import Advice
from packing.errors import InputError

_COLORS = ("C0", "C1", "C2", "C3")
_PADDING = "0.88"
_PACKS_SHOWN, _SEQUENCES_SHOWN = 12, 40  # at most, so that rows can be told apart


def check_path(path):
  """Checks that a picture can be drawn and written.

  Raises:
    InputError: matplotlib is missing, the file is not called .png, or it cannot be written.
  """
  is_png = pathlib.Path(path).suffix.lower() == ".png"
  errors.check(is_png, "--picture", str(path), "a file whose name ends in .png")
  try:
    import matplotlib.figure  # noqa: F401
  except ImportError as error:
    raise InputError("Pictures need matplotlib. Run pip install matplotlib.") from error
  files.check_writable(path)


def draw(advice: Advice, path):
  """Draws some packs beside their sequences, one per row, as a PNG file.

  A sequence keeps its colour.

  Args:
    advice: what to draw.
    path: the file to write.

  Raises:
    InputError: the file cannot be written.
  """
  import matplotlib.figure
  import matplotlib.style

  plan, padded = advice.plan, advice.histogram.max_sequence_length
  rng = np.random.default_rng(0)
  order = sorted(range(len(plan.strategies)), key=lambda i: len(plan.strategies[i]))
  before = np.cumsum(plan.repeat_counts[order])  # so that each depth is drawn in proportion
  shown = min(max(int(_SEQUENCES_SHOWN / plan.packing_factor), 3), _PACKS_SHOWN)
  places = (np.arange(shown) + 0.5) / shown * plan.num_packs
  drawn = [order[i] for i in rng.permutation(np.searchsorted(before, places, side="right"))]
  packs, number = [], 0
  for index in drawn:
    pack = rng.permutation(plan.strategies[index])
    packs.append([(int(length), number + i) for i, length in enumerate(pack)])
    number += len(pack)
  sequences = [[sequence] for pack in packs for sequence in pack]
  rng.shuffle(sequences)
  data = io.BytesIO()
  with matplotlib.style.context("packing.pictures"):
    figure = matplotlib.figure.Figure(figsize=(8, 4.5))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, rows, size, title in (
      (
        panels[0],
        sequences,
        padded,
        f"one per row: {number} rows, {1 - advice.padding:.1%}",
      ),
      (
        panels[1],
        packs,
        plan.row_length,
        f"packed: {len(packs)} rows, {plan.efficiency:.1%}",
      ),
    ):
      draw_rows(axes, [_end_to_end(row) for row in rows], size)
      axes.set_title(f"{title} real")
    panels[0].set_ylim(len(sequences) - 0.4, -0.6)  # the same height of a row in both
    figure.savefig(data, format="png")
  files.write_bytes(path, data.getvalue())


def _end_to_end(row):
  starts = itertools.accumulate((length for length, _ in row), initial=0)
  return [(start, *sequence) for start, sequence in zip(starts, row, strict=False)]


def draw_rows(axes, rows, row_length: int):
  """Draws rows from top to bottom, each sequence as a bar of its length.

  Args:
    axes: Matplotlib's axes.
    rows: of each row the (first place, length in tokens, number) of its sequences. The
      number of a sequence chooses its colour.
    row_length: in tokens; what the sequences leave free is grey.
  """
  for place, row in enumerate(rows):
    height = place - 0.4, 0.8
    axes.broken_barh([(0, row_length)], height, color=_PADDING)
    colors = [_COLORS[number % len(_COLORS)] for _, _, number in row]
    line = {"edgecolor": "white", "linewidth": 1}
    axes.broken_barh([bar[:2] for bar in row], height, facecolors=colors, **line)
  axes.set_xlim(0, row_length)
  axes.set_ylim(len(rows) - 0.4, -0.6)
  axes.set_xlabel("tokens (grey: padding)")
  axes.set_xticks([row_length * quarter // 4 for quarter in range(5)])
  axes.set_yticks([])
  axes.spines["left"].set_visible(False)
