"""How many ways there are to fill a row: Table 4, sections F.4.1 and G."""

from __future__ import annotations

import math

import numpy as np
import scipy.optimize

import packing
from lab.exhibits import Exhibit, Part, Value, judged, to_the_digit, within
from lab.plans import cached_plan
from lab.table import table
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
# Section F.4.1: each strategy listed this many times, for these lengths, at depth 3.
COPIES, REPEATED = 6, ("glue_rte_128", "glue_mrpc_128")


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


def usage(lengths: packing.Histogram, *, copies: int) -> np.ndarray:
  """float64[P, copies]; how often least squares uses each copy of each strategy.

  Depth 3, with all residuals weighted alike.
  """
  matrix = np.repeat(packing_matrix(lengths.max_sequence_length, 3), copies, axis=1)
  solution, _ = scipy.optimize.nnls(matrix.astype(float), lengths.counts.astype(float))
  return solution.reshape(-1, copies)


def rounding_error(lengths: packing.Histogram, used: np.ndarray) -> int:
  """Sequences left over and slots left empty after each copy's weight is rounded."""
  rounded = np.rint(used).astype(np.int64).sum(axis=1)
  matrix = packing_matrix(lengths.max_sequence_length, 3)
  return int(np.abs(lengths.counts - matrix @ rounded).sum())


def section_f41(part: Part) -> Exhibit:
  """The exhibit of strategies that are listed six times."""
  rows, divided, worse = [], [], []
  for name in REPEATED:
    lengths = packing.load_histogram(name)
    once, copied = (usage(lengths, copies=n) for n in (1, COPIES))
    spread = np.repeat(once / COPIES, COPIES, axis=1)  # as good a solution, by the paper
    errors = [rounding_error(lengths, used) for used in (once, copied, spread)]
    used = int((copied.sum(axis=1) > 0).sum())
    shared = int(((copied > 0).sum(axis=1) > 1).sum())
    divided.append(shared > 0)
    worse.append(errors[2] > errors[0])
    rows.append([name, f"{used}", f"{shared}", *(f"{x:,}" for x in errors)])
  header = ["lengths", "strategies used", "by more than one copy", "error, listed once"]
  header += [f"listed {COPIES} times, as solved", "weights spread evenly over the copies"]
  return part.exhibit(
    "Section F.4.1",
    "Strategies that are listed six times",
    "The solver gives all of a strategy's weight to one copy, so rounding is not "
    "disturbed; weights that are spread evenly over the copies round worse.",
    claim="A strategy that is listed six times gets six weights of a sixth each, or any "
    "others, which conflicts with rounding.",
    statements=[
      judged(
        f"Listed {COPIES} times, a strategy's weight is divided among its copies",
        all(divided),
        "; ".join(f"{row[0]}: {row[2]} of the {row[1]} used strategies" for row in rows)
        + "; SciPy's solver adds columns one at a time, and then a copy gains nothing",
      ),
      judged(
        "Weights that are divided evenly among the copies round worse",
        all(worse),
        "; ".join(f"{row[0]}: error {row[3]} and {row[5]}" for row in rows),
      ),
    ],
    text=f"{table(header, rows)}\n\nThe error counts the sequences that rounding leaves "
    "over and the slots that it leaves empty. That the solution is slower to find is not "
    "tested.",
  )


def exhibits(part: Part) -> list[Exhibit]:
  """All exhibits; they take seconds."""
  return [table_4(part), section_g(part), section_f41(part)]
