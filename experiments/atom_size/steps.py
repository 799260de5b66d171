"""Table 1: the steps of an epoch, predicted from the token counts and as made.

References:
  The atom-size paper, appendices A.3 and A.9.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from experiments.atom_size.perplexities import Found
from lab.exhibits import Exhibit, Part, judged
from lab.table import table


def predicted_rows(
  lengths: np.ndarray, *, layout: str, atom_size: int, row_length: int
) -> int:
  """The number of rows in an epoch, predicted from the numbers of tokens alone.

  With T tokens, end tokens included, `concat` has ceil(T / S) rows whatever the atoms.
  `padding` has ceil(L / (s - 1)) atoms for a document of L tokens, merged where s < S;
  where s > S, each atom is s / S rows and a tail of t tokens is ceil(t / S).

  Args:
    lengths: int[D]; tokens of each document.
    layout: "concat" or "padding".
    atom_size: s, in tokens.
    row_length: S, in tokens.

  Example: a document of 130 tokens and one of 35.

    >>> lengths = np.array([130, 35])
    >>> predicted_rows(lengths, layout="concat", atom_size=64, row_length=64)
    3
    >>> [
    ...   predicted_rows(lengths, layout="padding", atom_size=s, row_length=64)
    ...   for s in (16, 64)
    ... ]
    [3, 4]

  References:
    The atom-size paper, appendices A.3 and A.9.
  """
  lengths = np.asarray(lengths, np.int64)
  if layout == "concat":
    return -(-int((lengths + 1).sum()) // row_length)
  full_atoms, tails = np.divmod(lengths, atom_size - 1)
  if atom_size <= row_length:
    num_atoms = int((full_atoms + (tails > 0)).sum())
    return -(-num_atoms * atom_size // row_length)
  return int((full_atoms * (atom_size // row_length) - (-tails // row_length)).sum())


def steps_an_epoch(
  part: Part,
  lengths: np.ndarray,
  row_lengths: Mapping[int, Found],
  *,
  tokens: int,
  recipe: str,
) -> Exhibit:
  """Whether the loaders make as many steps an epoch as the token counts predict.

  `tokens` is their number in a step; `recipe` describes text, model and training.
  """
  rows = []
  for row_length, found in row_lengths.items():
    for layout, runs in found.items():
      if layout.kind == "packed" or layout.loss_on_padding:
        continue
      size = round(layout.atom * row_length)
      predicted = predicted_rows(
        lengths, layout=layout.kind, atom_size=size, row_length=row_length
      )
      made = runs[0]["steps_per_epoch"]
      name = f"rows of {row_length}, {layout.kind}, atoms of {size}"
      rows.append((name, predicted / (tokens // row_length), made))
  text = f"{lengths.size:,} documents with {int((lengths + 1).sum()):,} tokens"
  shown = [[name, *(f"{x:,.3f}" for x in steps)] for name, *steps in rows]
  agree = sum(predicted == made for _, predicted, made in shown)
  return part.exhibit(
    "Table 1, Appendices A.3 and A.9",
    "Steps of an epoch, predicted from the token counts and as made",
    f"{agree} of {len(rows)} layouts have the steps an epoch that {text}, end tokens "
    "included, predict.",
    agreement="to the digit",
    claim="The number of tokens, the layout and the atom determine the steps of an epoch.",
    statements=[
      judged(
        "The loaders make as many steps an epoch as the paper's method predicts",
        agree == len(rows),
        f"{agree} of {len(rows)} layouts, to three digits",
      )
    ],
    text=f"{table(['', 'predicted', 'made'], shown)}\n\nPredictions are "
    "those of the paper's method for this text (`predicted_rows` in "
    "experiments/atom_size/steps.py). The paper's own steps of concat, 14,060, 7,029 "
    "and 7,028 an epoch, need 115.1 to 115.2 million tokens at its batches, more than the "
    f"114,400,095 'word tokens' that it names.\n\n{recipe}",
  )
