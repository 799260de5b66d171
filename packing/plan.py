"""A plan: which lengths share a pack, how often, and how good the result is."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json

import numpy as np

from packing import certificate, files
from packing.algorithms.pricing import check_weights, dual_bound
from packing.assignment import Assignment, Slots, sort_by_length
from packing.certificate import Certificate
from packing.errors import InputError, check_integer, short_repr
from packing.histogram import Histogram, check_same_lengths
from packing.problem import Geometry, Problem, Strategy

FORMAT, VERSION = "isopack-plan", 1  # of plan files


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Plan:
  """A partition of a histogram into packs.

  Attributes:
    histogram: the lengths that are packed.
    strategies: K different tuples of lengths in tokens, sorted; each is the content of a
      pack.
    repeat_counts: int64[K]; how many packs use each strategy. Read-only.
    row_length: tokens of a row, at least the longest length.
    max_sequences_per_pack: the depth limit of the plan; None, for no limit, becomes the
      row length.
    algorithm: the name of the algorithm that made the plan.
    length_multiple: lengths are rounded up to a multiple of this; the gap is padding.
    separator_tokens: tokens between two sequences of a pack; they count as padding.
    bound_weights: int64[R]; a weight for each size that occurs, which proves `lower_bound`
      (see `packing.algorithms.pricing.dual_bound`); None if only the simple bound is known.
    details: further results that the algorithm reports, by name.
    geometry: row, depth limit, multiple and separator in one object; derived, not passed.

  Raises:
    InputError: a pack overflows its row or exceeds the depth limit, or the packs do not
      use each sequence of the histogram exactly once.

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
  geometry: Geometry = dataclasses.field(init=False)

  def __post_init__(self):
    self._check_counts()
    geometry = Geometry.for_histogram(
      self.histogram,
      row_length=self.row_length,
      max_sequences_per_pack=self.max_sequences_per_pack,
      length_multiple=self.length_multiple,
      separator_tokens=self.separator_tokens,
    )
    self._set(geometry=geometry, **dataclasses.asdict(geometry))
    if self.bound_weights is not None:
      self._set(bound_weights=check_weights(self._problem, self.bound_weights))
    self._set(strategies=geometry.check_strategies(self.histogram, self.strategies))
    self._check_partition()

  def _set(self, **fields):
    for name, value in fields.items():
      if isinstance(value, np.ndarray):
        value.flags.writeable = False
      object.__setattr__(self, name, value)

  def __repr__(self) -> str:
    return (
      f"<Plan: {self.num_sequences:,} sequences in {self.num_packs:,} packs of "
      f"{self.row_length:,} tokens by {self.algorithm}; {certificate.verdict(self.gap)}; "
      f"efficiency {self.efficiency:.4f}>"
    )

  def _check_counts(self):
    counts = np.asarray(self.repeat_counts).tolist()
    if not counts or len(counts) != len(self.strategies):
      raise InputError(
        f"Expected {len(self.strategies)} repeat counts from 1; found {short_repr(counts)}."
      )
    most = self.num_sequences  # this limit keeps all later sums from overflowing
    for count in counts:
      check_integer("A repeat count", count, at_least=1, at_most=most)
    self._set(repeat_counts=np.array(counts, np.int64))

  def _check_partition(self):
    slots = np.fromiter(itertools.chain.from_iterable(self.strategies), np.int64)
    used = np.zeros_like(self.histogram.counts)
    np.add.at(used, slots - 1, np.repeat(self.repeat_counts, self._depths))
    for index in np.flatnonzero(used != self.histogram.counts)[:1]:
      raise InputError(
        f"The plan uses {used[index]} sequences of length {index + 1}; the histogram "
        f"has {self.histogram.counts[index]}. Make the plan again."
      )

  @property
  def _depths(self) -> np.ndarray:
    """int64[K]; the number of sequences in each strategy."""
    return np.array([len(s) for s in self.strategies], np.int64)

  @functools.cached_property
  def _problem(self) -> Problem:
    return self.geometry.problem(self.histogram)

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
    """Tokens of all rows that belong to no sequence."""
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
    """The largest number of sequences in a pack of this plan."""
    return max(map(len, self.strategies))

  @property
  def spacing(self) -> dict[str, int]:
    """The multiple and the separator, as arguments of `make_row` and `make_rows`."""
    return {
      "length_multiple": self.length_multiple,
      "separator_tokens": self.separator_tokens,
    }

  @functools.cached_property
  def lower_bound(self) -> int:
    """No plan at this depth and row length can have fewer packs.

    The proof is in exact integers: from tokens, depth and long sequences, and from the
    weights if there are any.
    """
    bound = self._problem.simple_bound
    if self.bound_weights is not None:
      bound = max(bound, dual_bound(self._problem, self.bound_weights))
    return bound

  @functools.cached_property
  def squares(self) -> np.ndarray:
    """int64[K]; the sum of squared lengths of a pack of each strategy.

    This is the cost of attention that skips foreign sequences. Lengths are rounded up to
    the multiple.
    """
    sizes = [self.geometry.sizes(s) - self.geometry.separator_size for s in self.strategies]
    return np.array([int(lengths @ lengths) for lengths in sizes], np.int64)

  @property
  def gap(self) -> int:
    """Packs above the proven lower bound."""
    return self.num_packs - self.lower_bound

  def certificate(self) -> Certificate:
    """What went into the plan, what came out, and how far it is from the proven bound."""
    depths = self._depths
    packs = np.zeros(int(depths.max()) + 1, np.int64)
    np.add.at(packs, depths, self.repeat_counts)
    tokens = np.array([sum(s) for s in self.strategies], np.int64)
    names = {field.name for field in dataclasses.fields(Certificate)}
    return Certificate(
      **{name: getattr(self, name) for name in names if hasattr(self, name)},
      histogram_sha256=self.histogram.sha256,
      num_sequences_in=self.num_sequences,
      num_sequences_out=int(depths @ self.repeat_counts),
      num_tokens_in=self.histogram.num_tokens,
      num_tokens_out=int(tokens @ self.repeat_counts),
      bound_proof="simple" if self.lower_bound == self._problem.simple_bound else "weights",
      packs_by_depth={d: int(n) for d, n in enumerate(packs) if n},
    )

  def assign(self, lengths, *, seed: int = 0) -> Assignment:
    """Puts sequences into the plan's packs, at random among those of equal length.

    Use another seed in each epoch: other sequences share a pack, but the number of packs
    stays the same.

    Args:
      lengths: int[num_sequences]; tokens of each sequence. Their histogram must be the
        plan's.
      seed: the seed of the random order.

    Returns:
      The packs, in the order of the plan's strategies.

    Raises:
      InputError: the plan was made for other lengths.

    Example:
      >>> histogram = Histogram.from_lengths([3, 5, 2], max_sequence_length=5)
      >>> plan = Plan(histogram, [(2, 3), (5,)], np.array([1, 1]), row_length=5,
      ...             max_sequences_per_pack=2, algorithm="by hand")
      >>> assignment = plan.assign([3, 5, 2])
      >>> assignment.offsets.tolist(), assignment.sequence_ids.tolist()
      ([0, 2, 3], [2, 0, 1])
    """
    lengths = check_same_lengths(lengths, self.histogram)
    seed = check_integer("seed", seed, at_least=0)
    return Assignment(self.slots, sort_by_length(lengths), seed)

  @functools.cached_property
  def slots(self) -> Slots:
    """The places of the packs, which all assignments share."""
    return Slots(self.histogram, self.strategies, self.repeat_counts)

  def as_dict(self) -> dict:
    """The object that a plan file holds; `packing.planfile` describes it."""
    lengths = np.flatnonzero(self.histogram.counts) + 1
    counts = self.histogram.counts[lengths - 1]
    weights = self.bound_weights
    return {
      "format": FORMAT,
      "version": VERSION,
      "algorithm": self.algorithm,
      **dataclasses.asdict(self.geometry),
      "histogram": {
        "max_sequence_length": self.histogram.max_sequence_length,
        "source": self.histogram.source,
        "counts": np.stack([lengths, counts], axis=1).tolist(),
        "sha256": self.histogram.sha256,
      },
      "strategies": [list(strategy) for strategy in self.strategies],
      "repeat_counts": self.repeat_counts.tolist(),
      "bound_weights": None if weights is None else weights.tolist(),
      "details": self.details,
      "certificate": self.certificate().as_dict(),
    }

  def save(self, path):
    """Writes the plan as one JSON file, for `load_plan`."""
    files.write_text(path, json.dumps(self.as_dict()) + "\n")
