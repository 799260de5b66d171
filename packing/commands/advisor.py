"""Advises what to do about the padding of a dataset, from its lengths alone.

Costs count the matrix products of a transformer layer of width d with a feed-forward part
of width 4 d: a row of L tokens costs L * (24 d^2 + 4 L d) operations, or L * (6 d + L) in
units of 4 d. The second term is attention over the whole row. Packing with a block-diagonal
mask costs this too, unless the kernel skips the blocks of other sequences. On a CPU, and
wherever attention does not run at the rate of the matrix products, it costs more than this,
so the shortest row is better still.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from packing.algorithms.default_depth import choose_depth
from packing.batches import Cost
from packing.errors import check_integer
from packing.histogram import Histogram
from packing.pack import pack
from packing.plan import Plan
from packing.row_length import choose_row_length

_WORTH = 1.02  # a speed-up below this is not worth a change
_NEAR = 1.01  # packing, with one shape, is preferred if it is at most this much slower
_EDGES = 2048  # the most lengths from which the edges of buckets are chosen


@dataclasses.dataclass(frozen=True)
class Choice:
  """One way to treat padding, for the whole dataset.

  Attributes:
    name: "pad", "bucket", "concatenate" or "pack".
    speed_up: cost of padding to the maximum sequence length / cost of this choice.
    efficiency: real tokens / all tokens, a fraction.
    num_shapes: the number of shapes to compile.
    remark: what the choice requires.
  """

  name: str
  speed_up: float
  efficiency: float
  num_shapes: int
  remark: str


@dataclasses.dataclass(frozen=True)
class Advice:
  """The advice for a dataset.

  Attributes:
    histogram: the lengths.
    hidden_size: the model width that costs were counted for.
    padding: padding tokens / all tokens if every sequence has its own row, a fraction.
    choices: the ways to treat padding, the fastest first.
    skipping: the speed-up of packing if attention skips the blocks of other sequences.
    recommendation: the name of the best choice that keeps sequences whole and apart.
    plan: the plan with the advised row length and depth.
    reasons: the recommendation in sentences.
  """

  histogram: Histogram
  hidden_size: int
  padding: float
  choices: list[Choice]
  skipping: float
  recommendation: str
  plan: Plan
  reasons: list[str]

  def as_dict(self) -> dict:
    """The advice as a JSON object, with a summary of the histogram and the plan."""
    return {
      "num_sequences": self.histogram.num_sequences,
      "max_sequence_length": self.histogram.max_sequence_length,
      "longest": self.histogram.longest,
      "mean_length": self.histogram.num_tokens / self.histogram.num_sequences,
      "hidden_size": self.hidden_size,
      "padding": self.padding,
      "recommendation": self.recommendation,
      "row_length": self.plan.row_length,
      "max_sequences_per_pack": self.plan.max_sequences_per_pack,
      "num_packs": self.plan.num_packs,
      "lower_bound": self.plan.lower_bound,
      "efficiency": self.plan.efficiency,
      "packing_factor": self.plan.packing_factor,
      "choices": [dataclasses.asdict(c) for c in self.choices],
      "skipping": self.skipping,
      "reasons": self.reasons,
    }


def advise(histogram: Histogram, *, hidden_size: int = 768, num_buckets: int = 8) -> Advice:
  """Advises what to do about padding.

  Args:
    histogram: the lengths; padding pads to its maximum sequence length.
    hidden_size: width d of the model, which determines the share of attention in the cost.
    num_buckets: the most shapes that bucketing may use.

  Returns:
    The advice.

  Raises:
    InputError: an argument is out of range.

  Example:
    >>> advice = advise(Histogram.from_lengths([7, 1] * 9, max_sequence_length=8))
    >>> advice.recommendation, advice.plan.num_packs, advice.plan.max_sequences_per_pack
    ('pack', 9, 2)
  """
  check_integer("hidden_size", hidden_size, at_least=1)
  check_integer("num_buckets", num_buckets, at_least=1)

  prices = Cost(6.0 * hidden_size, 1.0)

  def cost(length):
    return prices.of_squares(length**2, row_length=length)

  size = histogram.max_sequence_length
  lengths = np.flatnonzero(histogram.counts) + 1
  counts = histogram.counts[lengths - 1].astype(np.float64)
  n, tokens = histogram.num_sequences, histogram.num_tokens
  padded = n * cost(size)

  row = choose_row_length(histogram, cost=prices)
  depth = choose_depth(histogram, row_length=row)
  plan = pack(histogram, max_sequences_per_pack=depth, row_length=row)
  # Where blocks are skipped, attention is within sequences; the rest is for the row.
  blocks = float(counts @ lengths.astype(np.float64) ** 2)
  skipping = padded / prices.of_squares(blocks, row_length=plan.num_packs * row)

  edges = bucket_edges(lengths, counts, cost, num_buckets)
  upper = edges[np.searchsorted(edges, lengths)].astype(np.float64)
  concatenated = -(-tokens // size)
  choices = [
    Choice("pad", 1.0, tokens / (n * size), 1, "nothing to change"),
    Choice(
      "bucket",
      padded / float(counts @ cost(upper)),
      tokens / float(counts @ upper),
      len(edges),
      f"pad to {', '.join(map(str, edges.tolist()))}; one length per batch",
    ),
    Choice(
      "concatenate",
      padded / (concatenated * cost(size)),
      tokens / (concatenated * size),
      1,
      "cuts sequences at row ends; each sees its neighbours unless they are masked",
    ),
    Choice(
      "pack",
      padded / (plan.num_packs * cost(row)),
      plan.efficiency,
      1,
      f"rows of {plan.row_length}, at most {plan.packing_depth} sequences, block-diagonal "
      "mask; every device has the same work",
    ),
  ]
  named = {c.name: c for c in choices}
  recommendation = "pad"
  if named["pack"].speed_up >= _WORTH:
    recommendation = "pack"
  if named["bucket"].speed_up > max(named[recommendation].speed_up * _NEAR, _WORTH):
    recommendation = "bucket"
  return Advice(
    histogram=histogram,
    hidden_size=hidden_size,
    padding=1 - tokens / (n * size),
    choices=sorted(choices, key=lambda c: -c.speed_up),
    skipping=skipping,
    recommendation=recommendation,
    plan=plan,
    reasons=_reasons(recommendation, named, plan, skipping),
  )


def _reasons(recommendation, named, plan, skipping) -> list[str]:
  pack_choice, bucket = named["pack"], named["bucket"]
  if recommendation == "pad":
    return [
      f"Packing would reach only {pack_choice.speed_up:.3f} times the speed of padding, "
      "which is not worth a change."
    ]
  if recommendation == "bucket":
    return [
      f"Bucketing into {bucket.num_shapes} lengths reaches {bucket.speed_up:.2f} times the "
      f"speed of padding, packing {pack_choice.speed_up:.2f} times: packed rows also "
      "compute attention between sequences, unless the kernel skips it "
      f"({skipping:.2f} times then). Use buckets if you can compile "
      f"{bucket.num_shapes} shapes and batch by length; otherwise pack."
    ]
  return [
    f"Pack into rows of {plan.row_length} tokens, at most "
    f"{plan.max_sequences_per_pack} to a pack: {pack_choice.speed_up:.2f} times the "
    f"speed of padding ({skipping:.2f} where attention skips the blocks of "
    "other sequences), with one shape.",
    f"This takes {plan.num_packs:,} packs, "
    + ("the proven minimum." if not plan.gap else f"{plan.gap:,} above the proven bound."),
    f"The share of padding falls from {1 - named['pad'].efficiency:.1%} to "
    f"{1 - plan.efficiency:.2%}. A batch of B rows holds {plan.packing_factor:.2f} B "
    "sequences, so divide the batch size by this factor, or adjust the schedule.",
  ]


def bucket_edges(lengths, counts, cost, num_buckets: int) -> np.ndarray:
  """Chooses at most `num_buckets` lengths to pad to, the longest included, at least cost.

  The method is dynamic programming over the lengths that occur.
  """
  if lengths.size > _EDGES:  # merge neighbours; the upper length stands for both
    groups = np.linspace(0, lengths.size, _EDGES + 1).astype(int)
    counts = np.add.reduceat(counts, groups[:-1])
    lengths = lengths[groups[1:] - 1]
  ranks = np.concatenate([[0.0], np.cumsum(counts)])
  prices = cost(lengths.astype(np.float64))
  # best[j]: cost of the first j lengths. In a bucket (i, j], each sequence costs price j.
  best = np.full(lengths.size + 1, np.inf)
  best[0] = 0.0
  choices = []
  for _ in range(min(num_buckets, lengths.size)):  # more buckets would stay empty
    table = best[:, None] + (ranks[None, 1:] - ranks[:, None]) * prices[None, :]
    table[np.arange(lengths.size + 1)[:, None] > np.arange(lengths.size)[None, :]] = np.inf
    origin = table.argmin(axis=0)
    best = np.concatenate([[0.0], table[origin, np.arange(lengths.size)]])
    choices.append(origin)
  edges = []
  end = lengths.size
  for origin in reversed(choices):
    if not end:
      break
    edges.append(int(lengths[end - 1]))
    end = int(origin[end - 1])
  return np.array(edges[::-1])
