"""What shuffling is worth: rows in the order of the text, beside shuffled atoms of a row.

References:
  The atom-size paper, introduction and A.3.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from experiments.atom_size.atom_sizes import MARGIN
from experiments.atom_size.perplexities import Found, held_out, mean_nats, nats_of
from experiments.atom_size.runs import CONCAT, UNSHUFFLED
from lab.exhibits import Exhibit, Part
from lab.statistics import larger, mean_and_sd
from lab.table import table


def unshuffled(part: Part, row_lengths: Mapping[int, Found]) -> Exhibit:
  """The exhibit of the held-out perplexity with and without a shuffle."""
  rows, statements, apart = [], [], []
  for row_length, found in row_lengths.items():
    if UNSHUFFLED not in found:
      continue
    held = {x: [held_out(run) for run in found[x]] for x in (CONCAT, UNSHUFFLED)}
    nats = nats_of(held)
    apart.append(
      f"{np.mean(np.subtract(nats[UNSHUFFLED], nats[CONCAT])):+.3f} (rows of {row_length})"
    )
    statements.append(
      larger(
        f"Rows of {row_length}: without a shuffle the held-out perplexity is higher",
        nats[UNSHUFFLED],
        nats[CONCAT],
        margin=MARGIN,
      )
    )
    for layout, name in ((CONCAT, "shuffled"), (UNSHUFFLED, "in the order of the text")):
      last_epoch = np.exp([mean_nats(run) for run in found[layout]])
      cells = [mean_and_sd(last_epoch, 2), mean_and_sd(held[layout], 2)]
      rows.append([f"{row_length}", name, *cells])
  return part.exhibit(
    "Introduction and A.3, shuffling",
    "concat in the order of the text, and with shuffled atoms of a row",
    f"Without a shuffle the held-out loss is higher by these nats: {', '.join(apart)}.",
    claim="Shuffling removes the order of the text, and so a bias of the model.",
    statements=statements,
    text=table(["rows of", "rows are", "last epoch", "held out"], rows, left=[1])
    + "\n\nPerplexities; the paper prints none without a shuffle. Without it, the rows of "
    "concat come in the order of the text in each epoch, so a step has consecutive rows.",
  )
