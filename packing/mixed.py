"""A plan for rows of several lengths, each length with its own cost."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import functools
import itertools
import json
from collections.abc import Sequence

import numpy as np

from packing import certificate, files
from packing.algorithms.pricing import check_weights, dual_bound
from packing.assignment import Assignment
from packing.errors import InputError, check_integer, short_repr
from packing.histogram import Histogram, check_same_lengths
from packing.plan import Plan
from packing.problem import MAX_ROW_LENGTH, Geometry, Problem, Strategy

MAX_COST = 2**40


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MixedPlan:
  """A partition of a histogram into packs, each in the shortest row that holds it.

  Attributes:
    histogram: the lengths that are packed.
    plans: a plan for each row length in use, ascending; their histograms add up to
      `histogram`.
    row_costs: the cost of a row, by row length, ascending; includes lengths without a plan.
    algorithm: the name of the algorithm that made the plan.
    geometry: the geometry of the longest row.
    bound_weights: int64[R]; weights that prove `lower_bound`
      (`packing.algorithms.pricing.dual_bound`); None if tokens alone prove it.
    details: further results that the algorithm reports, by name.

  Example:
    >>> import packing
    >>> plan = packing.pack([3, 3, 5, 1], max_sequence_length=5, row_length=(3, 6))
    >>> [(part.row_length, part.strategies) for part in plan.plans]
    [(6, [(1, 5), (3, 3)])]
    >>> plan.cost, plan.lower_bound
    (12, 12)
  """

  histogram: Histogram
  plans: tuple[Plan, ...]
  row_costs: dict[int, int]
  algorithm: str
  geometry: Geometry
  bound_weights: np.ndarray | None = None
  details: dict = dataclasses.field(default_factory=dict)

  def __repr__(self) -> str:
    rows = " + ".join(f"{p.num_packs:,} of {p.row_length:,} tokens" for p in self.plans)
    return (
      f"<MixedPlan: {self.num_sequences:,} sequences in {rows} by {self.algorithm}; "
      f"{self._verdict}; efficiency {self.efficiency:.4f}>"
    )

  @functools.cached_property
  def _problem(self) -> Problem:
    return problem_of(self.histogram, self.geometry, self.row_costs)

  @property
  def num_sequences(self) -> int:
    return self.histogram.num_sequences

  @property
  def num_packs(self) -> int:
    return sum(plan.num_packs for plan in self.plans)

  @property
  def num_row_tokens(self) -> int:
    """Tokens of all rows, padding included."""
    return sum(plan.num_row_tokens for plan in self.plans)

  @property
  def efficiency(self) -> float:
    """Real tokens / all tokens, a fraction."""
    return self.histogram.num_tokens / self.num_row_tokens

  @property
  def cost(self) -> int:
    """The cost of all rows."""
    return sum(plan.num_packs * self.row_costs[plan.row_length] for plan in self.plans)

  @functools.cached_property
  def lower_bound(self) -> int:
    """No plan for these row lengths, costs and depth can cost less; an exact proof."""
    bound = self._problem.simple_bound
    if self.bound_weights is not None:
      weights = check_weights(self._problem, self.bound_weights)
      bound = max(bound, dual_bound(self._problem, weights))
    return bound

  @property
  def gap(self) -> int:
    """Cost above the proven minimum."""
    return self.cost - self.lower_bound

  @property
  def _verdict(self) -> str:
    if not self.gap:
      return certificate.verdict(0)
    return f"at most {self.gap / self.lower_bound:.2%} above the minimum cost"

  def certificate(self) -> MixedCertificate:
    """What went into the plan, what came out, and how far its cost is from the minimum."""
    return MixedCertificate(
      algorithm=self.algorithm,
      histogram_sha256=self.histogram.sha256,
      num_sequences_in=self.num_sequences,
      num_sequences_out=sum(plan.num_sequences for plan in self.plans),
      num_tokens_in=self.histogram.num_tokens,
      num_tokens_out=sum(plan.histogram.num_tokens for plan in self.plans),
      row_costs=self.row_costs,
      rows={plan.row_length: plan.num_packs for plan in self.plans},
      cost=self.cost,
      lower_bound=self.lower_bound,
      gap=self.gap,
      efficiency=self.efficiency,
    )

  def assign(self, lengths, *, seed: int = 0) -> list[Assignment]:
    """Puts sequences into the packs, at random among those of equal length.

    Args:
      lengths: int[num_sequences]; tokens of each sequence. Their histogram must be the
        plan's.
      seed: the seed of the random order.

    Returns:
      An assignment for each of `plans`; sequence numbers are indices of `lengths`.

    Raises:
      InputError: the plan was made for other lengths.
    """
    lengths = check_same_lengths(lengths, self.histogram)
    seed = check_integer("seed", seed, at_least=0)
    shuffled = np.random.default_rng(seed).permutation(lengths.size)
    order = shuffled[np.argsort(lengths[shuffled], kind="stable")]
    first = np.concatenate([[0], np.cumsum(self.histogram.counts)])
    assignments, taken = [], first[:-1].copy()
    for number, plan in enumerate(self.plans):
      counts = plan.histogram.counts
      starts = taken[: counts.size]
      offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
      own = order[np.repeat(starts, counts) + offsets]
      starts += counts
      part = plan.assign(lengths[own], seed=seed + number)
      assignments.append(Assignment(part.offsets, own[part.sequence_ids]))
    return assignments


@dataclasses.dataclass(frozen=True)
class MixedCertificate:
  """The certificate of a `MixedPlan`.

  Attributes:
    row_costs: the cost of a row, by row length.
    rows: the number of rows, by row length; lengths without rows are left out.
    cost: the cost of all rows.
    lower_bound: the cost that any plan for these row lengths, costs and depth has at least.
    gap: cost above the bound.
    efficiency: real tokens / all tokens, a fraction.
  """

  algorithm: str
  histogram_sha256: str
  num_sequences_in: int
  num_sequences_out: int
  num_tokens_in: int
  num_tokens_out: int
  row_costs: dict[int, int]
  rows: dict[int, int]
  cost: int
  lower_bound: int
  gap: int
  efficiency: float

  def as_dict(self) -> dict:
    return dataclasses.asdict(self)

  def save(self, path):
    """Writes the certificate as one JSON object."""
    files.write_text(path, json.dumps(self.as_dict(), indent=1) + "\n")

  def __str__(self) -> str:
    rows = [
      f"rows      {count:>20,} of {length:,} tokens, {self.row_costs[length]:,} each"
      for length, count in self.rows.items()
    ]
    return "\n".join(
      [
        f"{self.algorithm}, rows of {', '.join(map(str, self.row_costs))} tokens",
        f"sequences {self.num_sequences_in:>20,} in = {self.num_sequences_out:,} out",
        f"tokens    {self.num_tokens_in:>20,} in = {self.num_tokens_out:,} out",
        *rows,
        f"cost      {self.cost:>20,}; {certificate.verdict(self.gap)}",
        f"minimum   {self.lower_bound:>20,}",
        f"efficiency{self.efficiency:>20.6f} real tokens / all tokens",
        f"histogram sha256 {self.histogram_sha256}",
      ]
    )


def check_rows(
  row_lengths: Sequence[int], row_cost: Sequence[int] | None
) -> dict[int, int]:
  """Returns the cost of a row by row length, ascending; by default, the row length.

  Raises:
    InputError: there is no length, a length occurs twice, the number of costs is not that
      of the lengths, or costs do not rise with the length.
  """
  lengths = [
    check_integer("A row length", length, at_least=1, at_most=MAX_ROW_LENGTH)
    for length in row_lengths
  ]
  if not lengths or len(set(lengths)) < len(lengths):
    raise InputError(
      f"row_length is {short_repr(lengths)}; expected at least one length, each once."
    )
  if row_cost is None:
    return {length: length for length in sorted(lengths)}
  if not isinstance(row_cost, Sequence) or len(row_cost) != len(lengths):
    raise InputError(
      f"row_cost is {short_repr(row_cost)}; expected {len(lengths)} whole numbers, one for "
      "each row length."
    )
  costs = [check_integer("A cost", c, at_least=1, at_most=MAX_COST) for c in row_cost]
  pairs = sorted(zip(lengths, costs, strict=True))
  if any(one[1] >= next_one[1] for one, next_one in itertools.pairwise(pairs)):
    raise InputError(
      f"row_cost is {short_repr(costs)} for rows of {short_repr(lengths)} tokens; expected "
      "longer rows to cost more. Leave out a length that costs as much as a longer one."
    )
  return dict(pairs)


def problem_of(
  histogram: Histogram, geometry: Geometry, row_costs: dict[int, int]
) -> Problem:
  """The problem of packing into rows of these lengths, or else of the geometry's length."""
  rows = tuple((n + geometry.separator_size, cost) for n, cost in row_costs.items())
  return dataclasses.replace(geometry.problem(histogram), row_costs=rows)


def split(
  histogram: Histogram,
  strategies: dict[Strategy, int],
  row_costs: dict[int, int],
  *,
  geometry: Geometry,
  algorithm: str,
) -> tuple[Plan, ...]:
  """A plan for each row length: of the packs that do not fit in any shorter row.

  Args:
    histogram: the lengths of all sequences.
    strategies: repeat counts by strategy.
    row_costs: the cost of a row by row length, ascending.
    geometry: the geometry of the longest row.
    algorithm: the name of the algorithm that made the packs.
  """
  row_lengths = list(row_costs)
  parts: dict[int, dict[Strategy, int]] = collections.defaultdict(dict)
  for strategy, count in strategies.items():
    row = row_lengths[bisect.bisect_left(row_lengths, geometry.tokens(strategy))]
    parts[row][strategy] = count
  plans = []
  for row in sorted(parts):
    counts = np.zeros(histogram.max_sequence_length, np.int64)
    for strategy, count in parts[row].items():
      np.add.at(counts, np.array(strategy) - 1, count)
    ordered = sorted(parts[row])
    plans.append(
      Plan(
        histogram=Histogram(counts[:row], source=histogram.source),
        strategies=ordered,
        repeat_counts=np.array([parts[row][s] for s in ordered], np.int64),
        algorithm=algorithm,
        **dataclasses.asdict(geometry) | {"row_length": row},
      )
    )
  return tuple(plans)
