"""Which rows the atom-size paper leaves out, and how long rows are: A.1 and Figure 4.

A row is here a line of text.

The validation set of WikiText-2 is that of WikiText-103, which the paper trains on: both
have 213,886 words. Here unknown words are `<unk>`; the paper has the raw text.
"""

from __future__ import annotations

import pathlib

import numpy as np

from lab.exhibits import Exhibit, Part, judged, within
from lab.table import table
from pipeline.tokenizer import Tokenizer

PAPER = ("53.86", "2.33", "208,893")  # rows and words left out, in percent; words that stay
LEAST = 50  # words of a row, as the paper says; or characters
SHORT = 200  # tokens; most rows are no longer, Figure 4
SAMPLE = 10_000  # rows, or all if there are fewer


def filtering(part: Part, path: pathlib.Path) -> Exhibit:
  """The exhibit of what is left out by words, as the paper says, or by characters.

  Args:
    part: of the study.
    path: WikiText-2's valid.txt, a row a line.
  """
  rows = _rows(path)
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
  shares = [
    [f"{least} to {most}", f"{100 * ((words >= least) & (words <= most)).mean():.2f}"]
    for least, most in ((0, 0), (1, 49), (50, 100), (101, 200), (201, words.max()))
  ]
  by_words, by_characters = (all(x.agrees for x in values[i : i + 3]) for i in (0, 3))
  are = {True: "are", False: "are not"}
  return part.exhibit(
    "Section A.1",
    "Rows that are left out of WikiText",
    f"The paper's shares {are[by_words]} those of rows with fewer than {LEAST} words, "
    f"and {are[by_characters]} those of rows with at most {LEAST} characters.",
    agreement="within a tolerance",
    claim=f"Rows with fewer than {LEAST} words are left out: 53.86 % of the rows of the "
    "validation set, 2.33 % of its words.",
    values=values,
    statements=[
      judged(
        f"The printed numbers are those of rows with at most {LEAST} characters, not of "
        f"rows with fewer than {LEAST} words",
        by_characters and not by_words,
        f"within their tolerance are {sum(bool(x.agrees) for x in values[3:])} of 3 by "
        f"characters and {sum(bool(x.agrees) for x in values[:3])} of 3 by words",
      )
    ],
    text=f"{table(['words of a row', 'rows (%)'], shares)}\n\nThe validation "
    f"set of WikiText-2, {total:,} words, which is that of WikiText-103; here with `<unk>` "
    "for unknown words, so that rows have other lengths in characters.",
  )


def row_lengths(part: Part, path: pathlib.Path, tokenizer: Tokenizer) -> Exhibit:
  """The exhibit of Figure 4: tokens of rows that are trained on, short ones included.

  Args:
    part: of the study.
    path: the text, a row a line.
    tokenizer: of the study.
  """
  rows = _rows(path)
  chosen = np.random.default_rng(0).permutation(len(rows))[:SAMPLE]
  ids = tokenizer.encode([rows[number] for number in chosen])
  tokens = np.array([len(row) for row in ids])
  short = 100 * float((tokens <= SHORT).mean())
  blank = 100 * float(np.mean([not rows[number].strip() for number in chosen]))
  shares = [
    [f"{least:,} to {most:,}", f"{100 * ((tokens >= least) & (tokens <= most)).mean():.2f}"]
    for least, most in ((0, 50), (51, 100), (101, SHORT), (SHORT + 1, 400), (401, 10**4))
  ]
  return part.exhibit(
    "Figure 4",
    "Tokens of training rows",
    f"Of {tokens.size:,} rows that are trained on, before short ones are left out, "
    f"{short:.1f} % have at most {SHORT} tokens; {blank:.1f} % are blank.",
    claim=f"Most rows have 0 to {SHORT} tokens.",
    statements=[
      judged(
        f"Most rows of the training text have at most {SHORT} tokens",
        short > 50,
        f"{short:.1f} % of {tokens.size:,} rows, counted",
      )
    ],
    text=f"{table(['tokens of a row', 'rows (%)'], shares)}\n\nThe paper takes {SAMPLE:,} "
    "random rows of WikiText-103, in tokens of GPT-2. This is the text that the study "
    f"trains on, {len(rows):,} rows, in tokens of its own BPE of "
    f"{len(tokenizer.vocabulary):,}, which are shorter.",
  )


def _rows(path: pathlib.Path) -> list[str]:
  return path.read_text().removesuffix("\n").split("\n")
