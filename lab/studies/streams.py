"""The same sequences in the same order: packed, one a row, or cut at the ends of rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from pipeline.batches.loader import PackedLoader
from pipeline.batches.masking import mask_tokens
from pipeline.batches.packed import PackedBatch, lay_out, pack_rows

# The kinds of `stream`.
ONE_A_ROW = ("unpacked", "constant", "sorted")
CUT = ("concatenated", "pieces")
BATCHES = ("packed", *ONE_A_ROW, *CUT)
ROWS = 4  # unpacked rows are a multiple of this: few shapes, which each compile once


def stream(loader: PackedLoader, kind: str, *, rows: int) -> Iterator[PackedBatch]:
  """Endless batches of one kind.

  "packed" batches are the loader's own. Three kinds have one sequence a row: an "unpacked"
  step has the sequences of a packed step; a "constant" step has a constant number of
  sequences; a "sorted" step has sequences of nearly the same length, and its steps are in
  random order. In all four kinds a sequence has the same masked tokens: they depend only on
  the seed, the epoch, the sequence's number and the position in it.

  Both kinds of `CUT` lay the sequences end to end and cut them into full rows, through the
  middle of sequences. In "pieces", each part of a sequence in a row is a sequence of its
  own; in "concatenated", the whole row is one sequence. Both have the same masked tokens,
  which are drawn after the cut.

  Args:
    loader: of packed rows; for `CUT`, one that masks tokens and has neither token types nor
      labels.
    kind: one of `BATCHES`.
    rows: of a step; "packed" and "unpacked" steps follow the loader's rows instead.

  Example: two steps of 2 packs, "ab c" and "d efg"; each letter is a sequence.

    packed     [ab, c]      [d, efg]
    unpacked   [a, b, c]    [d, e, f, g]
    constant   [a, b, c]    [d, e, f]       3 rows
    sorted     [d, a, g]    [b, f]          3 rows; across the loader's steps
  """
  steps = itertools.count()
  if kind == "packed":
    return (loader[step] for step in steps)
  if kind == "unpacked":
    return (_one_a_row(loader, *sequences(loader, step), multiple=ROWS) for step in steps)
  if kind in CUT:
    pieces = _pieces(loader, rows)
    return pieces if kind == "pieces" else map(_joined, pieces)
  return {"constant": _constant, "sorted": _sorted}[kind](loader, rows)


def sequences(loader: PackedLoader, step: int) -> tuple[np.ndarray, np.ndarray]:
  """The sequences of a packed step, from 0: int64[N], numbers; int64[N], epochs."""
  ids = loader[step]["sequence_ids"]
  epochs = np.broadcast_to(loader.epochs_of(step)[:, None], ids.shape)
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
    order = rng.permutation(len(lengths))  # a random order among equal lengths
    order = order[np.argsort(lengths[order], kind="stable")]
    steps = np.array_split(order, -(-len(order) // rows))
    for step in rng.permutation(len(steps)):
      ids = steps[step]
      yield _one_a_row(loader, ids, np.full(len(ids), epoch), multiple=rows)


def _pieces(loader: PackedLoader, rows: int) -> Iterator[PackedBatch]:
  """Full rows, in which each part of a sequence is a sequence of its own."""
  store, length, masking = loader.store, loader.plan.row_length, loader.masking
  assert masking is not None
  slots = length // int(store.lengths.min()) + 2  # at most, for the pieces of a row
  tokens, firsts = np.empty(0, np.int64), np.empty(0, bool)  # that are not in a row yet
  number = 0  # of the next piece
  for step in itertools.count():
    ids, _ = sequences(loader, step)
    tokens = np.concatenate([tokens, store.gather(ids)])
    lengths = store.lengths[ids]
    first = np.zeros(lengths.sum(), bool)
    first[np.cumsum(lengths) - lengths] = True
    firsts = np.concatenate([firsts, first])
    while len(tokens) >= rows * length:
      here, tokens = np.split(tokens, [rows * length])
      first, firsts = np.split(firsts, [rows * length])
      first[::length] = True  # a row starts a piece
      first = first.reshape(rows, length)
      used = np.arange(slots) < first.sum(1, keepdims=True)
      lengths, numbers = np.zeros(used.shape, np.int64), np.full(used.shape, -1)
      lengths[used] = np.diff(np.flatnonzero(first), append=first.size)
      numbers[used] = number + np.arange(used.sum())
      number += used.sum()
      batch = lay_out(here, lengths, numbers, row_length=length)
      # No two pieces have the same number, in whatever epoch.
      yield mask_tokens(batch, masking, epochs=np.zeros(rows, np.int64))


def _joined(batch: PackedBatch) -> PackedBatch:
  """Turns full rows of pieces into rows of one sequence each."""
  rows, length = batch["input_ids"].shape
  in_use = batch["mlm_segment_ids"] > 0
  return batch | {
    "segment_ids": np.ones((rows, length), np.int32),
    "position_ids": np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
    "mlm_segment_ids": in_use.astype(np.int32),
    "cls_positions": np.zeros((rows, 1), np.int32),
    "sequence_labels": np.zeros((rows, 1), np.int32),
    "sequence_mask": np.ones((rows, 1), bool),
    "sequence_ids": batch["sequence_ids"][:, :1],
  }


def _one_a_row(
  loader: PackedLoader, ids: np.ndarray, epochs: np.ndarray, *, multiple: int
) -> PackedBatch:
  """Rows of one sequence each, and empty rows up to a multiple."""
  rows = -(-len(ids) // multiple) * multiple
  slots = np.full((rows, 1), -1, np.int64)
  slots[: len(ids), 0] = ids
  batch = pack_rows(loader.store, slots, row_length=loader.plan.row_length)
  if loader.masking is None:
    return batch
  of_rows = np.zeros(rows, np.int64)
  of_rows[: len(ids)] = epochs
  return mask_tokens(batch, loader.masking, epochs=of_rows)
