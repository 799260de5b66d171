"""Endless batches of rows of atoms, which are reshuffled in each epoch."""

from __future__ import annotations

import functools

import numpy as np

from packing.epochs import LastTwo
from pipeline.batches.atoms import cut, documents
from pipeline.batches.loader import RowLoader
from pipeline.batches.packed import PackedBatch, lay_out
from pipeline.store import SequenceStore, ranges


class AtomLoader(RowLoader):
  """Batches of `concat`, `concat_isolated` and `padding`; see `pipeline/batches/atoms.py`.

  Each epoch shuffles the atoms and then makes rows of them, so the rows of an atom longer
  than a row follow each other. A row is one sequence, unless documents are isolated.
  `RowLoader` describes the order of batches and
  processes.

  Args:
    store: the documents, of the task `text`.
    layout: one of `atoms.LAYOUTS`.
    row_length: S, in tokens.
    atom_size: s, in tokens; 0 for the row length.
    batch_size: B, rows of a batch, over all processes.
    seed: selects the order of atoms.
    loss_on_padding: whether end tokens that only fill an atom are targets too. The first
      end token after the text always is.

  Raises:
    InputError: the layout is unknown, neither of atom and row divides the other, or an
      option is out of range.
  """

  def __init__(
    self,
    store: SequenceStore,
    *,
    layout: str,
    row_length: int,
    atom_size: int = 0,
    batch_size: int,
    seed: int,
    loss_on_padding: bool = False,
  ):
    self.store, self.loss_on_padding = store, loss_on_padding
    lengths, self.end_id = documents(store)
    self.atoms = cut(
      lengths, layout=layout, atom_size=atom_size or row_length, row_length=row_length
    )
    self.isolated = layout == "concat_isolated"
    self._ends = np.cumsum(lengths + 1)
    self.num_slots = self._most_documents() if self.isolated else 1
    self.order = LastTwo(functools.partial(self.atoms.order, seed))
    super().__init__(
      num_rows=self.atoms.num_rows,
      row_length=row_length,
      batch_size=batch_size,
      shuffle_seed=None,
    )

  def _documents_at(self, places: np.ndarray) -> np.ndarray:
    """The numbers of the documents at some places of the stream."""
    return np.searchsorted(self._ends, places, side="right")

  def _most_documents(self) -> int:
    """The most that a row can have parts of."""
    first, last = self.atoms.starts, self.atoms.starts + self.atoms.lengths - 1
    in_block = self._documents_at(last) - self._documents_at(first) + 1
    return int(in_block.max()) * self.atoms.blocks_per_row

  def _contents(self, epoch: int | None, rows: np.ndarray) -> np.ndarray:
    order = np.arange(self.atoms.starts.size) if epoch is None else self.order(epoch)
    return self.atoms.rows_of(order, rows)

  def _lay_out(self, contents: np.ndarray, epochs: np.ndarray) -> PackedBatch:
    """Adds `loss_mask` and `real_tokens`, which does not count end tokens that only fill.

    The model treats end tokens as any token; the unused end of the last row is padding.
    `sequence_ids` is the number of the row's first atom. If documents are isolated, a
    sequence is what a block has of a document.
    """
    sizes = self.atoms.sizes(contents)
    rows = np.repeat(np.arange(len(contents)), sizes.sum(axis=1))  # of each token
    used = contents >= 0
    starts, text_lengths = (
      x[contents[used]] for x in (self.atoms.starts, self.atoms.lengths)
    )
    sizes = sizes[used]
    places = ranges(0, sizes)  # in their blocks
    text = np.repeat(text_lengths, sizes)  # of the block of each token
    tokens = np.full(places.size, self.end_id, np.int32)
    tokens[places < text] = self.store.read(starts, text_lengths)

    slots = np.zeros(tokens.size, np.int64)  # of each token
    if self.isolated:
      owners = self._documents_at(np.repeat(starts, sizes) + places)
      numbers = np.cumsum((places == 0) | (np.diff(owners, prepend=-1) != 0))
      slots = numbers - numbers[np.searchsorted(rows, rows)]
    lengths = np.zeros((len(contents), self.num_slots), np.int64)
    np.add.at(lengths, (rows, slots), 1)
    first_atoms = np.searchsorted(self.atoms.offsets, contents[:, :1], side="right") - 1
    sequence_ids = np.where(lengths > 0, first_atoms, -1)
    batch = lay_out(tokens, lengths, sequence_ids, row_length=self.row_length)

    real = batch["segment_ids"] > 0
    is_target = real.copy()
    is_target[real] = places <= text  # the text and the first end token after it
    return batch | {
      "loss_mask": real if self.loss_on_padding else is_target,
      "real_tokens": is_target.sum(axis=1, dtype=np.int32),
    }
