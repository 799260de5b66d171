"""Distributions of lengths: Figures 1, 9 and 11 to 14, and section 2 of the paper."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

import packing
from experiments.packing_paper.figure_10_longer_rows import UNCHECKED, theoretical_speedup
from lab.exhibits import Exhibit, Part, Value, to_the_digit
from lab.pictures import COLOURS, PERCENT, figure, save
from lab.table import table

# By figure: what it shows, the histograms, what the paper says.
GROUPS = {
  "Figure 1": (
    "Wikipedia",
    ("wikipedia_128", "wikipedia_384", "wikipedia_512"),
    "At 512 tokens half of all tokens are padding; without it training is twice as fast.",
  ),
  "Figure 9": (
    "Wikipedia, longer rows too",
    ("wikipedia_128", "wikipedia_384", "wikipedia_512", "wikipedia_1024", "wikipedia_2048"),
    "The longer the rows, the larger the share of padding.",
  ),
  "Figure 11": ("SQuAD 1.1", ("squad_1_1_384",), "Without padding 2.232 times as fast."),
  "Figure 1, QM9": (
    "QM9's molecules, in atoms",
    ("qm9_29",),
    "Without padding molecules train 1.6 times as fast.",
  ),
  "Figure 12": (
    "GLUE: six tasks",
    tuple(f"glue_{task}_128" for task in ("cola", "sst2", "mrpc", "stsb", "rte", "wnli")),
    "Sequences of GLUE are far shorter than 128 tokens.",
  ),
}
ANALYZE = "python -m packing analyze --lengths FILE.npy --max-sequence-length"
# By name: title, claim, row length, and the paper's numbers.
MISSING: dict[str, tuple[str, str, int, dict[str, str]]] = {
  "Figures 1 and 12, the rest of GLUE": (
    "QQP and MNLI of GLUE",
    "The other tasks of GLUE are as short.",
    128,
    {},
  ),
  "Figures 1 and 13": (
    "LibriSpeech, audio and text",
    "Speech is padded by 38 %, and packs less well than text.",
    330,
    {
      "audio: theoretical speed-up": "1.6",
      "audio: padding (%)": "38",
      "audio: speed-up by packing": "1.3",
      "audio: efficiency by packing (%)": "80",
      "audio: row length for almost perfect packing": "457",
      "audio: sequences a pack in such rows": "8",
      "text: efficiency by packing (%)": "99.99",
      "text: speed-up by packing": "2.24",
    },
  ),
  "Figure 14": (
    "Abstracts of PubMed, in characters",
    "Longer rows of abstracts have more padding.",
    4000,
    {
      f"speed-up at {length:,} characters": speedup
      for length, speedup in ((1000, "1.9"), (2000, "2"), (3000, "3"), (4000, "4"))
    },
  ),
}
SPEEDUPS = {"wikipedia_128": "1.2", "wikipedia_384": "1.7", "qm9_29": "1.6"}  # section 2
_BARS = 128  # of a histogram, at most
_COLUMNS = 3
_TALL = 3  # times the next bar: such a bar is cut off, and its share written beside it


def _values(name: str, histogram: packing.Histogram) -> list[Value]:
  """The numbers that sections 2 and K print for a histogram."""
  speedup = theoretical_speedup(histogram)
  full = 100 * histogram.counts[-1] / histogram.num_sequences
  if name == "squad_1_1_384":
    return [
      to_the_digit("SQuAD: theoretical speed-up", "2.232", speedup),
      to_the_digit("SQuAD: of the longest length (%)", "1.2", full),
    ]
  if name in SPEEDUPS:
    return [to_the_digit(f"{name}: theoretical speed-up", SPEEDUPS[name], speedup)]
  if name != "wikipedia_512":
    return []
  tokens = histogram.num_sequences * histogram.max_sequence_length
  padding = tokens - histogram.num_tokens
  shortest = int(np.flatnonzero(histogram.counts)[0]) + 1
  billion = "8.335 cut off"
  cut = f"{histogram.counts[-1]:,} of {histogram.num_sequences:,} are {full:.2f} %"
  return [
    to_the_digit("wikipedia_512: theoretical speed-up", "2.0", speedup),
    to_the_digit("the same, section 4.1", "2.001", speedup),
    to_the_digit("of the longest length (%)", "23.5", full, note=cut),
    to_the_digit("shortest (tokens)", "5", shortest),
    to_the_digit("tokens with padding (billion)", "8.33", tokens / 1e9, note=billion),
    to_the_digit("of them padding (billion)", "4.17", padding / 1e9),
  ]


def exhibits(part: Part) -> list[Exhibit]:
  """An exhibit for each figure, and for those whose data is not at hand."""
  made = [_figure(part, name, *group) for name, group in GROUPS.items()]
  return made + [
    part.not_run(
      name,
      title,
      "The data is not at hand, and its histogram was never published.",
      claim=claim,
      command=f"{ANALYZE} {length}",
      printed=printed,
    )
    for name, (title, claim, length, printed) in MISSING.items()
  ]


def _figure(part: Part, name: str, title: str, names: Sequence[str], claim: str) -> Exhibit:
  histograms = {name: packing.load_histogram(name) for name in names}
  picture = f"{name.lower().replace(',', '').replace(' ', '_')}.png"
  draw(part.folder / picture, histograms)
  speedups = {name: theoretical_speedup(h) for name, h in histograms.items()}
  (least, low), (most, high) = (f(speedups.items(), key=lambda x: x[1]) for f in (min, max))
  span = f"{low:.2f} ({least}) to {high:.2f} ({most})" if len(names) > 1 else f"{low:.3f}"
  finding = f"Without padding training could be {span} times as fast."
  if unchecked := [name for name in names if name in UNCHECKED]:
    finding += f" {' and '.join(unchecked)} are known only from the paper's listing."
  header = ["histogram", "sequences", "real tokens", "theoretical speed-up"]
  rows = [
    [name, f"{h.num_sequences:,}", f"{h.num_tokens:,}", f"{speedups[name]:.3f}"]
    for name, h in histograms.items()
  ]
  values = [value for name, h in histograms.items() for value in _values(name, h)]
  return part.exhibit(
    name,
    f"Lengths of {title}",
    finding,
    agreement="to the digit",
    claim=claim,
    values=values if name != "Figure 9" else [],
    pictures=[picture],
    text=table(header, rows),
  )


def draw(path: pathlib.Path, histograms: Mapping[str, packing.Histogram]):
  """Draws the share of each length; each histogram, by name, has its own panel."""
  columns = min(len(histograms), _COLUMNS)
  rows = -(-len(histograms) // columns)
  drawing = figure(9, max(4.5, 2.7 * rows))
  speedups = [theoretical_speedup(histogram) for histogram in histograms.values()]
  for place, (name, histogram) in enumerate(histograms.items()):
    axes = drawing.add_subplot(rows, columns, place + 1)
    _distribution(axes, histogram, unit="atoms" if name == "qm9_29" else "tokens")
    axes.set_title(f"{name}: {speedups[place]:.3f} times", fontsize="small")
    if place % columns == 0:
      axes.set_ylabel("share of the sequences")
  span = " to ".join(dict.fromkeys(f"{f(speedups):.2f}" for f in (min, max)))
  title = f"Lengths, and the theoretical speed-up: without padding {span} times as fast"
  save(drawing, path, title)


def _distribution(axes, histogram: packing.Histogram, *, unit: str):
  size, counts = histogram.max_sequence_length, histogram.counts
  width = -(-size // _BARS)
  # The last bar ends at the longest length, where truncated sequences stand out.
  edges = np.arange(size, -width, -width)[::-1] + 0.5
  sums, _ = np.histogram(np.arange(1, size + 1), edges, weights=counts)
  shares = sums / histogram.num_sequences
  axes.stairs(shares, edges, fill=True, color=COLOURS[0])
  *_, next_to, most = np.sort([0, 0, *shares])
  if 0 < next_to < most / _TALL:
    axes.set_ylim(0, 1.25 * next_to)
    bar, common = int(shares.argmax()), int(counts.argmax())
    label = f" {counts[common] / histogram.num_sequences:.1%} at {common + 1} "
    right = edges[bar] > size / 2
    x, side = (edges[bar], "right") if right else (edges[bar + 1], "left")
    axes.text(x, 1.18 * next_to, label, ha=side, va="center", color=COLOURS[0])
  axes.yaxis.set_major_formatter(PERCENT(1))
  axes.set_xticks(np.linspace(0, size, 5, dtype=int))
  axes.set_xlim(0, size + 0.5)
  bars = f" (bars of {width})" if width > 1 else ""
  axes.set_xlabel(f"{unit}{bars}", fontsize="small")
