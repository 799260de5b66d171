"""The same sequences in the same order, packed or one a row."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from pipeline.batches.loader import PackedLoader
from pipeline.batches.masking import mask_tokens
from pipeline.batches.packed import PackedBatch, pack_rows

BATCHES = ("packed", "unpacked", "constant", "sorted")  # the kinds of `stream`
ROWS = 4  # unpacked rows are a multiple of this: few shapes, which each compile once


def stream(loader: PackedLoader, kind: str, *, rows: int) -> Iterator[PackedBatch]:
  """Batches without end.

  Of "packed" they are the loader's own; of "unpacked" the sequences of each packed step,
  one a row; of "constant" one a row, a constant number a step; of "sorted" one a row, those
  of a step of nearly the same length, and steps in random order. A sequence has the same
  masked tokens in all kinds: they depend only on the seed, the epoch, its number and the
  position in it.

  Args:
    loader: of packed rows.
    kind: one of `BATCHES`.
    rows: of a "constant" or "sorted" step; the others follow the loader's.

  Example: two steps of 2 packs, "ab c" and "d efg"; each letter is a sequence.

    packed     [ab, c]      [d, efg]
    unpacked   [a, b, c]    [d, e, f, g]
    constant   [a, b, c]    [d, e, f]       3 rows
    sorted     [d, a, g]    [b, f]          3 rows; of other steps, too
  """
  steps = itertools.count()
  if kind == "packed":
    return (loader[step] for step in steps)
  if kind == "unpacked":
    return (_one_a_row(loader, *sequences(loader, step), multiple=ROWS) for step in steps)
  return {"constant": _constant, "sorted": _sorted}[kind](loader, rows)


def sequences(loader: PackedLoader, step: int) -> tuple[np.ndarray, np.ndarray]:
  """The sequences of a packed step, from 0: int64[N], numbers; int64[N], epochs."""
  ids = loader[step]["sequence_ids"]
  rows = step * loader.batch_size + np.arange(loader.batch_size)
  epochs = np.broadcast_to(rows[:, None] // loader.plan.num_packs, ids.shape)
  used = ids >= 0
  return ids[used], epochs[used]


def _constant(loader: PackedLoader, rows: int) -> Iterator[PackedBatch]:
  ids, epochs = np.empty(0, np.int64), np.empty(0, np.int64)
  for step in itertools.count():
    more_ids, more_epochs = sequences(loader, step)
    ids = np.concatenate([ids, more_ids])
    epochs = np.concatenate([epochs, more_epochs])
    while len(ids) >= rows:
      yield _one_a_row(loader, ids[:rows], epochs[:rows], multiple=rows)
      ids, epochs = ids[rows:], epochs[rows:]


def _sorted(loader: PackedLoader, rows: int) -> Iterator[PackedBatch]:
  lengths = loader.store.lengths
  for epoch in itertools.count():
    rng = np.random.default_rng([loader.seed, epoch])
    order = rng.permutation(len(lengths))  # of equal lengths
    order = order[np.argsort(lengths[order], kind="stable")]
    steps = np.array_split(order, -(-len(order) // rows))
    for step in rng.permutation(len(steps)):
      ids = steps[step]
      yield _one_a_row(loader, ids, np.full(len(ids), epoch), multiple=rows)


def _one_a_row(
  loader: PackedLoader, ids: np.ndarray, epochs: np.ndarray, *, multiple: int
) -> PackedBatch:
  """Rows of one sequence each, and empty ones up to a multiple."""
  rows = -(-len(ids) // multiple) * multiple
  slots = np.full((rows, 1), -1, np.int64)
  slots[: len(ids), 0] = ids
  batch = pack_rows(loader.store, slots, row_length=loader.plan.row_length)
  if loader.masking is None:
    return batch
  of_rows = np.zeros(rows, np.int64)
  of_rows[: len(ids)] = epochs
  return mask_tokens(batch, loader.masking, epochs=of_rows)
