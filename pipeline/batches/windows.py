"""Held-out documents, each scored on its own, so that perplexities of all layouts compare.

A document longer than a row is read in windows. Each window starts `stride` tokens after
the previous one and scores only the tokens that no earlier window scored. So every token
of a document except its first is scored exactly once, with at least S - stride tokens of
its own document as context, or all that come before it. Padding and other documents are
neither context nor scored. Compare perplexities only at equal S and stride, which decide
how much context tokens have.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from packing.errors import check, check_integer
from pipeline.batches import atoms
from pipeline.batches.loader import RowLoader
from pipeline.batches.packed import PackedBatch, lay_out
from pipeline.store import SequenceStore, ranges


class Windows(NamedTuple):
  """Windows of documents.

  Attributes:
    starts: int64[W]; where each begins in the stream of documents, in tokens.
    lengths: int64[W]; in tokens.
    seen: int64[W]; tokens at the beginning of each that are context and not scored.
  """

  starts: np.ndarray
  lengths: np.ndarray
  seen: np.ndarray


def cut_windows(lengths: np.ndarray, *, row_length: int, stride: int) -> Windows:
  """Cuts documents into windows.

  Args:
    lengths: int[D]; tokens of each document without its end token, which is scored too.
    row_length: S, the most tokens of a window.
    stride: tokens from one window of a document to the next.

  Raises:
    InputError: the stride leaves no context.

  Example: a document of 8 tokens and its end token, in windows of 4.

    >>> windows = cut_windows(np.array([8]), row_length=4, stride=2)
    >>> windows.starts.tolist(), windows.lengths.tolist(), windows.seen.tolist()
    ([0, 2, 4, 6], [4, 4, 4, 3], [1, 2, 2, 2])
  """
  check_integer("row_length", row_length, at_least=2)
  check_integer("stride", stride, at_least=1)
  check(stride < row_length, "stride", stride, f"less than row_length={row_length}")
  tokens = np.asarray(lengths, np.int64) + 1
  documents = np.cumsum(tokens) - tokens
  counts = np.where(tokens > 1, 1 - (-np.maximum(tokens - row_length, 0) // stride), 0)
  numbers = ranges(0, counts)  # in each document
  left = np.repeat(tokens, counts) - numbers * stride
  return Windows(
    starts=np.repeat(documents, counts) + numbers * stride,
    lengths=np.minimum(left, row_length),
    seen=np.where(numbers > 0, row_length - stride, 1),
  )


class WindowLoader(RowLoader):
  """Windows of held-out documents as batches, one window per row, at half-row strides.

  Args:
    store: the documents, of the task `text`.
    row_length: S, in tokens.
    batch_size: B, rows of a batch, over all processes.

  Attributes:
    num_tokens: tokens that are scored.

  Raises:
    InputError: a value is out of range.
  """

  def __init__(self, store: SequenceStore, *, row_length: int, batch_size: int):
    self.store = store
    lengths, _ = atoms.documents(store)
    self.windows = cut_windows(lengths, row_length=row_length, stride=row_length // 2)
    self.num_tokens = int((self.windows.lengths - self.windows.seen).sum())
    super().__init__(
      num_rows=self.windows.starts.size,
      row_length=row_length,
      batch_size=batch_size,
      shuffle_seed=None,
    )

  def _contents(self, epoch: int | None, rows: np.ndarray) -> np.ndarray:
    return rows[:, None]

  def _lay_out(self, contents: np.ndarray, epochs: np.ndarray) -> PackedBatch:
    """`loss_mask` marks the scored tokens; `sequence_ids` is the number of the window."""
    used = contents >= 0
    lengths, seen = (
      np.where(used, values[contents], 0)
      for values in (self.windows.lengths, self.windows.seen)
    )
    ids = contents[used]
    tokens = self.store.read(self.windows.starts[ids], self.windows.lengths[ids])
    batch = lay_out(tokens, lengths, contents, row_length=self.row_length)
    scored = (batch["segment_ids"] > 0) & (batch["position_ids"] >= seen)
    return batch | {"loss_mask": scored}
