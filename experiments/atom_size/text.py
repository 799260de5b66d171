"""Which rows the atom-size paper leaves out: its section A.1 and Figure 4, on WikiText-2.

A row is here a line of text.

The validation set of WikiText-2 is that of WikiText-103, which the paper trains on: both
have 213,886 words. Here unknown words are `<unk>`; the paper has the raw text.
"""

from __future__ import annotations

import pathlib

import numpy as np

from lab.exhibits import Exhibit, Part, judged, within
from lab.table import table

PAPER = ("53.86", "2.33", "208,893")  # rows and words left out, in percent; words that stay
LEAST = 50  # words of a row, as the paper says; or characters
SHORT = 200  # most rows are no longer, Figure 4


def filtering(part: Part, path: pathlib.Path) -> Exhibit:
  """The exhibit of what is left out by words, as the paper says, or by characters.

  Args:
    part: of the study.
    path: WikiText-2's valid.txt, a row a line.
  """
  rows = path.read_text().removesuffix("\n").split("\n")
  words = np.array([len(row.split()) for row in rows])
  characters = np.array([len(row) for row in rows])
  total = int(words.sum())
  values = []
  for name, left_out in (
    (f"fewer than {LEAST} words", words < LEAST),
    (f"at most {LEAST} characters", characters <= LEAST),
  ):
    dropped = int(words[left_out].sum())
    rate, share = 100 * float(left_out.mean()), 100 * dropped / total
    values += [
      within(f"rows of {name} (%)", PAPER[0], rate, tolerance=0.1),
      within(f"words in rows of {name} (%)", PAPER[1], share, tolerance=0.1),
      within(f"words without rows of {name}", PAPER[2], total - dropped, tolerance=209),
    ]
  short = 100 * float((words <= SHORT).mean())
  shares = [
    [f"{least} to {most}", f"{100 * ((words >= least) & (words <= most)).mean():.2f}"]
    for least, most in ((0, 0), (1, 49), (50, 100), (101, SHORT), (SHORT + 1, words.max()))
  ]
  by_words, by_characters = (all(x.agrees for x in values[i : i + 3]) for i in (0, 3))
  are = {True: "are", False: "are not"}
  return part.exhibit(
    "Section A.1 and Figure 4",
    "Rows that are left out of WikiText",
    f"The paper's shares {are[by_words]} those of rows with fewer than {LEAST} words, "
    f"and {are[by_characters]} those of rows with at most {LEAST} characters.",
    agreement="within a tolerance",
    claim=f"Rows with fewer than {LEAST} words are left out: 53.86 % of the rows of the "
    "validation set, 2.33 % of its words. Most rows are short.",
    values=values,
    statements=[
      judged(
        f"Most rows have at most {SHORT} words",
        short > 50,
        f"{short:.1f} % of {len(rows):,} rows, counted",
      )
    ],
    text=f"{table(['words of a row', 'rows (%)'], shares)}\n\nThe validation "
    f"set of WikiText-2, {total:,} words, which is that of WikiText-103; here with `<unk>` "
    "for unknown words, so that rows have other lengths in characters. The paper counts "
    "tokens in Figure 4, of 10,000 rows of the training set.",
  )
