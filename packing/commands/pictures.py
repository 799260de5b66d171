"""Pictures of a dataset's lengths and their packing."""

from __future__ import annotations

import io
import pathlib

import numpy as np

from packing import files
from packing.commands.advisor import Advice
from packing.errors import InputError

_COLORS = ("C0", "C1", "C2", "C3")
_PADDING = "0.88"
_PACKS_SHOWN = 12


def prepare_folder(directory):
  """Creates the folder of the pictures, if it does not exist.

  Raises:
    InputError: matplotlib is missing, or the folder cannot be created.
  """
  try:
    import matplotlib.figure  # noqa: F401
  except ImportError as error:
    raise InputError(
      'Pictures need matplotlib; install it with pip install "isopack[pictures]".'
    ) from error
  try:
    pathlib.Path(directory).mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise InputError(f"Cannot make {directory}: {error.strerror}.") from error


def draw(advice: Advice, directory) -> list[pathlib.Path]:
  """Draws the histogram, the fill of rows, and some rows, as PNG files.

  Args:
    advice: what to draw.
    directory: the folder to write to.

  Returns:
    The files.

  Raises:
    InputError: the files cannot be written.
  """
  import matplotlib.figure
  import matplotlib.style

  written = []
  for name, picture in (
    ("histogram", _histogram),
    ("fill", _fill),
    ("rows", _rows),
  ):
    data = io.BytesIO()
    with matplotlib.style.context("packing.pictures"):
      figure = matplotlib.figure.Figure(figsize=(8, 4.5))
      if name == "rows":
        picture(figure.subplots(1, 2, sharey=True), advice)
      else:
        axes = figure.add_subplot()
        picture(axes, advice)
        axes.grid(axis="y")
      figure.savefig(data, format="png")
    written.append(pathlib.Path(directory, f"{name}.png"))
    files.write_bytes(written[-1], data.getvalue())
  return written


def _histogram(axes, advice: Advice):
  histogram = advice.histogram
  size = histogram.max_sequence_length
  width = max(size // 128, 1)
  edges = np.arange(0, size + width, width)
  counts, _ = np.histogram(np.arange(1, size + 1) - 0.5, edges, weights=histogram.counts)
  axes.bar(edges[:-1], counts, width, align="edge", color=_COLORS[0])
  axes.set_yscale("log")
  mean = histogram.num_tokens / histogram.num_sequences
  axes.axvline(mean, color="black", linestyle="--")
  axes.set_xlim(0, size)
  axes.set_xlabel(f"tokens of a sequence (bars of {width})")
  axes.set_ylabel("sequences")
  axes.set_title(
    f"{histogram.num_sequences:,} sequences, {mean:.1f} tokens on average (line);\n"
    f"padding to {size} wastes {advice.padding:.1%}"
  )


def _fill(axes, advice: Advice):
  plan, histogram = advice.plan, advice.histogram
  tokens = np.array([sum(strategy) for strategy in plan.strategies])
  bins = np.linspace(0, 1, 41)
  packed, _ = np.histogram(tokens / plan.row_length, bins, weights=plan.repeat_counts)
  lengths = np.arange(1, histogram.counts.size + 1)
  padded, _ = np.histogram(
    lengths / histogram.max_sequence_length, bins, weights=histogram.counts
  )
  width = bins[1] - bins[0]
  for shares, color, label in (
    (padded / padded.sum(), _COLORS[1], "padded, one sequence per row"),
    (packed / packed.sum(), _COLORS[0], f"packed, {plan.packing_factor:.2f} per row"),
  ):
    axes.bar(bins[:-1], shares, width, align="edge", color=color, alpha=0.7, label=label)
  axes.set_xlim(0, 1)
  axes.set_xlabel("fill of a row, real tokens / all tokens")
  axes.set_ylabel("share of rows")
  axes.set_title(
    f"Fill: mean {1 - advice.padding:.1%} padded, {plan.efficiency:.2%} packed"
  )
  axes.legend(loc="upper left")


def _rows(panels, advice: Advice):
  """Some packs beside their sequences, one per row; a sequence keeps its colour."""
  plan, padded = advice.plan, advice.histogram.max_sequence_length
  rng = np.random.default_rng(0)
  order = sorted(range(len(plan.strategies)), key=lambda i: len(plan.strategies[i]))
  before = np.cumsum(plan.repeat_counts[order])  # so that each depth is drawn in proportion
  places = (np.arange(_PACKS_SHOWN) + 0.5) / _PACKS_SHOWN * plan.num_packs
  drawn = [order[i] for i in rng.permutation(np.searchsorted(before, places, side="right"))]
  packs, number = [], 0
  for index in drawn:
    pack = rng.permutation(plan.strategies[index])
    packs.append([(int(length), number + i) for i, length in enumerate(pack)])
    number += len(pack)
  sequences = [[sequence] for pack in packs for sequence in pack]
  rng.shuffle(sequences)
  shares = 1 - advice.padding, plan.efficiency
  for axes, rows, size, title in (
    (
      panels[0],
      sequences,
      padded,
      f"one per row: {number} rows, {shares[0]:.1%} real",
    ),
    (panels[1], packs, plan.row_length, f"packed: {len(packs)} rows, {shares[1]:.1%} real"),
  ):
    for place, row in enumerate(rows):
      axes.barh(place, size, height=0.8, color=_PADDING)
      start = 0
      for length, sequence in row:
        color = _COLORS[sequence % len(_COLORS)]
        axes.barh(
          place, length, left=start, height=0.8, color=color, edgecolor="white", linewidth=1
        )
        start += length
    axes.set_title(title)
    axes.set_xlim(0, size)
    axes.set_xlabel("tokens (grey is padding)")
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
  panels[0].set_ylim(len(sequences) - 0.4, -0.6)
