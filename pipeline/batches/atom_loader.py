"""Rows of atoms, shuffled anew each epoch, as batches without end."""

from __future__ import annotations

import numpy as np

from pipeline.batches import atoms
from pipeline.batches.loader import RowLoader
from pipeline.batches.packed import PackedBatch
from pipeline.store import SequenceStore


class AtomLoader(RowLoader):
  """Batches of the layouts `concat` and `padding`; see `pipeline/batches/atoms.py`.

  The atoms are shuffled anew in each epoch and then made into rows, so parts of an atom
  that is longer than a row follow each other. The order of batches, processes and workers
  are those of `RowLoader`.

  Args:
    store: the documents, of the task `text`.
    layout: "concat" or "padding".
    row_length: S, in tokens.
    atom_size: s, in tokens; 0 for the row length.
    batch_size: B, rows in a batch, over all hosts.
    seed: of the order of atoms.
    loss_on_padding: whether end tokens that only fill an atom are predicted too.
    num_slots: M, sequences that the batch has room for; a row is one.
    process_index, process_count, workers: as of `RowLoader`.

  Raises:
    InputError: no such layout, neither of atom and row divides the other, the hosts do
      not divide the batch, or an option is out of its range.
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
    num_slots: int = 1,
    process_index: int = 0,
    process_count: int = 1,
    workers: int = 0,
  ):
    self.store, self.seed, self.num_slots = store, seed, num_slots
    self.loss_on_padding = loss_on_padding
    lengths, self.end_id = atoms.documents(store)
    self.atoms = atoms.cut(
      lengths, layout=layout, atom_size=atom_size or row_length, row_length=row_length
    )
    self._orders: dict[int, np.ndarray] = {}
    super().__init__(
      num_rows=self.atoms.num_rows,
      row_length=row_length,
      batch_size=batch_size,
      shuffle_seed=None,
      process_index=process_index,
      process_count=process_count,
      workers=workers,
    )

  def order(self, epoch: int) -> np.ndarray:
    """int64[K]: the blocks of an epoch in their order. The two made last are kept."""
    found = self._orders.get(epoch)
    if found is None:
      found = self.atoms.order((self.seed, epoch))
      newest = dict(list(self._orders.items())[-1:])
      self._orders = newest | {epoch: found}  # whole, since threads read it
    return found

  def __getstate__(self):
    return vars(self) | {"_orders": {}}  # a worker makes its own

  def _make_batch(self, row_numbers: np.ndarray) -> PackedBatch:
    epochs, rows = np.divmod(row_numbers, self.num_rows)
    blocks = np.empty((rows.size, self.atoms.blocks_per_row), np.int64)
    for epoch in np.unique(epochs):
      here = epochs == epoch
      blocks[here] = self.atoms.rows_of(self.order(int(epoch)), rows[here])
    return self._lay_out(blocks)

  def _evaluation_batch(self, rows: np.ndarray, size: int) -> PackedBatch:
    blocks = np.full((size, self.atoms.blocks_per_row), -1, np.int64)
    order = np.arange(self.atoms.starts.size)
    blocks[: rows.size] = self.atoms.rows_of(order, rows)
    return self._lay_out(blocks)

  def _lay_out(self, blocks: np.ndarray) -> PackedBatch:
    return atoms.lay_out(
      self.atoms,
      blocks,
      read=self.store.read,
      end_id=self.end_id,
      loss_on_padding=self.loss_on_padding,
      num_slots=self.num_slots,
    )
