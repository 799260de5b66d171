"""Held-out documents, each scored alone: one perplexity for every layout of training.

A document longer than a row is read in windows, each `stride` tokens after the last one,
and of each but the first only what is new is scored. So every token of a document but its
first is scored exactly once, with at least S - stride tokens of its own document before it,
or all there are; neither padding nor another document is among what is seen or scored.
Perplexities of other S or stride do not compare: these say how much is seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from packing import InputError
from packing.errors import check_integer
from pipeline.batches import atoms
from pipeline.batches.packed import PackedBatch, rows_per_process
from pipeline.store import SequenceStore


class Windows(NamedTuple):
  """Windows of documents.

  Attributes:
    starts: int64[W]; where each begins in the stream of documents, in tokens.
    lengths: int64[W]; in tokens.
    seen: int64[W]; tokens at its beginning that are not scored.
  """

  starts: np.ndarray
  lengths: np.ndarray
  seen: np.ndarray


def cut_windows(lengths: np.ndarray, *, row_length: int, stride: int) -> Windows:
  """Cuts documents into windows.

  Args:
    lengths: int[D]; tokens of each document, without its end token, which is scored too.
    row_length: S, tokens of a window at most.
    stride: tokens from one window of a document to the next.

  Raises:
    InputError: the stride leaves no token to see.

  Example: a document of 8 tokens and its end token, in windows of 4.

    >>> windows = cut_windows(np.array([8]), row_length=4, stride=2)
    >>> windows.starts.tolist(), windows.lengths.tolist(), windows.seen.tolist()
    ([0, 2, 4, 6], [4, 4, 4, 3], [1, 2, 2, 2])
  """
  check_integer("row_length", row_length, at_least=2)
  check_integer("stride", stride, at_least=1)
  if stride >= row_length:
    raise InputError(
      f"stride is {stride}; expected less than the {row_length} tokens of a window, so "
      "that each token but the first of a document is seen after another."
    )
  tokens = np.asarray(lengths, np.int64) + 1
  documents = np.cumsum(tokens) - tokens
  counts = np.where(tokens > 1, 1 - (-np.maximum(tokens - row_length, 0) // stride), 0)
  firsts = np.cumsum(counts) - counts
  numbers = np.arange(counts.sum()) - np.repeat(firsts, counts)  # within the document
  left = np.repeat(tokens, counts) - numbers * stride
  return Windows(
    starts=np.repeat(documents, counts) + numbers * stride,
    lengths=np.minimum(left, row_length),
    seen=np.where(numbers > 0, row_length - stride, 1),
  )


class WindowLoader:
  """Windows of held-out documents as batches, one a row.

  Args:
    store: the documents, of the task `text`.
    row_length: S, in tokens.
    batch_size: B, rows in a batch, over all hosts.
    stride: tokens from one window of a document to the next; half a row if not given.
    process_index, process_count: which block of each batch to make: from 0.

  Attributes:
    num_tokens: tokens that are scored, over all hosts.
    num_batches: how many there are.

  Raises:
    InputError: a value out of its range, or hosts that do not divide the batch.
  """

  def __init__(
    self,
    store: SequenceStore,
    *,
    row_length: int,
    batch_size: int,
    stride: int | None = None,
    process_index: int = 0,
    process_count: int = 1,
  ):
    self.store, self.row_length, self.batch_size = store, row_length, batch_size
    self.process_index = process_index
    self._size = rows_per_process(
      batch_size, process_index=process_index, process_count=process_count
    )
    lengths, _ = atoms.documents(store)
    self.windows = cut_windows(
      lengths,
      row_length=row_length,
      stride=row_length // 2 if stride is None else stride,
    )
    self.num_tokens = int((self.windows.lengths - self.windows.seen).sum())
    self.num_batches = math.ceil(self.windows.starts.size / batch_size)

  def batches(self) -> Iterator[PackedBatch]:
    """Each window once over all hosts; the last rows are empty.

    `loss_mask` says which tokens are scored; `sequence_ids` is the number of the window.
    """
    for step in range(self.num_batches):
      first = step * self.batch_size + self.process_index * self._size
      end = min(first + self._size, self.windows.starts.size)
      yield self._lay_out(np.arange(first, end))

  def _lay_out(self, windows: np.ndarray) -> PackedBatch:
    lengths = np.zeros((self._size, 1), np.int64)
    seen, sequence_ids = lengths.copy(), np.full(lengths.shape, -1, np.int64)
    lengths[: windows.size, 0] = self.windows.lengths[windows]
    seen[: windows.size, 0] = self.windows.seen[windows]
    sequence_ids[: windows.size, 0] = windows
    places = np.broadcast_to(np.arange(self.row_length), (self._size, self.row_length))
    occupied = places < lengths
    input_ids = np.zeros(occupied.shape, np.int32)
    input_ids[occupied] = self.store.read(
      self.windows.starts[windows], self.windows.lengths[windows]
    )
    return {
      "input_ids": input_ids,
      "token_type_ids": np.zeros_like(input_ids),
      "segment_ids": occupied.astype(np.int32),
      "position_ids": np.where(occupied, places, 0).astype(np.int32),
      "loss_mask": occupied & (places >= seen),
      "cls_positions": np.zeros(lengths.shape, np.int32),
      "sequence_labels": np.zeros(lengths.shape, np.int32),
      "sequence_mask": lengths > 0,
      "sequence_ids": sequence_ids,
    }
