"""How many ways there are to fill a row: Table 4, sections F.4.1 and G."""

from __future__ import annotations

import math

import numpy as np

from lab.exhibits import Exhibit, Part, Value, judged, to_the_digit, within
from lab.plans import cached_plan
from packing.algorithms.nnls import count_strategies, packing_matrix

# Columns as the paper has them.
TABLE_4 = np.array(
  [
    [2, 1, 1, 1, 0, 0, 0, 0, 0, 0],
    [0, 1, 0, 0, 2, 1, 1, 0, 0, 0],
    [0, 0, 1, 0, 0, 2, 0, 1, 0, 0],
    [0, 0, 1, 0, 1, 0, 0, 0, 2, 0],
    [0, 1, 0, 0, 0, 0, 0, 1, 0, 0],
    [1, 0, 0, 0, 0, 0, 1, 0, 0, 0],
    [0, 0, 0, 1, 0, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
  ]
)

# SPFHP's strategies are counted for these lengths, at each of these depths.
LENGTHS = (*(f"wikipedia_{n}" for n in (128, 384, 512, 1024, 2048)), "squad_1_1_384")
DEPTHS = (1, 2, 3, 4, 8, None)


def formula_at_3(row_length: int) -> int:
  """Ways at depth 3, equation (19): row^2 / 12 with three, row / 2 with two, 1 with one."""
  return row_length**2 // 12 + row_length // 2 + 1


def formula_of_4(row_length: int) -> float:
  """Ways with exactly four sequences, by the approximation of equation (20)."""
  return row_length * (row_length + 4) * (2 * row_length + 1) / 288


def table_4(part: Part) -> Exhibit:
  """The exhibit of the packing matrix of rows of 8 tokens, with columns in any order."""
  ours, printed = packing_matrix(8, 3).T.tolist(), TABLE_4.T.tolist()
  values = []
  for column in printed:
    name = " + ".join(map(str, np.repeat(np.arange(1, 9), column)))
    there = column in ours
    values.append(Value(name, "a column", "a column" if there else "none", "", there))
  values.append(to_the_digit("columns", "10", len(ours)))
  full = [column for column in ours if column not in printed]
  return part.exhibit(
    "Table 4",
    "The packing matrix for 8 tokens and depth 3",
    f"The {len(ours)} ways to fill 8 tokens are the paper's columns, with "
    f"{len(full)} others. The last column is a row that one sequence fills; it has 8 "
    "tokens, not six as the caption says.",
    agreement="to the digit",
    claim="There are 10 ways to fill a row of 8 tokens with at most 3 sequences.",
    values=values,
  )


def section_g(part: Part) -> Exhibit:
  """The exhibit of the numbers of strategies."""
  at_3, at_4 = (count_strategies(512, depth) for depth in (3, 4))
  long = count_strategies(2048, 3)
  slip = f"a slip: by its own formula (19) {formula_at_3(2048):,}"
  values = [
    to_the_digit("strategies at depth 3, 512 tokens", "22,102", at_3),
    to_the_digit("the same by equation (19)", "22,102", formula_at_3(512)),
    to_the_digit("numbers in its packing matrix", "11,316,224", 512 * at_3),
    within("more at depth 4 (thousand)", "940", (at_4 - at_3) / 1e3, tolerance=3),
    within("the same by (20) (thousand)", "940", formula_of_4(512) / 1e3, tolerance=1),
    to_the_digit("strategies at depth 3, 2,048 tokens", "350,540", long, note=slip),
  ]
  in_any_order = sum(math.comb(511, number) for number in range(3))  # that add up to 512
  used = {
    name: max(cached_plan(part, name, "spfhp", d).num_strategies for d in DEPTHS)
    for name in LENGTHS
  }
  return part.exhibit(
    "Section G",
    "Numbers of strategies",
    f"Depth 3 has {at_3:,} strategies. Depth 4 has {at_4 - at_3:,} more, for which least "
    "squares runs out of memory; `optimal` lists only the strategies that it needs.",
    agreement="to the digit",
    claim="At 512 tokens depth 3 has 22,102 strategies, and depth 4 has 940 thousand more.",
    values=values,
    statements=[
      judged(
        "Lists in sorted order are about a sixth of all (F.4.1)",
        round(in_any_order / at_3) == 6,
        f"{in_any_order:,} to {at_3:,}, depth 3 at 512 tokens: {in_any_order / at_3:.2f}",
      ),
      judged(
        "SPFHP uses at most as many strategies as a row has tokens (3.1.1, G.2)",
        all(number <= int(name.split("_")[-1]) for name, number in used.items()),
        ", ".join(f"{number:,} on {name}" for name, number in used.items())
        + f"; the most of {len(DEPTHS)} depths",
      ),
    ],
  )


def exhibits(part: Part) -> list[Exhibit]:
  """Both exhibits; they take seconds."""
  return [table_4(part), section_g(part)]
