"""Distributions of lengths: Figures 1, 9 and 11 to 14, and section 2 of the paper.

python -m experiments.lengths
"""

from __future__ import annotations

import pathlib
import sys

import numpy as np

import packing
from experiments.lab import part as parts
from experiments.lab.exhibits import Exhibit, Value, to_the_digit
from experiments.lab.report import table
from experiments.packing_paper.figure_10_longer_rows import theoretical_speedup
from experiments.packing_paper.length_pictures import length_distributions

COMMAND = "python -m experiments.lengths"

GROUPS = {
  "Figure 1": ("Wikipedia", ("wikipedia_128", "wikipedia_384", "wikipedia_512")),
  "Figure 9": (
    "Wikipedia, longer rows too",
    ("wikipedia_128", "wikipedia_384", "wikipedia_512", "wikipedia_1024", "wikipedia_2048"),
  ),
  "Figure 11": ("SQuAD 1.1", ("squad_1_1_384",)),
  "Figure 12": ("GLUE: CoLA and SST-2", ("glue_cola_128", "glue_sst2_128")),
}
# Nothing but Listing 6, as transcribed, to hold them against: a digit may be wrong.
UNCHECKED = ("wikipedia_1024", "wikipedia_2048")
ANALYZE = "python -m packing analyze --lengths FILE.npy --max-sequence-length"
# Name, title, command; and what the paper says of them.
MISSING: tuple[tuple[str, str, str, dict[str, str]], ...] = (
  ("Figures 1 and 12, the rest of GLUE", "Six tasks of GLUE", f"{ANALYZE} 128", {}),
  (
    "Figures 1 and 13",
    "LibriSpeech, audio and text",
    f"{ANALYZE} 330",
    {
      "audio: theoretical speed-up": "1.6",
      "audio: padding (%)": "38",
      "audio: speed-up by packing": "1.3",
      "audio: efficiency by packing (%)": "80",
      "audio: row length for almost perfect packing": "457",
      "audio: sequences a pack in such rows": "8",
    },
  ),
  (
    "Figure 1, QM9",
    "Sizes of molecules",
    f"{ANALYZE} 27",
    {"theoretical speed-up": "1.6"},
  ),
  (
    "Figure 14",
    "Abstracts of PubMed, in characters",
    f"{ANALYZE} 4000",
    {
      f"speed-up at {length:,} characters": speedup
      for length, speedup in ((1000, "1.9"), (2000, "2"), (3000, "3"), (4000, "4"))
    },
  ),
)


def _values(name: str, histogram: packing.Histogram) -> list:
  """What section 2 and K print of one histogram."""
  speedup = theoretical_speedup(histogram)
  full = 100 * histogram.counts[-1] / histogram.num_sequences
  if name == "squad_1_1_384":
    return [
      to_the_digit("SQuAD: theoretical speed-up", "2.232", speedup),
      to_the_digit("SQuAD: of the longest length (%)", "1.2", full),
    ]
  if name != "wikipedia_512":
    printed = {"wikipedia_128": "1.2", "wikipedia_384": "1.7"}.get(name)
    return (
      [to_the_digit(f"{name}: theoretical speed-up", printed, speedup)] if printed else []
    )
  tokens = histogram.num_sequences * histogram.max_sequence_length
  shortest = int(np.flatnonzero(histogram.counts)[0]) + 1
  return [
    to_the_digit("wikipedia_512: theoretical speed-up", "2.0", speedup),
    to_the_digit("the same, section 4.1", "2.001", speedup),
    to_the_digit(
      "of the longest length (%)",
      "23.5",
      full,
      note=f"{histogram.counts[-1]:,} of {histogram.num_sequences:,} are {full:.2f} %",
    ),
    to_the_digit("shortest (tokens)", "5", shortest),
    to_the_digit(
      "tokens with padding (billion)", "8.33", tokens / 1e9, note="8.335 cut off"
    ),
    to_the_digit(
      "of them padding (billion)", "4.17", (tokens - histogram.num_tokens) / 1e9
    ),
  ]


def exhibits(folder: pathlib.Path, *, quick: bool = False) -> list[Exhibit]:
  """One for each figure, quick or not; and those whose data is not at hand."""
  del quick
  made = []
  for figure, (title, names) in GROUPS.items():
    histograms = {name: packing.load_histogram(name) for name in names}
    picture = folder / f"{figure.lower().replace(' ', '_')}.png"
    length_distributions(picture, histograms)
    speedups = {name: theoretical_speedup(h) for name, h in histograms.items()}
    in_order = sorted(speedups.items(), key=lambda x: x[1])
    least, most = in_order[0], in_order[-1]
    span = f"{least[1]:.2f} ({least[0]}) to {most[1]:.2f} ({most[0]})"
    rows = [
      [name, f"{h.num_sequences:,}", f"{h.num_tokens:,}", f"{speedups[name]:.3f}"]
      for name, h in histograms.items()
    ]
    unchecked = [name for name in names if name in UNCHECKED]
    caveat = f" Of {' and '.join(unchecked)} only the text's listing is known." * bool(
      unchecked
    )
    made.append(
      Exhibit(
        name=figure,
        title=f"Lengths of {title}",
        agreement="to the digit",
        finding="Without padding training could be "
        f"{span if len(names) > 1 else f'{least[1]:.3f}'} times as fast." + caveat,
        command=COMMAND,
        values=[value for name, h in histograms.items() for value in _values(name, h)]
        if figure != "Figure 9"
        else [],
        pictures=[picture.name],
        text=table(
          ["histogram", "sequences", "real tokens", "theoretical speed-up"],
          rows,
          right=(1, 2, 3),
        ),
      )
    )
  made += [
    Exhibit(
      name=name,
      title=title,
      agreement="not run here",
      finding="The data is not at hand, and its histogram was never published.",
      command=command,
      values=[Value(what, printed, "not run") for what, printed in values.items()],
    )
    for name, title, command, values in MISSING
  ]
  return made


if __name__ == "__main__":
  sys.exit(parts.main(__doc__, exhibits, name="lengths"))
