"""`pack`: from a histogram to a plan."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from packing.algorithms.default_depth import choose_depth
from packing.algorithms.effort import check_effort
from packing.algorithms.progress import Progress
from packing.algorithms.registry import ALGORITHMS
from packing.errors import InputError, check, check_integer, short_repr
from packing.histogram import Histogram, check_same_lengths
from packing.plan import Plan
from packing.problem import Geometry


def algorithm_options(algorithm: str) -> dict[str, object]:
  """An algorithm's own options and their defaults, without the options of `pack`.

  Example:
    >>> algorithm_options("nnlshp")["residual_weight"]
    0.09

  Raises:
    InputError: the algorithm is unknown.
  """
  check(algorithm in ALGORITHMS, "algorithm", algorithm, f"one of {', '.join(ALGORITHMS)}")
  parameters = list(inspect.signature(ALGORITHMS[algorithm]).parameters.values())[1:]
  return {p.name: p.default for p in parameters if p.name not in ("seed", "progress")}


def check_options(algorithm: str, options: Iterable[str]):
  """Rejects names that are not options of the algorithm.

  Raises:
    InputError: the algorithm or an option is unknown.
  """
  known = sorted(algorithm_options(algorithm))
  takers: dict[str, list[str]] = {}
  for other in ALGORITHMS:
    for name in algorithm_options(other):
      takers.setdefault(name, []).append(other)
  for name in sorted(set(options).difference(known)):
    # One of this algorithm is meant rather than one of another.
    found = difflib.get_close_matches(name, known) or difflib.get_close_matches(
      name, takers
    )
    hint = ""
    if found and found[0] in known:
      hint = f" Did you mean {found[0]}?"
    elif found:
      meant = "" if found[0] == name else f"Did you mean {found[0]}? "
      hint = f" {meant}It is an option of {', '.join(takers[found[0]])}."
    raise InputError(
      f"{algorithm} has no option {short_repr(name)}; expected "
      f"{', '.join(known) or 'none'}.{hint}"
    )


def pack(
  histogram: Histogram | Sequence[int] | np.ndarray,
  *,
  max_sequence_length: int | None = None,
  algorithm: str = "auto",
  max_sequences_per_pack: int | str | None = None,
  row_length: int | None = None,
  length_multiple: int = 1,
  separator_tokens: int = 0,
  seed: int = 0,
  progress: Progress | None = None,
  **options,
) -> Plan:
  """Packs sequences into rows of one length.

  Args:
    histogram: a histogram, or int[num_sequences], the lengths to pack, in tokens.
    max_sequence_length: the longest length allowed, in tokens; required with lengths, and
      otherwise that of the histogram.
    algorithm: a name from `ALGORITHMS`. The default, "auto", tries heuristics. If they miss
      the bound, it looks for the optimum for about two seconds of a core.
    max_sequences_per_pack: the depth limit; None or "max" sets none. "auto" chooses the
      smallest limit that costs at most 0.5 % more packs; see `choose_depth`. It is worth
      its price where each slot of a row costs, as in `train.py`, whose default it is.
    row_length: tokens of a row, at least those of the longest sequence. None for the
      histogram's maximum sequence length, rounded up to the multiple if necessary.
    length_multiple: lengths are rounded up to a multiple of this; the gap is padding.
    separator_tokens: tokens between two sequences of a pack; they count as padding.
    seed: the seed of algorithms that draw random numbers (greedy, optimal, auto).
    progress: shows the state of a long search, and lets Ctrl-C end it with the best plan so
      far (optimal, auto); see `packing.algorithms.progress`.
    **options: the algorithm's own options; see `algorithm_options`.

  Returns:
    A plan, checked to be a partition of the histogram.

  Raises:
    InputError: the algorithm or an option is unknown, lengths are not whole numbers in
      1..max_sequence_length, the depth is below 1, a row is shorter than the longest
      sequence, or the algorithm cannot solve the problem.

  Example:
    >>> pack([3, 5, 2], max_sequence_length=5, algorithm="spfhp").strategies
    [(2, 3), (5,)]
  """
  check_options(algorithm, options)
  check_effort(options.get("effort"))
  seed = check_integer("seed", seed, at_least=0)
  histogram = _count(histogram, max_sequence_length)
  rows: dict[str, Any] = {
    "row_length": row_length,
    "length_multiple": length_multiple,
    "separator_tokens": separator_tokens,
  }
  depth = max_sequences_per_pack
  if depth == "auto":
    depth = choose_depth(histogram, algorithm=algorithm, **rows)
  geometry = Geometry.for_histogram(histogram, max_sequences_per_pack=depth, **rows)
  if algorithm == "none":
    geometry = dataclasses.replace(geometry, max_sequences_per_pack=1)
  if options.get("order") is not None:
    options["order"] = geometry.sizes(check_same_lengths(options["order"], histogram))
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
    algorithm=algorithm,
    bound_weights=solution.weights,
    details=solution.details,
    **dataclasses.asdict(geometry),
  )


def _count(lengths, max_sequence_length: int | None) -> Histogram:
  if not isinstance(lengths, Histogram):
    if max_sequence_length is None:
      raise InputError("Lengths need a max_sequence_length in tokens, such as 512.")
    return Histogram.from_lengths(lengths, max_sequence_length=max_sequence_length)
  fits = max_sequence_length in (None, lengths.max_sequence_length)
  longest = lengths.max_sequence_length
  expected = f"that of the histogram, {longest}; for longer rows, pass row_length"
  check(fits, "max_sequence_length", max_sequence_length, expected)
  return lengths
