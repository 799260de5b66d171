"""The order of batches: packs shuffled anew each epoch, epochs laid end to end."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import grain
import numpy as np

import packing
from pipeline.batches import Masking, PackedBatch, mask_tokens, pack_rows
from pipeline.store import SequenceStore


class PackedLoader:
  """Packed, masked batches of one shape, without end.

  Epoch after epoch the same plan gets a fresh assignment: every sequence is used exactly
  once an epoch, each time with other neighbours. Batch `t` is rows `t * B` to
  `(t + 1) * B` of the epochs laid end to end, so that no row is dropped, and it depends
  on the seed and on `t` alone.

  Args:
    store: the sequences.
    plan: made from their lengths.
    batch_size: B, packs in a batch.
    masking: how tokens are hidden.
    seed: of the assignments and of the order of packs.
  """

  def __init__(
    self,
    store: SequenceStore,
    plan: packing.Plan,
    *,
    batch_size: int,
    masking: Masking,
    seed: int,
  ):
    self.store, self.plan, self.masking = store, plan, masking
    self.batch_size = batch_size
    self._seed = seed
    self._assigned = functools.lru_cache(maxsize=2)(self._assign)
    # Grain counts rows on through the epochs; shuffled within each, a number holds both.
    rows = grain.MapDataset.range(plan.num_packs).map_with_index(lambda row, _: row)
    rows = rows.seed(seed).shuffle().repeat().batch(batch_size, drop_remainder=True)
    self._batches = rows.map(self._make_batch)

  @property
  def batches_per_epoch(self) -> float:
    return self.plan.num_packs / self.batch_size

  def __getitem__(self, step: int) -> PackedBatch:
    """Batch number `step`."""
    return self._batches[step]

  def iterate(self, first_step: int = 0) -> Iterator[PackedBatch]:
    """Batches from `first_step` on, made ahead of time by a background thread."""
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
    iterator = iter(self._batches.to_iter_dataset(options))
    iterator.set_state({"next_index": first_step})
    return iterator

  def first_rows(self, num_rows: int) -> np.ndarray:
    """int32[num_rows, S]: segment ids of the first rows, to look at."""
    num_batches = math.ceil(num_rows / self.batch_size)
    rows = [self[step]["segment_ids"] for step in range(num_batches)]
    return np.concatenate(rows)[:num_rows]

  def evaluation_batches(self) -> Iterator[PackedBatch]:
    """Each sequence once, in the plan's order; the last rows are empty."""
    num_packs = self.plan.num_packs
    sequence_ids = self._assigned(0)
    for start in range(0, num_packs, self.batch_size):
      rows = np.full((self.batch_size, sequence_ids.shape[1]), -1, np.int64)
      part = sequence_ids[start : start + self.batch_size]
      rows[: len(part)] = part
      yield self._pack(rows, epochs=np.zeros(self.batch_size, np.int64))

  @property
  def num_evaluation_batches(self) -> int:
    return math.ceil(self.plan.num_packs / self.batch_size)

  def _assign(self, epoch: int) -> np.ndarray:
    """int64[num_packs, M]; sequence numbers of each pack, then -1."""
    seed = int(np.random.SeedSequence([self._seed, epoch]).generate_state(1)[0])
    assignment = self.plan.assign(self.store.lengths, seed=seed)
    depths = np.diff(assignment.offsets)
    rows = np.full((self.plan.num_packs, self.plan.packing_depth), -1, np.int64)
    rows[np.arange(self.plan.packing_depth) < depths[:, None]] = assignment.sequence_ids
    return rows

  def _make_batch(self, row_numbers: np.ndarray) -> PackedBatch:
    epochs, packs = np.divmod(row_numbers, self.plan.num_packs)
    sequence_ids = np.empty((len(packs), self.plan.packing_depth), np.int64)
    for epoch in np.unique(epochs):
      here = epochs == epoch
      sequence_ids[here] = self._assigned(int(epoch))[packs[here]]
    return self._pack(sequence_ids, epochs=epochs)

  def _pack(self, sequence_ids: np.ndarray, *, epochs: np.ndarray) -> PackedBatch:
    batch = pack_rows(self.store, sequence_ids, row_length=self.plan.row_length)
    return mask_tokens(batch, self.masking, epochs=epochs)
