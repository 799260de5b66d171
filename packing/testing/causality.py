"""Finds tokens whose outputs depend on later tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from packing.testing.influence import make_pull, prepare, with_other_tokens
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
  seed: int = 0,
) -> Lookahead | None:
  """The first position that earlier tokens depend on; None for a causal model.

  Arguments and errors are as for `packing.testing.assert_causal`.
  """
  probe, batch, methods = prepare(apply, batch, methods)
  for method in methods:
    find = {"change": _by_change, "derivative": _by_derivative}[method]
    if lookahead := find(probe, batch, np.random.default_rng(seed)):
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
  old = run_arrays(probe, batch)
  tokens = {name: x for name, x in old.items() if probe.is_of_tokens(name)}
  for name, x in tokens.items():
    probe.owners(name, x, batch)  # rejects outputs of other shapes
  changes = False
  for position in columns.tolist():
    late = np.broadcast_to(columns >= position, segment_ids.shape)
    new = run_arrays(probe, with_other_tokens(batch, late, rng))
    for name, x in tokens.items():
      gap = np.abs(new[name].astype(np.float64) - x.astype(np.float64))
      gap = np.where(segment_ids > 0, gap.reshape(*segment_ids.shape, -1).max(-1), 0)
      changes |= bool((gap != 0).any())
      early = gap[:, :position].max(axis=1, initial=0)
      if (early != 0).any():
        row = int((early != 0).argmax())
        return Lookahead(row, position, float(early[row]), "change")
  if not changes:
    raise AssertionError("The outputs depend on no token, so nothing is proved.")
  return None
