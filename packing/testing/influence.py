"""Finds the sequences of a batch that influence each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from packing.testing.frameworks import linearize
from packing.testing.layout import check_segment_ids
from packing.testing.probe import (
  PADDING,
  Arrays,
  Place,
  Probe,
  items_of,
  make_probe,
  places,
  run_arrays,
)

METHODS = ("change", "derivative")


class Leak(NamedTuple):
  """`source` influences `target`, first in `output`.

  `depth` is the number of that output in the order of computation. `size` is the largest
  absolute derivative or change of the output; `measure` says which of the two.
  """

  source: Place
  target: Place
  output: str
  depth: int
  size: float
  measure: str

  def __str__(self) -> str:
    return (
      f"{self.target} changes with {self.source}: expected an influence of exactly 0, "
      f"found a {self.measure} of up to {self.size:.3g}, first in {self.output!r}."
    )


class LeakError(AssertionError):
  """Sequences of a pack influence each other; `leaks` lists all pairs."""

  __module__ = "packing.testing"  # where its users import it from

  def __init__(self, leaks: Sequence[Any], remedy: str = ""):
    self.leaks = list(leaks)
    more = f" And {len(self.leaks) - 1} more such pairs." if self.leaks[1:] else ""
    super().__init__(f"{self.leaks[0]}{more}{remedy and ' '}{remedy}")


def find_leaks(
  apply: Callable[[Arrays], Any],
  batch: Arrays,
  *,
  methods: tuple[str, ...] | None = None,
) -> list[Leak]:
  """All pairs that influence each other, in the order of the first output that shows it.

  Arguments and errors are as for `packing.testing.assert_no_cross_contamination`.
  """
  probe, batch, methods = probe_and_methods(apply, batch, methods)
  if np.max(batch["segment_ids"]) <= 1:
    raise ValueError("Expected a row with at least two sequences, found none.")
  influences: list[Leak] = []  # including those of sequences on themselves
  for method in methods:
    find = {"change": _changes, "derivative": _derivatives}[method]
    influences += find(probe, batch, np.random.default_rng(0))
  first: dict[tuple[Place, Place], Leak] = {}
  for leak in sorted(influences, key=lambda leak: leak.depth):
    if leak.source != leak.target:
      first.setdefault((leak.source, leak.target), leak)
  if not first:
    _check_alive(influences, probe, batch)

  def order(leak: Leak):
    return leak.depth, leak.source.number == PADDING, leak.target, leak.source

  return sorted(first.values(), key=order)


def probe_and_methods(
  apply: Callable, batch: Arrays, methods: tuple[str, ...] | None
) -> tuple[Probe, Arrays, tuple[str, ...]]:
  """The probe of a model, the batch to apply it to, and the methods that both support."""
  check_segment_ids(batch["segment_ids"])
  probe = make_probe(apply)
  if probe.embed and "input_embeddings" not in batch and methods != ("change",):
    batch = {**batch, "input_embeddings": probe.embed(batch)}
  if methods is None:
    methods = probe.methods or _usable_methods(probe, batch)
  if not methods or not {*methods} <= {*METHODS}:
    raise ValueError(f"methods is {methods!r}; expected some of {', '.join(METHODS)}.")
  return probe, batch, methods


def _usable_methods(probe: Probe, batch: Arrays) -> tuple[str, ...]:
  if "input_embeddings" not in batch:
    return ("change",)
  try:
    linearize(_of_embeddings(probe, batch), batch["input_embeddings"])
  except ValueError:  # if the function itself fails, `change` reports it
    return ("change",)
  return METHODS


def _of_embeddings(probe: Probe, batch: Arrays) -> Callable[[Any], dict[str, Any]]:
  return lambda x: probe.apply(probe.params, {**batch, "input_embeddings": x})


def _check_alive(influences: list[Leak], probe: Probe, batch: Arrays):
  """Raises an error if a sequence or an output depends on nothing: that proves nothing."""
  own = [leak for leak in influences if leak.source == leak.target]
  for place in places(batch):
    if all(leak.target != place for leak in own):
      raise AssertionError(
        f"The outputs of {place} do not depend on its own tokens, so nothing is proved. "
        "Give a function that reads input_ids or input_embeddings of its batch."
      )
  names = {leak.output for leak in own}
  for name, output in probe.apply(probe.params, batch).items():
    if name in names or not (probe.owners(name, output, batch) > 0).any():
      continue
    if not probe.has_derivative(name):
      continue
    raise AssertionError(f"Output {name!r} depends on no token. Leave it out.")


class Pull(NamedTuple):
  """Random weights on outputs, pulled back to the embeddings.

  `names` and `owners` belong to the floating outputs, in the order of computation. `back`
  takes bool[B, K] for each output, the items to weigh, and returns float64[B, S], the
  largest absolute derivative with respect to each token's embedding.
  """

  names: list[str]
  owners: list[np.ndarray]
  back: Callable[[list[np.ndarray]], np.ndarray]


def make_pull(probe: Probe, batch: Arrays, rng: np.random.Generator) -> Pull:
  """Makes a Pull for a differentiable function and a batch with `input_embeddings`."""
  linear = linearize(_of_embeddings(probe, batch), batch["input_embeddings"])
  if not linear.outputs:
    raise ValueError("Expected an output of floating type, found none to differentiate.")
  owners = [probe.owners(name, x, batch) for name, x in linear.outputs.items()]
  weights = [rng.standard_normal(tuple(x.shape)) for x in linear.outputs.values()]

  def back(chosen: list[np.ndarray]) -> np.ndarray:
    kept = []
    for mine, weight in zip(chosen, weights, strict=True):
      mine = mine.reshape(*mine.shape, *[1] * (weight.ndim - 2))
      kept.append(np.where(mine, weight, 0))
    return linear.pull(kept)

  return Pull(list(linear.outputs), owners, back)


def _derivatives(probe: Probe, batch: Arrays, rng: np.random.Generator) -> Iterator[Leak]:
  """Pulls random weights on each sequence's outputs back to all embeddings."""
  names, owners, back = make_pull(probe, batch, rng)
  segment_ids = np.asarray(batch["segment_ids"])

  def sizes(target: Place, depths) -> dict[Place, float]:
    gradient = back(
      [items_of(target, owner) & (n in depths) for n, owner in enumerate(owners)]
    )
    return {
      source: float(gradient[items_of(source, segment_ids)].max())
      for source in places(batch, padding=True)
    }

  everything = range(len(names))
  dead = set(everything)  # outputs that are not known to depend on anything
  for target in places(batch):
    together = sizes(target, everything)
    leaking = any(size != 0 for source, size in together.items() if source != target)
    if not leaking and not dead and together[target] != 0:
      yield Leak(target, target, names[0], 0, together[target], "derivative")
      continue
    for depth in everything:
      for source, size in sizes(target, {depth}).items():
        if size != 0:
          yield Leak(source, target, names[depth], depth, size, "derivative")
          if source == target:
            dead.discard(depth)


def _changes(probe: Probe, batch: Arrays, rng: np.random.Generator) -> Iterator[Leak]:
  """Replaces the tokens of each place in turn, and finds all changes of the outputs."""
  before, owners = repeatable_outputs(probe, batch)
  for source in places(batch, padding=True):
    here = items_of(source, np.asarray(batch["segment_ids"]))
    after = run_arrays(probe, with_other_tokens(batch, here, rng))
    for depth, (name, old) in enumerate(before.items()):
      for target in places(batch):
        mine = items_of(target, owners[name])
        items = old[mine], after[name][mine]
        if not np.array_equal(*items):
          yield Leak(source, target, name, depth, largest_change(*items), "change")


def repeatable_outputs(
  probe: Probe, batch: Arrays
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
  """The outputs by name, and the owners of their items.

  Raises:
    AssertionError: an output is NaN at a real token.
    ValueError: a second run gives other outputs, or an output has the wrong shape.
  """
  outputs, again = run_arrays(probe, batch), run_arrays(probe, batch)
  owners = {name: probe.owners(name, x, batch) for name, x in outputs.items()}
  for name, x in outputs.items():
    real = owners[name] > 0
    if (x[real] != x[real]).any():
      raise AssertionError(f"Output {name!r} has NaN at real tokens, which proves nothing.")
    if not np.array_equal(x[real], again[name][real]):
      raise ValueError("Expected the same outputs for the same batch. Turn dropout off.")
  return outputs, owners


def largest_change(old: np.ndarray, new: np.ndarray) -> float:
  """The largest change of an item; infinities that stay the same do not change."""
  changed = old != new
  gaps = old[changed].astype(np.float64) - new[changed].astype(np.float64)
  return float(np.abs(gaps).max(initial=0))


def with_other_tokens(
  batch: Arrays, here: np.ndarray, rng: np.random.Generator
) -> dict[str, Any]:
  """The batch with other tokens or embeddings wherever `here`, bool[B, S], is True."""
  if "input_embeddings" in batch:
    embeddings = np.array(batch["input_embeddings"])
    noise = rng.standard_normal((int(here.sum()), *embeddings.shape[2:]))
    embeddings[here] += (noise * (embeddings.std() or 1.0)).astype(embeddings.dtype)
    return {**batch, "input_embeddings": embeddings}
  ids = np.array(batch["input_ids"])
  known = np.unique(ids[np.asarray(batch["segment_ids"]) > 0])
  if known.size < 2:
    raise ValueError(f"Expected at least two kinds of tokens to swap, found {known.size}.")
  shift = rng.integers(1, known.size, size=int(here.sum()))
  ids[here] = known[(np.searchsorted(known, ids[here]) + shift) % known.size]
  return {**batch, "input_ids": ids}
