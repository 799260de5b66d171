"""Finds tokens whose outputs depend on later tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from packing.testing.influence import (
  largest_change,
  make_pull,
  probe_and_methods,
  repeatable_outputs,
  with_other_tokens,
)
from packing.testing.probe import Arrays, Probe, run_arrays


class Lookahead(NamedTuple):
  """A token before `position` in `row` changes with the tokens from there on."""

  row: int
  position: int
  size: float
  measure: str

  def __str__(self) -> str:
    return (
      f"A token before position {self.position} of row {self.row} changes with those from "
      f"there on: expected an influence of exactly 0, found a {self.measure} of up to "
      f"{self.size:.3g}."
    )


def find_lookahead(
  apply: Callable[[Arrays], Any],
  batch: Arrays,
  *,
  methods: tuple[str, ...] | None = None,
) -> Lookahead | None:
  """The first position that earlier tokens depend on; None for a causal model.

  Arguments and errors are as for `packing.testing.assert_causal`.
  """
  probe, batch, methods = probe_and_methods(apply, batch, methods)
  for method in methods:
    find = {"change": _by_change, "derivative": _by_derivative}[method]
    if lookahead := find(probe, batch, np.random.default_rng(0)):
      return lookahead
  return None


def _by_derivative(probe: Probe, batch: Arrays, rng) -> Lookahead | None:
  names, owners, back = make_pull(probe, batch, rng)
  columns = np.arange(np.shape(batch["segment_ids"])[1])
  # Outputs of sequences are left out.
  real = [
    (owner > 0) if probe.is_of_tokens(name) else np.zeros(owner.shape, bool)
    for name, owner in zip(names, owners, strict=True)
  ]

  def before(position: int) -> list[np.ndarray]:
    return [mine & (np.arange(mine.shape[1]) < position) for mine in real]

  if not back(before(columns.size)).any():
    raise AssertionError("The outputs depend on no token, so nothing is proved.")
  for position in columns[1:].tolist():
    late = back(before(position))[:, position:].max(axis=1)
    if (late != 0).any():
      row = int((late != 0).argmax())
      return Lookahead(row, position, float(late[row]), "derivative")
  return None


def _by_change(probe: Probe, batch: Arrays, rng) -> Lookahead | None:
  segment_ids = np.asarray(batch["segment_ids"])
  columns = np.arange(segment_ids.shape[1])
  old, _ = repeatable_outputs(probe, batch)
  tokens = {name: x for name, x in old.items() if probe.is_of_tokens(name)}
  changes = False
  for position in columns.tolist():
    late = np.broadcast_to(columns >= position, segment_ids.shape)
    new = run_arrays(probe, with_other_tokens(batch, late, rng))
    for name, x in tokens.items():
      changed = (new[name] != x).reshape(*segment_ids.shape, -1).any(axis=-1)
      changed &= segment_ids > 0
      changes |= bool(changed.any())
      early = changed[:, :position]
      if early.any():
        row = int(early.any(axis=1).argmax())
        items = row, np.flatnonzero(early[row])
        size = largest_change(x[items], new[name][items])
        return Lookahead(row, position, size, "change")
  if not changes:
    raise AssertionError("The outputs depend on no token, so nothing is proved.")
  return None
