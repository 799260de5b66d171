"""Chooses the row length, where a longer row packs better but costs more attention."""

from __future__ import annotations

from packing.batches import Cost
from packing.histogram import Histogram
from packing.pack import pack
from packing.problem import MAX_ROW_LENGTH

BERT_BASE = Cost(1.0, 1 / 4608)  # Cost.of_bert, for a width of 768
_STEPS = 16  # row lengths tried from the longest sequence to twice as much
_NEAR = 1.01  # a shorter row is preferred if it is at most this much slower


def choose_row_length(histogram: Histogram, *, cost: Cost = BERT_BASE) -> int:
  """The shortest row that holds the longest sequence and packs well.

  A longer row leaves less padding where a row holds few sequences (section Q of the paper),
  but attention computes all pairs of its tokens. So rows of up to twice the longest
  sequence are packed by LPFHP, and the shortest is chosen that costs at most 1 % more than
  the cheapest. Lengths are rounded up to a multiple of 8, and above 128 of 128, which
  kernels of attention need; the first at most to the maximum sequence length.

  The maximum sequence length of the histogram is only a limit: rows are shorter if no
  sequence is as long.

  Args:
    histogram: the lengths to pack.
    cost: of a token and of a pair of tokens of a row, in or across sequences.

  Returns:
    Tokens of a row, for `pack(histogram, row_length=...)`.

  Example:
    >>> short = [9, 20, 31, 40, 22, 17] * 99
    >>> choose_row_length(Histogram.from_lengths(short, max_sequence_length=512))
    40
  """
  longest = histogram.longest
  first = min(_rounded(longest), histogram.max_sequence_length)
  longer = {_rounded(longest + longest * step // _STEPS) for step in range(_STEPS + 1)}
  rows = [first, *sorted(row for row in longer if first < row <= MAX_ROW_LENGTH)]
  costs = {row: _cost(histogram, row, cost) for row in rows}
  cheapest = min(costs.values())
  return next(row for row, found in costs.items() if found <= cheapest * _NEAR)


def _rounded(length: int) -> int:
  multiple = 8 if length <= 128 else 128
  return -(-length // multiple) * multiple


def _cost(histogram: Histogram, row: int, cost: Cost) -> float:
  """The cost of all rows where attention computes whole rows."""
  plan = pack(histogram, algorithm="lpfhp", row_length=row)
  return plan.num_packs * float(cost.of_squares(row**2, row_length=row))
