"""Pictures of lengths: Figures 1, 9, 11 and 12 of the paper, and 7, 8 and 10.

References:
  Krell et al., https://arxiv.org/abs/2107.02027, sections 2, F.4.4, F.4.5, J, K and L.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import matplotlib.ticker
import numpy as np

from experiments.load_balance.pictures import COLOURS, figure, save
from packing import Histogram

_BARS = 128  # of a histogram, at most
_COLUMNS = 3
_TALL = 3  # times the next bar: such a one is cut off, and its share written beside it


def length_distributions(path: pathlib.Path, histograms: Mapping[str, Histogram]):
  """The share of each length, and what training without padding would gain.

  Args:
    path: of the PNG.
    histograms: by name, a panel each.
  """
  columns = min(len(histograms), _COLUMNS)
  rows = -(-len(histograms) // columns)
  drawing = figure()
  drawing.set_size_inches(9, max(4.5, 2.7 * rows))
  panels = drawing.subplots(rows, columns, squeeze=False)
  speedups = []
  for axes, (name, histogram) in zip(panels.flat, histograms.items(), strict=False):
    speedup = _speedup(histogram)
    speedups.append(speedup)
    _distribution(axes, histogram)
    axes.set_title(f"{name}: {speedup:.3f} times", fontsize="small")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
  for axes in panels.flat[len(histograms) :]:
    axes.set_axis_off()
  for axes in panels[:, 0]:
    axes.set_ylabel("share of the sequences")
  span = f"{min(speedups):.2f}"
  if len(speedups) > 1:
    span += f" to {max(speedups):.2f}"
  save(
    panels[0, 0],
    path,
    f"Lengths, and the theoretical speed-up: without padding {span} times as fast",
  )


def _speedup(histogram: Histogram) -> float:
  """Padded tokens / real tokens."""
  return histogram.max_sequence_length * histogram.num_sequences / histogram.num_tokens


def _distribution(axes, histogram: Histogram):
  size = histogram.max_sequence_length
  width = -(-size // _BARS)
  # The last bar ends at the longest length: where sequences are cut, it stands out.
  edges = np.arange(size, -width, -width)[::-1] + 0.5
  counts = histogram.counts
  sums, _ = np.histogram(np.arange(1, size + 1), edges, weights=counts)
  shares = sums / histogram.num_sequences
  axes.stairs(shares, edges, fill=True, color=COLOURS[0])
  *_, next_to, most = np.sort([0, 0, *shares])
  if 0 < next_to < most / _TALL:
    axes.set_ylim(0, 1.25 * next_to)
    bar, common = int(shares.argmax()), int(counts.argmax())
    below = edges[bar] > size / 2
    axes.annotate(
      f"{counts[common] / histogram.num_sequences:.1%} at {common + 1}",
      (edges[bar if below else bar + 1], 1.18 * next_to),
      (-3 if below else 3, 0),
      textcoords="offset points",
      ha="right" if below else "left",
      va="center",
      color=COLOURS[0],
    )
  axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1))
  axes.set_xticks(np.linspace(0, size, 5, dtype=int))
  axes.set_xlim(0, size + 0.5)
  bars = f" (bars of {width})" if width > 1 else ""
  axes.set_xlabel(f"tokens{bars}", fontsize="small")


def speedup_by_depth(path: pathlib.Path, curves: Mapping[int, Mapping[int, float]]):
  """The paper's Figure 10: what deeper packs gain, the more the longer the rows.

  Args:
    path: of the PNG.
    curves: by the maximum length in tokens, the speed-up over padding by the most
      sequences that a pack may hold.
  """
  axes = figure().add_subplot()
  axes.set_xscale("log", base=2)
  for (length, curve), colour in zip(curves.items(), COLOURS, strict=False):
    depths = sorted(curve)
    speedups = [curve[depth] for depth in depths]
    axes.plot(depths, speedups, "o-", color=colour, markersize=4)
    axes.annotate(
      f"{length:,} tokens: {speedups[-1]:.2f}",
      (depths[-1], speedups[-1]),
      (6, 0),
      textcoords="offset points",
      va="center",
      color=colour,
    )
  most = max(depth for curve in curves.values() for depth in curve)
  ticks = [2**k for k in range(most.bit_length())]
  axes.set_xticks(ticks, [str(n) for n in ticks])
  axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
  axes.set_xlim(0.9, 4 * most)
  axes.set(xlabel="most sequences in a pack", ylabel="speed-up over padding")
  deepest = {length: curve[max(curve)] for length, curve in curves.items()}
  short, long = min(deepest), max(deepest)
  save(
    axes,
    path,
    f"Packing by LPFHP is worth {deepest[short]:.2f} at {short:,} tokens and "
    f"{deepest[long]:.2f} at {long:,}",
  )


def residuals(path: pathlib.Path, unweighted: np.ndarray, weighted: np.ndarray):
  """The paper's Figures 7 and 8: what least squares leaves over, r = b - A round(x).

  Args:
    path: of the PNG.
    unweighted: int64[S], sequences by length; below 0 where there are too few of them.
    weighted: the same, with less weight on the shortest.
  """
  drawing = figure()
  drawing.set_size_inches(9, 6)
  panels = drawing.subplots(2, 1, sharex=True, sharey=True)
  for axes, name, residual in zip(
    panels, ("without weights", "with weights"), (unweighted, weighted), strict=True
  ):
    lengths = np.arange(1, residual.size + 1)
    for sign, colour, told in ((1, 1, "left over"), (-1, 0, "missing")):
      shown = np.where(residual * sign > 0, residual, 0)
      label = f"{abs(int(shown.sum())):,} {told}"
      axes.bar(lengths, shown, 1, color=COLOURS[colour], label=label)
    axes.axhline(0, color="grey", linewidth=0.7)
    axes.set_yscale("symlog", linthresh=10)
    axes.set(ylabel="sequences (logarithmic)", xlim=(0, residual.size + 1))
    axes.set_title(name, fontsize="small", loc="left")
    axes.legend(loc="upper center", frameon=False, ncols=2)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
  panels[1].set_xlabel("tokens of a sequence")
  left = [int(np.maximum(residual, 0).sum()) for residual in (unweighted, weighted)]
  save(
    panels[0],
    path,
    f"Rounded least squares leaves {left[0]:,} sequences over, with less weight on the "
    f"shortest {left[1]:,}",
  )
