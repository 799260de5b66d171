"""A plan says which lengths share a pack, how often, and how good that is."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import operator

import numpy as np

from packing import assignment, certificate
from packing.algorithms.depth import bounds
from packing.assignment import Assignment
from packing.certificate import Certificate
from packing.errors import InputError, check_integer, short_repr
from packing.histogram import Histogram
from packing.pricing import dual_bound, most_items
from packing.problem import Geometry, Strategy


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Plan:
  """A partition of a histogram into packs.

  Attributes:
    histogram: the lengths that are packed.
    strategies: K different tuples of lengths, in tokens; the sequences of one pack.
      Sorted here.
    repeat_counts: int64[K]; how many packs use each strategy. Read-only.
    row_length: tokens of a row, at least the longest length.
    max_sequences_per_pack: the depth limit the plan was made under; None for no limit
      becomes the row length.
    algorithm: what made the plan.
    length_multiple: lengths are rounded up to a multiple of this; the gap is padding.
    separator_tokens: between two sequences of a pack; they count as padding.
    bound_weights: int64[R]; a weight for each size that occurs, which proves
      `lower_bound` (see `packing.pricing.dual_bound`); None where nothing but the
      simple bound is known.
    details: what the algorithm reports, by name.

  Raises:
    InputError: the packs overflow a row, exceed the depth limit, or do not use each
      sequence of the histogram exactly once.

  Example:
    >>> histogram = Histogram(np.array([0, 1, 1, 0, 1]))
    >>> plan = Plan(histogram, [(2, 3), (5,)], np.array([1, 1]), row_length=5,
    ...             max_sequences_per_pack=2, algorithm="by hand")
    >>> plan.num_packs, plan.efficiency, plan.packing_factor, plan.lower_bound
    (2, 1.0, 1.5, 2)
  """

  histogram: Histogram
  strategies: list[Strategy]
  repeat_counts: np.ndarray
  row_length: int
  max_sequences_per_pack: int
  algorithm: str
  length_multiple: int = 1
  separator_tokens: int = 0
  bound_weights: np.ndarray | None = None
  details: dict = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    found = np.asarray(self.repeat_counts)
    if found.ndim != 1 or found.size != len(self.strategies) or found.size == 0:
      raise InputError(
        f"Expected a repeat count for each of the {len(self.strategies)} strategies, at "
        f"least one, found shape {found.shape}."
      )
    most = self.num_sequences  # with it, no sum below can wrap
    counts = np.array(
      [
        check_integer("A repeat count", n, at_least=1, at_most=most) for n in found.tolist()
      ],
      np.int64,
    )
    counts.flags.writeable = False
    object.__setattr__(self, "repeat_counts", counts)
    if not isinstance(self.algorithm, str):
      raise InputError(f"algorithm is {short_repr(self.algorithm)}; expected a name.")
    self._check_geometry()
    self._check_strategies()
    self._check_partition()

  def __repr__(self) -> str:
    return (
      f"<Plan: {self.num_sequences:,} sequences in {self.num_packs:,} packs of "
      f"{self.row_length:,} tokens by {self.algorithm}; {certificate.verdict(self.gap)}; "
      f"efficiency {self.efficiency:.4f}>"
    )

  def _check_geometry(self):
    geometry = Geometry.for_histogram(
      self.histogram,
      row_length=self.row_length,
      max_sequences_per_pack=self.max_sequences_per_pack,
      length_multiple=self.length_multiple,
      separator_tokens=self.separator_tokens,
    )
    object.__setattr__(self, "row_length", geometry.row_length)
    object.__setattr__(self, "max_sequences_per_pack", geometry.max_sequences_per_pack)
    if self.bound_weights is None:
      return
    problem = self._problem
    weights = np.asarray(self.bound_weights)
    if weights.dtype.kind not in "iu":
      raise InputError(f"Expected bound_weights as integers, found {weights.dtype}.")
    most = 2**61 // most_items(problem)
    if weights.shape != problem.sizes.shape or (weights < 0).any() or weights.max() > most:
      raise InputError(
        f"Expected bound_weights as {problem.sizes.size} integers from 0 to {most}, "
        f"found shape {weights.shape} from {weights.min(initial=0)} to "
        f"{weights.max(initial=0)}."
      )
    weights = weights.astype(np.int64)
    weights.flags.writeable = False
    object.__setattr__(self, "bound_weights", weights)

  def _check_strategies(self):
    try:
      strategies = [tuple(sorted(map(operator.index, s))) for s in self.strategies]
    except TypeError as error:
      raise InputError(f"Expected strategies of whole numbers; {error}.") from error
    longest = self.histogram.max_sequence_length
    for strategy in strategies:
      if not 1 <= len(strategy) <= self.max_sequences_per_pack:
        raise InputError(
          f"Strategy {short_repr(strategy)} has {len(strategy)} sequences; expected 1 to "
          f"{self.max_sequences_per_pack}."
        )
      if strategy[0] < 1 or strategy[-1] > longest:
        raise InputError(
          f"Strategy {short_repr(strategy)} holds a length that is none; expected 1 to "
          f"{longest}."
        )
    if len(set(strategies)) < len(strategies):
      strategy = collections.Counter(strategies).most_common(1)[0][0]
      raise InputError(
        f"Strategy {short_repr(strategy)} occurs more than once; expected different "
        "ones. Add "
        "up their repeat counts."
      )
    object.__setattr__(self, "strategies", strategies)

  def _check_partition(self):
    depths = np.array([len(s) for s in self.strategies], np.int64)
    slots = np.fromiter(
      itertools.chain.from_iterable(self.strategies), np.int64, int(depths.sum())
    )
    first = np.cumsum(depths) - depths
    sizes = np.add.reduceat(self._geometry.sizes(slots), first)
    for found in np.flatnonzero(sizes > self._geometry.capacity):
      extra = ""
      if self.length_multiple > 1 or self.separator_tokens:
        extra = (
          f", with separators of {self.separator_tokens} and lengths rounded up to a "
          f"multiple of {self.length_multiple}"
        )
      raise InputError(
        f"Strategy {short_repr(self.strategies[found])} has "
        f"{sizes[found] - self._geometry.separator_size} tokens{extra}; the row has "
        f"{self.row_length}."
      )
    total = sum(
      n * len(s) for n, s in zip(self.repeat_counts.tolist(), self.strategies, strict=True)
    )
    if total > self.num_sequences:
      raise InputError(
        f"The plan uses {total} sequences; the histogram has {self.num_sequences}. Make "
        "the plan anew."
      )
    used = np.zeros_like(self.histogram.counts)
    np.add.at(used, slots - 1, np.repeat(self.repeat_counts, depths))
    if not np.array_equal(used, self.histogram.counts):
      index = int(np.flatnonzero(used != self.histogram.counts)[0])
      raise InputError(
        f"The plan uses {used[index]} sequences of length {index + 1}; the histogram "
        f"has {self.histogram.counts[index]}."
      )

  @functools.cached_property
  def _geometry(self) -> Geometry:
    return Geometry(
      self.row_length,
      min(self.max_sequences_per_pack, self.row_length),
      self.length_multiple,
      self.separator_tokens,
    )

  @functools.cached_property
  def _problem(self):
    return self._geometry.problem(self.histogram)

  @property
  def num_packs(self) -> int:
    return int(self.repeat_counts.sum())

  @property
  def num_strategies(self) -> int:
    return len(self.strategies)

  @property
  def num_sequences(self) -> int:
    return self.histogram.num_sequences

  @property
  def num_row_tokens(self) -> int:
    """Tokens of all rows, padding included."""
    return self.num_packs * self.row_length

  @property
  def num_padding_tokens(self) -> int:
    """Tokens of the rows that are not tokens of a sequence."""
    return self.num_row_tokens - self.histogram.num_tokens

  @property
  def efficiency(self) -> float:
    """Real tokens / all tokens, a fraction."""
    return self.histogram.num_tokens / self.num_row_tokens

  @property
  def packing_factor(self) -> float:
    """Sequences / packs, at least 1."""
    return self.num_sequences / self.num_packs

  @property
  def packing_depth(self) -> int:
    """Most sequences in a pack of this plan."""
    return max(map(len, self.strategies))

  @functools.cached_property
  def lower_bound(self) -> int:
    """No plan at this depth and row length can have fewer packs.

    Proven in integers: by tokens, depth and halves of a row, and where there are
    weights, by them.
    """
    bound = self._problem.simple_bound
    if self.bound_weights is not None:
      bound = max(bound, dual_bound(self._problem, self.bound_weights))
    return bound

  @functools.cached_property
  def unlimited_bound(self) -> int:
    """No plan at this row length can have fewer packs, whatever its depth.

    Proven by the linear relaxation with up to 2,048 different lengths, as far as a few
    seconds of work go; beyond, by tokens and halves of a row.
    """
    problem = dataclasses.replace(self._problem, depth=self._problem.capacity)
    if self.max_sequences_per_pack >= most_items(problem):
      return self.lower_bound
    if problem.sizes.size > 2048:
      return problem.simple_bound
    return bounds(problem, work=10**8)[0]

  @property
  def gap(self) -> int:
    """Packs above the proven minimum."""
    return self.num_packs - self.lower_bound

  def certificate(self) -> Certificate:
    """What went in, what comes out, and how far that is from the proven minimum."""
    depths = np.array([len(s) for s in self.strategies], np.int64)
    packs = np.zeros(int(depths.max()) + 1, np.int64)
    np.add.at(packs, depths, self.repeat_counts)
    tokens = np.array([sum(s) for s in self.strategies], object)
    return Certificate(
      algorithm=self.algorithm,
      row_length=self.row_length,
      max_sequences_per_pack=self.max_sequences_per_pack,
      length_multiple=self.length_multiple,
      separator_tokens=self.separator_tokens,
      histogram_sha256=self.histogram.sha256,
      num_sequences_in=self.num_sequences,
      num_sequences_out=int(depths @ self.repeat_counts),
      num_tokens_in=self.histogram.num_tokens,
      num_tokens_out=int(tokens @ self.repeat_counts.astype(object)),
      num_strategies=self.num_strategies,
      num_packs=self.num_packs,
      lower_bound=self.lower_bound,
      unlimited_bound=self.unlimited_bound,
      bound_proof="simple" if self.lower_bound == self._problem.simple_bound else "weights",
      gap=self.gap,
      num_padding_tokens=self.num_padding_tokens,
      efficiency=self.efficiency,
      packing_factor=self.packing_factor,
      packs_by_depth={d: int(n) for d, n in enumerate(packs) if n},
    )

  def assign(self, lengths, *, seed: int = 0) -> Assignment:
    """Puts sequences into the plan's packs, at random among those of equal length.

    The same plan with another seed is another epoch's assignment: which sequences
    share a pack changes, the number of packs does not.

    Args:
      lengths: int[num_sequences]; tokens of each sequence. Must count up to the
        plan's histogram.
      seed: of the random order.

    Returns:
      Packs in the order of the plan's strategies.

    Raises:
      InputError: the lengths are not those the plan was made for.

    Example:
      >>> histogram = Histogram.from_lengths([3, 5, 2], max_sequence_length=5)
      >>> plan = Plan(histogram, [(2, 3), (5,)], np.array([1, 1]), row_length=5,
      ...             max_sequences_per_pack=2, algorithm="by hand")
      >>> assignment = plan.assign([3, 5, 2])
      >>> assignment.offsets.tolist(), assignment.sequence_ids.tolist()
      ([0, 2, 3], [2, 0, 1])
    """
    return assignment.assign(
      self.histogram, self.strategies, self.repeat_counts, lengths, seed=seed
    )

  def save(self, path):
    """Writes the plan as one JSON file; see `packing.planfile` for the format."""
    from packing import planfile  # it needs Plan

    planfile.save(self, path)
