"""What padding and truncation lose without packing: sections C and J, and the 2021 version.

All numbers follow from the built-in histograms of Wikipedia.
"""

from __future__ import annotations

import math

import numpy as np

import packing
from lab.exhibits import Exhibit, Part, Value, within
from lab.plans import cached_plan
from lab.statistics import spread_of
from lab.table import table

PHASES = {128: 900_000, 512: 100_000}  # steps for each row length
LONGEST = 512
SHORTENED = 0.5  # of the sequences, at most, section J
ROWS = 256  # of a batch


def two_phases(part: Part) -> Exhibit:
  """The exhibit of the padding in BERT's two phases, section C."""
  shares = {}
  for length in PHASES:
    histogram = packing.load_histogram(f"wikipedia_{length}")
    tokens = histogram.num_sequences * length
    shares[length] = 100 * (tokens - histogram.num_tokens) / tokens
  steps = np.array(list(PHASES.values()), float)
  padding = np.array(list(shares.values()))
  of_steps = float(np.average(padding, weights=steps))
  of_tokens = float(np.average(padding, weights=steps * list(PHASES)))
  rows = [
    [f"{length}", f"{PHASES[length]:,}", f"{share:.2f}"] for length, share in shares.items()
  ]
  return part.exhibit(
    "Section C, two phases",
    "Padding of the two phases of BERT's pretraining",
    f"On average over the steps of both phases, {of_steps:.1f} % of a step is padding; of "
    f"all tokens {of_tokens:.1f} %, since a step of the second phase has four times the "
    "tokens.",
    agreement="within a tolerance",
    claim="Even with a first phase on short rows about 20 % of the work is padding.",
    values=[
      within("padding of a mean step (%)", "20", of_steps, tolerance=1),
      Value("padding of all tokens (%)", "", f"{of_tokens:.1f}"),
    ],
    text=table(["tokens of a row", "steps", "padding (%)"], rows, left=())
    + "\n\nBoth phases have the same number of sequences a step.",
  )


def truncation(part: Part) -> Exhibit:
  """The exhibit of what is lost if only full rows are kept, section J."""
  histogram = packing.load_histogram(f"wikipedia_{LONGEST}")
  lengths = np.arange(1, LONGEST + 1)
  shorter = histogram.counts[:-1]
  of_sequences = 100 * float(shorter.sum()) / histogram.num_sequences
  of_tokens = 100 * float(shorter @ lengths[:-1]) / histogram.num_tokens
  least = of_sequences - 100 * SHORTENED
  return part.exhibit(
    "Section J, truncation",
    "What a generator loses that drops short sequences",
    f"{of_sequences:.1f} % of the sequences are shorter than {LONGEST} tokens. At most "
    f"{SHORTENED:.0%} were shortened at random, so at least {least:.1f} % were short to "
    f"begin with. All shorter sequences together hold {of_tokens:.1f} % of the tokens.",
    agreement="within a tolerance",
    claim="A generator that drops short sequences loses more than 25 % of the data at 512 "
    "tokens.",
    values=[
      Value(
        "sequences lost, at least (%)",
        "> 25",
        f"{least:.1f}",
        agrees=least > 25,
        allowed="above 25",
      ),
      Value("tokens of all shorter sequences (%)", "", f"{of_tokens:.1f}"),
    ],
  )


def constant_tokens(part: Part) -> Exhibit:
  """The exhibit of how much a batch's real tokens vary, section 1 of the 2021 version."""
  rows, spreads = [], {}
  for name, algorithm, depth in (
    ("one sequence a row", "none", 1),
    ("SPFHP, depth 3", "spfhp", 3),
    ("the optimum, depth 3", "optimal", 3),
  ):
    plan = cached_plan(part, f"wikipedia_{LONGEST}", algorithm, depth)
    tokens = np.array([sum(strategy) for strategy in plan.strategies], float)
    mean = float(np.average(tokens, weights=plan.repeat_counts))
    sd = math.sqrt(ROWS) * spread_of(tokens, plan.repeat_counts)
    spreads[name] = 100 * sd / (ROWS * mean)
    rows.append([name, f"{ROWS * mean:,.0f}", f"{sd:,.0f}"])
  unpacked, *_, best = spreads.values()
  return part.exhibit(
    "2021 version, section 1",
    "Real tokens of a batch",
    f"The real tokens of a batch of {ROWS} rows vary by {unpacked:.2f} % with one sequence "
    f"in each row, and by {best:.2f} % with optimal packs.",
    claim="With packing each batch has a consistent number of real tokens.",
    values=[
      Value(f"{name}: standard deviation over mean (%)", "", f"{spread:.3f}")
      for name, spread in spreads.items()
    ],
    text=table(["rows", "mean", "standard deviation"], rows)
    + f"\n\nBatches of {ROWS} rows that are drawn at random, at {LONGEST} tokens.",
  )


def exhibits(part: Part) -> list[Exhibit]:
  """All exhibits of this part."""
  return [two_phases(part), truncation(part), constant_tokens(part)]
