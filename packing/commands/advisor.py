"""What to do about the padding of a dataset, from its lengths alone.

Costs count the matrix products of a transformer layer of width d, with a feed-forward
part of width 4 d: a row of L tokens costs L * (24 d^2 + 4 L d) operations, so in units
of 4 d it is L * (6 d + L). The second part is attention over the whole row, which is
also what packing with a block-diagonal mask computes unless the kernel skips the
foreign blocks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from packing.algorithms.depth import choose_depth
from packing.algorithms.optimal import MAX_LENGTHS
from packing.errors import check_integer
from packing.histogram import Histogram
from packing.pack import pack
from packing.plan import Plan
from packing.problem import MAX_ROW_LENGTH
from packing.sorting import sorted_batches

_WORTH = 1.02  # a speed-up below this is not worth any change
_NEAR = 1.01  # a shorter row that is at most this much slower will do
_EDGES = 2048  # lengths that bucket boundaries are chosen from


@dataclasses.dataclass(frozen=True)
class Choice:
  """One thing to do about padding, for the whole dataset.

  Attributes:
    name: "pad", "bucket", "sorted batches", "concatenate", "unpad" or "pack".
    speed_up: cost of padding to the maximum sequence length / cost of this.
    efficiency: real tokens / all tokens, a fraction.
    num_shapes: shapes that a compiler of fixed shapes sees.
    remark: what it takes.
  """

  name: str
  speed_up: float
  efficiency: float
  num_shapes: int
  remark: str


@dataclasses.dataclass(frozen=True)
class PackChoice:
  """Packing at one depth and row length.

  Attributes:
    row_length: tokens of a row.
    max_sequences_per_pack: the depth limit; None for none.
    algorithm: what made the plan.
    num_packs: packs of the plan.
    efficiency: real tokens / all tokens, a fraction.
    speed_up: over padding, with attention over the whole row.
    speed_up_blocks: the same if attention skips the blocks of other sequences.
  """

  row_length: int
  max_sequences_per_pack: int | None
  algorithm: str
  num_packs: int
  efficiency: float
  speed_up: float
  speed_up_blocks: float


@dataclasses.dataclass(frozen=True)
class Advice:
  """What the lengths say.

  Attributes:
    histogram: the lengths.
    hidden_size: the model width that costs were counted for.
    padding: padding tokens / all tokens when every sequence has a row, a fraction.
    choices: what could be done, the most effective first.
    packs: packing at several row lengths and depths.
    unpadding: by number of devices, the expected speed-up of computing each sequence at
      its own length, one at a time on each device, when all wait for the slowest.
    recommendation: the name of the best choice that keeps sequences whole and apart.
    plan: the plan of the recommended depth and row length.
    reasons: the recommendation in sentences.
  """

  histogram: Histogram
  hidden_size: int
  padding: float
  choices: list[Choice]
  packs: list[PackChoice]
  unpadding: dict[int, float]
  recommendation: str
  plan: Plan
  reasons: list[str]

  def as_dict(self) -> dict:
    """Everything but the histogram and the plan itself, for JSON."""
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
      "packs": [dataclasses.asdict(p) for p in self.packs],
      "unpadding": self.unpadding,
      "reasons": self.reasons,
    }


def advise(
  histogram: Histogram,
  *,
  hidden_size: int = 768,
  num_buckets: int = 8,
  batch_size: int = 256,
  depths: Sequence[int | None] = (2, 3, 4, 6, 8, 12, 16, None),
  row_lengths: Sequence[int] | None = None,
  work_limit: int = 10**9,
) -> Advice:
  """Advises on padding.

  Args:
    histogram: the lengths; its maximum sequence length is what padding pads to.
    hidden_size: width d of the model, for the share of attention in the cost.
    num_buckets: shapes that bucketing may use.
    batch_size: sequences in a batch of sorted batching.
    depths: depth limits to show besides the one that is advised.
    row_lengths: rows to try; None for 1, 1.25, 1.5 and 2 times the maximum sequence
      length, in multiples of 8 (section Q: longer rows can pack better).
    work_limit: of `auto` for the advised plan, and for all others of its row length
      together.

  Returns:
    The advice.

  Raises:
    InputError: an argument out of range.

  Example:
    >>> advice = advise(Histogram.from_lengths([7, 1] * 9, max_sequence_length=8))
    >>> advice.recommendation, advice.plan.num_packs, advice.plan.max_sequences_per_pack
    ('pack', 9, 2)
  """
  for name, value in (
    ("hidden_size", hidden_size),
    ("num_buckets", num_buckets),
    ("batch_size", batch_size),
    ("work_limit", work_limit),
  ):
    check_integer(name, value, at_least=1)
  size = histogram.max_sequence_length
  if row_lengths is None:
    longer = {-(-int(size * f) // 8) * 8 for f in (1.25, 1.5, 2)}
    row_lengths = [size, *sorted(r for r in longer if size < r <= MAX_ROW_LENGTH)]

  def cost(length):
    return length * (6.0 * hidden_size + length)

  lengths = np.flatnonzero(histogram.counts) + 1
  counts = histogram.counts[lengths - 1].astype(np.float64)
  n, tokens = histogram.num_sequences, histogram.num_tokens
  padded = n * cost(size)
  alone = float(counts @ cost(lengths.astype(np.float64)))  # each at its own length

  def choice(plan: Plan, depth: int | None) -> PackChoice:
    # Attention of each sequence with itself; everything else on the whole row.
    row = plan.row_length
    blocks = plan.num_packs * row * 6.0 * hidden_size + float(
      counts @ lengths.astype(np.float64) ** 2
    )
    return PackChoice(
      row_length=row,
      max_sequences_per_pack=depth,
      algorithm=plan.algorithm,
      num_packs=plan.num_packs,
      efficiency=plan.efficiency,
      speed_up=padded / (plan.num_packs * cost(row)),
      speed_up_blocks=padded / blocks,
    )

  algorithm = solver(histogram)
  advised = {
    row: choose_depth(histogram, algorithm=algorithm, row_length=row) for row in row_lengths
  }
  tried = sorted({*depths, *advised.values()}, key=lambda depth: depth or float("inf"))
  packs = [
    choice(
      pack(histogram, algorithm="lpfhp", max_sequences_per_pack=depth, row_length=row),
      depth,
    )
    for row in row_lengths
    for depth in tried
  ]
  # The row by LPFHP; the plans of its depths by what is better.
  fastest = max(packs, key=lambda c: c.speed_up)
  row = min(c.row_length for c in packs if c.speed_up * _NEAR >= fastest.speed_up)
  of_row = [c for c in packs if c.row_length == row]
  plans = {}
  for quick in of_row:
    depth = quick.max_sequences_per_pack
    plans[depth] = pack(
      histogram,
      algorithm="auto",
      max_sequences_per_pack=depth,
      row_length=row,
      work_limit=work_limit if depth == advised[row] else -(-work_limit // len(of_row)),
    )
    packs[packs.index(quick)] = choice(plans[depth], depth)
  depth = advised[row]
  plan = plans[depth]
  chosen = choice(plan, depth)

  edges = _bucket_edges(lengths, counts, cost, num_buckets)
  upper = edges[np.searchsorted(edges, lengths)].astype(np.float64)
  bucket_tokens = float(counts @ upper)
  batches = sorted_batches(histogram, batch_size=batch_size)
  rows = -(-tokens // size)
  choices = [
    Choice("pad", 1.0, tokens / (n * size), 1, "nothing to change"),
    Choice(
      "bucket",
      padded / float(counts @ cost(upper)),
      tokens / bucket_tokens,
      len(edges),
      f"pad to {', '.join(map(str, edges.tolist()))}; batches of one length each",
    ),
    Choice(
      "sorted batches",
      padded / sum(m * cost(length) for length, m in batches.sequences_by_length.items()),
      batches.efficiency,
      batches.num_shapes,
      f"batches of {batch_size} of similar length; not in random order",
    ),
    Choice(
      "concatenate",
      padded / (rows * cost(size)),
      tokens / (rows * size),
      1,
      "cuts sequences at row ends; each sees its neighbours unless they are masked",
    ),
    Choice(
      "unpad",
      padded / alone,
      1.0,
      len(lengths),
      "needs kernels for ragged batches; devices wait for the longest sequence",
    ),
    Choice(
      "pack",
      padded / (plan.num_packs * cost(plan.row_length)),
      plan.efficiency,
      1,
      f"rows of {plan.row_length}, at most {plan.packing_depth} sequences, block-diagonal "
      "mask; every device has the same work",
    ),
  ]
  cumulative = np.cumsum(counts) / n
  unpadding = {
    devices: padded
    / n
    / _expected_maximum(cost(lengths.astype(float)), cumulative, devices)
    for devices in (1, 8, 64, 512)
  }
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
    packs=packs,
    unpadding=unpadding,
    recommendation=recommendation,
    plan=plan,
    reasons=_reasons(recommendation, named, plan, unpadding, chosen),
  )


def solver(histogram: Histogram) -> str:
  """The algorithm that is advised: `optimal`, or `auto` where that takes too long."""
  many = np.count_nonzero(histogram.counts) > MAX_LENGTHS
  return "auto" if many else "optimal"


def _bucket_edges(lengths, counts, cost, num_buckets: int) -> np.ndarray:
  """The lengths to pad to, at most `num_buckets`, that cost least; the longest included.

  By dynamic programming over the lengths that occur.
  """
  if lengths.size > _EDGES:  # merge neighbours; the upper length stands for both
    groups = np.linspace(0, lengths.size, _EDGES + 1).astype(int)
    counts = np.add.reduceat(counts, groups[:-1])
    lengths = lengths[groups[1:] - 1]
  ranks = np.concatenate([[0.0], np.cumsum(counts)])
  prices = cost(lengths.astype(np.float64))
  # best[j]: cost of the first j lengths; a bucket (i, j] costs its sequences at price j.
  best = np.full(lengths.size + 1, np.inf)
  best[0] = 0.0
  choices = []
  for _ in range(min(num_buckets, lengths.size)):  # more would stay empty
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


def _expected_maximum(values, cumulative, draws: int) -> float:
  """Mean of the largest of several independent draws; values ascending."""
  below = np.concatenate([[0.0], cumulative]) ** draws
  return float(np.diff(below) @ values)


def _reasons(recommendation, named, plan, unpadding, chosen) -> list[str]:
  pack_choice, bucket = named["pack"], named["bucket"]
  depth = chosen.max_sequences_per_pack
  limit = "without a depth limit" if depth is None else f"at most {depth} to a pack"
  reasons = []
  if recommendation == "pad":
    reasons.append(
      f"Packing would bring {pack_choice.speed_up:.3f} times the speed of padding; that "
      "is not worth a change."
    )
  elif recommendation == "bucket":
    reasons.append(
      f"Bucketing into {bucket.num_shapes} lengths brings {bucket.speed_up:.2f} times the "
      f"speed of padding, packing {pack_choice.speed_up:.2f}: long rows pay for attention "
      "between sequences, unless the kernel skips it "
      f"({chosen.speed_up_blocks:.2f} times then). Use buckets if you can compile "
      f"{bucket.num_shapes} shapes and batch by length, otherwise pack."
    )
  else:
    reasons.append(
      f"Pack into rows of {plan.row_length} tokens, {limit}: {pack_choice.speed_up:.2f} "
      f"times the speed of padding ({chosen.speed_up_blocks:.2f} where attention skips "
      "the blocks of other sequences), with one shape."
    )
    reasons.append(
      f"This takes {plan.num_packs:,} packs; {plan.lower_bound:,} is the proven minimum."
    )
    reasons.append(
      f"The share of padding falls from {1 - named['pad'].efficiency:.1%} to "
      f"{1 - plan.efficiency:.2%}; a batch of B rows holds {plan.packing_factor:.2f} B "
      "sequences, so divide the batch or adjust the schedule by that."
    )
  reasons.append(
    "Packing gives every device the same work. Ragged batches do not: one sequence a "
    "device, waiting for the slowest, they reach "
    + ", ".join(f"{s:.2f} on {d}" for d, s in unpadding.items())
    + " devices."
  )
  return reasons
