"""Table 1: the steps of an epoch, as made and predicted; and those of the paper's Table 3.

References:
  The atom-size paper, appendices A.3 to A.5 and A.9.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from experiments.atom_size.layouts import PAPER_TABLE_3
from experiments.atom_size.perplexities import Found
from experiments.atom_size.runs import UNSHUFFLED
from lab.exhibits import Exhibit, Part, judged, to_the_digit, within
from lab.table import table
from launch.record.parameters import count_parameters
from model import Gpt2Config
from model.models import abstract_model

WORD_TOKENS = 114_400_095  # of an epoch of WikiText-103 (A.5), without end tokens
DOCUMENTS = round(1_810_000 * (1 - 0.5562))  # rows of text less those left out (A.1)
PAPER_BATCHES = {32: 256, 64: 256, 128: 128}
OPTIMAL_TOKENS = 124 / 400 * 8e9  # by Chinchilla's 8 billion for 400 million parameters
SHARES = {"concat": 0.001, "padding": 0.01}  # of the steps, by which they may differ


def predicted_rows(
  lengths: np.ndarray, *, layout: str, atom_size: int, row_length: int
) -> int:
  """The number of rows in an epoch, predicted from the numbers of tokens alone.

  With T tokens, end tokens included, `concat` has ceil(T / S) rows whatever the atoms.
  `padding` has ceil(L / (s - 1)) atoms for a document of L tokens, merged where s < S;
  where s > S, each atom is s / S rows and a tail of t tokens is ceil(t / S).

  Args:
    lengths: int[D]; tokens of each document.
    layout: one of `atoms.LAYOUTS`.
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
  if layout != "padding":
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
      others = layout.kind not in ("concat", "padding")
      if others or layout.loss_on_padding or layout == UNSHUFFLED:
        continue  # the last two have the rows of another layout
      size = layout.tokens(row_length)
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
    f"experiments/atom_size/steps.py).\n\n{recipe}",
  )


def full_size(part: Part) -> Exhibit:
  """The parameters of the paper's model and the steps of its Table 3, computed."""
  config = Gpt2Config.from_size("small", vocab_size=50_257)
  parameters = count_parameters(abstract_model(config, "causal")[1])
  values = [to_the_digit("parameters (millions)", "124", parameters / 1e6)]
  for row_length, paper in PAPER_TABLE_3.items():
    here = paper_steps(row_length)
    for (layout, steps), (printed, _) in zip(here.items(), paper, strict=True):
      name = f"steps of {layout}, rows of {row_length}"
      tolerance = SHARES[layout] * printed
      values.append(within(name, f"{printed:,}", steps, tolerance=tolerance))
  agree = [value.agrees for value in values]
  optimal = [f"{OPTIMAL_TOKENS / n / rows:,.0f}" for n, rows in PAPER_BATCHES.items()]
  return part.exhibit(
    "Table 3, Appendices A.1, A.4 and A.5",
    "The paper's model and its steps, computed",
    f"{sum(map(bool, agree))} of {len(agree)} numbers agree. GPT-2 small with ALiBi has "
    f"{parameters:,} parameters, of any row length.",
    agreement="within a tolerance",
    claim="A GPT-2 with 124 million parameters; in two epochs padding takes 1.13 to 1.46 "
    "times the steps of concat.",
    values=values,
    text=f"Nothing is trained: {WORD_TOKENS:,} word tokens an epoch and {DOCUMENTS:,} "
    "documents, the rows of WikiText-103 that are not left out, determine the steps of "
    "concat. Those of padding are as if the lengths of tails were spread evenly. By "
    f"Chinchilla's table (A.5) this model needs {OPTIMAL_TOKENS / 1e9:.2f} billion tokens: "
    f"{', '.join(optimal)} steps in rows of {', '.join(map(str, PAPER_BATCHES))}.",
  )


def paper_steps(row_length: int) -> dict[str, float]:
  """The steps of the paper's two epochs, by layout, with atoms of a row.

  A document ends anywhere in its last row of padding, so that on average (S - 2) / 2 of
  the S - 1 places for text are empty there.

  Args:
    row_length: S, in tokens; a key of `PAPER_BATCHES`.

  Example:
    >>> {layout: round(steps) for layout, steps in paper_steps(64).items()}
    {'concat': 14063, 'padding': 17275}
  """
  empty = DOCUMENTS * (row_length - 2) / 2
  rows = {
    "concat": (WORD_TOKENS + DOCUMENTS) / row_length,
    "padding": (WORD_TOKENS + empty) / (row_length - 1),
  }
  return {layout: 2 * x / PAPER_BATCHES[row_length] for layout, x in rows.items()}
