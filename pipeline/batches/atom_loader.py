"""Rows of atoms, reshuffled in each epoch, as batches without end."""

from __future__ import annotations

import numpy as np

from pipeline.batches import atoms
from pipeline.batches.loader import RowLoader
from pipeline.batches.packed import PackedBatch
from pipeline.store import SequenceStore


class AtomLoader(RowLoader):
  """Batches of the layouts `concat` and `padding`; see `pipeline/batches/atoms.py`.

  Each epoch shuffles the atoms and then makes rows of them, so the rows of an atom longer
  than a row follow each other. `RowLoader` describes the order of batches, processes and
  workers.

  Args:
    store: the documents, of the task `text`.
    layout: "concat" or "padding".
    row_length: S, in tokens.
    atom_size: s, in tokens; 0 for the row length.
    batch_size: B, rows of a batch, over all processes.
    seed: the order of atoms depends on it.
    loss_on_padding: whether end tokens that only fill an atom are targets too.
    num_slots: M, the sequences that the batch has room for; a row is one sequence.
    process_index, process_count, workers: see `RowLoader`.

  Raises:
    InputError: the layout is unknown, neither of atom and row divides the other, the
      processes do not divide the batch, or an option is out of range.
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
    """int64[K]: the blocks of an epoch in order. The two newest orders are kept."""
    order = self._orders.get(epoch)
    if order is None:
      order = self.atoms.order((self.seed, epoch))
      newest = dict(list(self._orders.items())[-1:])
      self._orders = newest | {epoch: order}  # replaced at once, since threads read it
    return order

  def __getstate__(self):
    return vars(self) | {"_orders": {}}  # a worker computes its own

  def _contents(self, epoch: int | None, rows: np.ndarray) -> np.ndarray:
    in_place = np.arange(self.atoms.starts.size)
    return self.atoms.rows_of(in_place if epoch is None else self.order(epoch), rows)

  def _lay_out(self, contents: np.ndarray, epochs: np.ndarray) -> PackedBatch:
    return atoms.lay_out_blocks(
      self.atoms,
      contents,
      read=self.store.read,
      end_id=self.end_id,
      loss_on_padding=self.loss_on_padding,
      num_slots=self.num_slots,
    )
