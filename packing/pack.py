"""From a histogram to a plan."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from packing.algorithms.auto import auto
from packing.algorithms.depth import choose_depth
from packing.algorithms.greedy import greedy
from packing.algorithms.heuristics import bfd, ffd, lpfhp, none, spfhp
from packing.algorithms.nnls import ennlshp, nnlshp
from packing.algorithms.optimal import optimal
from packing.algorithms.progress import Progress
from packing.errors import InputError, check_integer
from packing.histogram import Histogram, check_lengths, count_lengths
from packing.plan import Plan
from packing.problem import Geometry, Solution

# Each takes a Problem and keyword options, and returns a Solution.
ALGORITHMS: dict[str, Callable[..., Solution]] = {
  "none": none,
  "greedy": greedy,
  "ffd": ffd,
  "bfd": bfd,
  "spfhp": spfhp,
  "lpfhp": lpfhp,
  "nnlshp": nnlshp,
  "ennlshp": ennlshp,
  "optimal": optimal,
  "auto": auto,
}


def algorithm_options(algorithm: str) -> dict[str, object]:
  """Options of an algorithm with their defaults; those that `pack` has are left out.

  Example:
    >>> algorithm_options("nnlshp")["residual_weight"]
    0.09

  Raises:
    InputError: an unknown algorithm.
  """
  if algorithm not in ALGORITHMS:
    raise InputError(
      f"There is no packing algorithm {algorithm!r}; expected one of "
      f"{', '.join(ALGORITHMS)}."
    )
  parameters = list(inspect.signature(ALGORITHMS[algorithm]).parameters.values())[1:]
  return {p.name: p.default for p in parameters if p.name not in ("seed", "progress")}


def check_options(algorithm: str, options: Iterable[str]):
  """Refuses names that are no options of the algorithm.

  Raises:
    InputError: an unknown algorithm or option.
  """
  known = sorted(algorithm_options(algorithm))
  for name in sorted(set(options).difference(known)):
    raise InputError(
      f"{algorithm} has no option {name!r}; expected {', '.join(known) or 'none'}."
    )


def pack(
  histogram: Histogram | Sequence[int] | np.ndarray,
  *,
  max_sequence_length: int | None = None,
  algorithm: str = "optimal",
  max_sequences_per_pack: int | str | None = "auto",
  row_length: int | None = None,
  length_multiple: int = 1,
  separator_tokens: int = 0,
  seed: int = 0,
  progress: Progress | None = None,
  **options,
) -> Plan:
  """Packs sequences into rows.

  Args:
    histogram: the lengths to pack, counted, or int[num_sequences], one by one in tokens.
    max_sequence_length: with lengths one by one the longest allowed, in tokens.
    algorithm: a name from `ALGORITHMS`.
    max_sequences_per_pack: the depth limit; "auto" for the smallest that costs at most
      0.1 % more packs, if the plan is soon found (`choose_depth`); None or "max" for no
      limit.
    row_length: tokens of a row, which may be more than the longest sequence; None for
      the histogram's maximum sequence length, rounded up if need be.
    length_multiple: lengths are rounded up to a multiple of this; the gap is padding.
    separator_tokens: tokens between two sequences of a pack; they count as padding.
    seed: for the algorithms that draw random numbers (greedy, optimal, auto).
    progress: is told how far a long search is, and lets Ctrl-C end it with the best plan
      so far (optimal, auto); see `packing.algorithms.progress`.
    **options: of the algorithm; see its own documentation, or `algorithm_options`.

  Returns:
    A plan, checked to be a partition of the histogram.

  Raises:
    InputError: an unknown algorithm or option, lengths that are not whole numbers in
      1..max_sequence_length, a depth below 1, a row shorter than the longest sequence, or
      what the algorithm cannot do.

  Example:
    >>> pack([3, 5, 2], max_sequence_length=5, algorithm="spfhp").strategies
    [(2, 3), (5,)]
  """
  check_options(algorithm, options)
  seed = check_integer("seed", seed, at_least=0)
  histogram = _counted(histogram, max_sequence_length)
  if max_sequences_per_pack == "auto":
    max_sequences_per_pack = choose_depth(
      histogram,
      algorithm=algorithm,
      row_length=row_length,
      length_multiple=length_multiple,
      separator_tokens=separator_tokens,
    )
  geometry = Geometry.for_histogram(
    histogram,
    row_length=row_length,
    max_sequences_per_pack=max_sequences_per_pack,
    length_multiple=length_multiple,
    separator_tokens=separator_tokens,
  )
  if algorithm == "none":
    geometry = dataclasses.replace(geometry, max_sequences_per_pack=1)
  if options.get("order") is not None:
    options["order"] = _arrival(histogram, geometry, options["order"])
  takes = inspect.signature(ALGORITHMS[algorithm]).parameters
  common = {"seed": seed, "progress": progress}
  options |= {name: value for name, value in common.items() if name in takes}
  solution = ALGORITHMS[algorithm](geometry.problem(histogram), **options)
  merged = geometry.expand(histogram, solution.packs)
  strategies = sorted(merged)
  return Plan(
    histogram=histogram,
    strategies=strategies,
    repeat_counts=np.array([merged[s] for s in strategies], np.int64),
    row_length=geometry.row_length,
    max_sequences_per_pack=geometry.max_sequences_per_pack,
    algorithm=algorithm,
    length_multiple=geometry.length_multiple,
    separator_tokens=geometry.separator_tokens,
    bound_weights=solution.weights,
    details=solution.details,
  )


def _counted(lengths, max_sequence_length: int | None) -> Histogram:
  if not isinstance(lengths, Histogram):
    if max_sequence_length is None:
      raise InputError(
        "Expected max_sequence_length with lengths, the longest allowed, in tokens; found "
        "None. Pass it, such as max_sequence_length=512."
      )
    return Histogram.from_lengths(lengths, max_sequence_length=max_sequence_length)
  if max_sequence_length not in (None, lengths.max_sequence_length):
    raise InputError(
      f"max_sequence_length is {max_sequence_length!r}; expected that of the histogram, "
      f"{lengths.max_sequence_length}. Leave it out; row_length makes longer rows."
    )
  return lengths


def _arrival(histogram: Histogram, geometry: Geometry, order) -> np.ndarray:
  """Lengths in the order of arrival, as sizes."""
  lengths = check_lengths(order, histogram.max_sequence_length)
  counts = count_lengths(lengths, histogram.max_sequence_length)
  if not np.array_equal(counts, histogram.counts):
    index = int(np.flatnonzero(counts != histogram.counts)[0])
    raise InputError(
      f"order holds {counts[index]} lengths of {index + 1} tokens; the histogram has "
      f"{histogram.counts[index]}. Make the histogram from these lengths."
    )
  return geometry.sizes(lengths)
