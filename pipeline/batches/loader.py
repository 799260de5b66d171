"""The order of batches: rows shuffled anew each epoch, epochs laid end to end."""

from __future__ import annotations

import abc
import copy
import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from typing import Self

import grain
import numpy as np
from absl import flags

import packing
from packing import InputError
from packing.errors import check_integer, short_repr
from pipeline.batches.epochs import AssignmentMode, Epochs
from pipeline.batches.packed import (
  Masking,
  PackedBatch,
  mask_tokens,
  pack_rows,
  rows_per_process,
)
from pipeline.batches.plans import plan_sha256
from pipeline.store import SequenceStore

_ROWS_AT_ONCE = 32  # a few hundred kB of each array: they stay in the cache


class RowLoader(abc.ABC):
  """Batches of rows of one shape, without end.

  Batch `t` is rows `t * B` to `(t + 1) * B` of the epochs laid end to end, so no row is
  dropped and none is padding alone. It depends on the seed and on `t` alone; host `h` of
  `H` gets the `h`-th of its `H` equal blocks, so the blocks of all hosts are the same
  batch for any `H`.

  Args:
    num_rows: rows of an epoch.
    row_length: S, in tokens.
    batch_size: B, rows in a batch, over all hosts.
    shuffle_seed: rows are shuffled with it in each epoch; None to leave their order.
    process_index, process_count: which block of a batch to make: from 0.
    workers: processes that make batches ahead of time, for `iterate`; 0 for one thread
      of this process. The batches are the same. A program that uses workers guards its
      entry with `if __name__ == "__main__"`, since each imports it anew.

  Attributes:
    batches: the blocks of this host as a `grain.MapDataset`, for a pipeline of one's own.
    plan_sha256: of the plan that the rows follow; None where they follow none.

  Raises:
    InputError: the hosts do not divide the batch, or an option is out of its range.

  Example, of 2 hosts with 4 rows a batch:

    global batch 7   rows 28 29 30 31 of the epochs laid end to end
    host 0           rows 28 29
    host 1                       rows 30 31
  """

  plan_sha256: str | None = None

  def __init__(
    self,
    *,
    num_rows: int,
    row_length: int,
    batch_size: int,
    shuffle_seed: int | None,
    process_index: int,
    process_count: int,
    workers: int,
  ):
    self.num_rows, self.row_length = num_rows, row_length
    self.batch_size = batch_size
    self.workers = check_integer("workers", workers, at_least=0)
    # Grain counts rows on through the epochs; shuffled within each, a number holds both.
    rows = grain.MapDataset.range(num_rows).map_with_index(lambda row, _: row)
    if shuffle_seed is not None:
      rows = rows.seed(shuffle_seed).shuffle()
    self._rows = rows.repeat()
    self._set_process(process_index, process_count)

  def for_process(self, process_index: int, process_count: int) -> Self:
    """The loader as another host has it. Assignments are shared, not made again."""
    other = copy.copy(self)
    other._set_process(process_index, process_count)
    return other

  def _set_process(self, process_index: int, process_count: int):
    self._size = rows_per_process(
      self.batch_size, process_index=process_index, process_count=process_count
    )
    self.process_index, self.process_count = process_index, process_count
    blocks = self._rows.batch(self._size, drop_remainder=True)
    self.batches = blocks[process_index::process_count].map(self._make_batch)

  @abc.abstractmethod
  def _make_batch(self, row_numbers: np.ndarray) -> PackedBatch:
    """Rows by their numbers, counted on through the epochs."""

  @abc.abstractmethod
  def _evaluation_batch(self, rows: np.ndarray, size: int) -> PackedBatch:
    """Rows of an epoch that is not shuffled, and empty ones up to a size."""

  @property
  def max_masked(self) -> int:
    """P: masked tokens of a row at most; 0 where none are masked."""
    return 0

  @property
  def batches_per_epoch(self) -> float:
    return self.num_rows / self.batch_size

  def __getitem__(self, step: int) -> PackedBatch:
    """This host's block of batch number `step`."""
    return self.batches[step]

  def iterate(self, first_step: int = 0) -> BatchIterator:
    """Batches from `first_step` on, made ahead of time in the background."""
    return BatchIterator(self, first_step)

  def first_rows(self, num_rows: int) -> np.ndarray:
    """int32[num_rows, S]: segment ids of the first rows of this host, to look at."""
    num_batches = math.ceil(num_rows * self.process_count / self.batch_size)
    rows = [self[step]["segment_ids"] for step in range(num_batches)]
    return np.concatenate(rows)[:num_rows]

  def evaluation_batches(self) -> Iterator[PackedBatch]:
    """Each row once over all hosts, not shuffled; the last rows are empty."""
    for step in range(self.num_evaluation_batches):
      start = step * self.batch_size + self.process_index * self._size
      end = min(start + self._size, self.num_rows)
      yield self._evaluation_batch(np.arange(min(start, end), end), self._size)

  @property
  def num_evaluation_batches(self) -> int:
    return math.ceil(self.num_rows / self.batch_size)


class PackedLoader(RowLoader):
  """Packed batches of one shape, without end.

  Epoch after epoch the same plan gets a fresh assignment: every sequence is used exactly
  once an epoch, each time with other neighbours. The order of batches, processes and
  workers are those of `RowLoader`.

  Args:
    store: the sequences.
    plan: made from their lengths.
    batch_size: B, packs in a batch, over all hosts.
    masking: how tokens are hidden; None to leave them and the `mlm_` fields out.
    seed: of the assignments and of the order of packs.
    assignment: `fresh`, other neighbours each epoch; `fixed`, the same always; or an
      assignment of this plan, such as `pipeline.read_assignment` gives, for all epochs.
      The order of packs is another each epoch in all.
    process_index, process_count, workers: as of `RowLoader`.

  Raises:
    InputError: the hosts do not divide the batch, an option is out of its range, or the
      assignment is of another plan or dataset.
  """

  def __init__(
    self,
    store: SequenceStore,
    plan: packing.Plan,
    *,
    batch_size: int,
    masking: Masking | None,
    seed: int,
    assignment: AssignmentMode | packing.Assignment = "fresh",
    process_index: int = 0,
    process_count: int = 1,
    workers: int = 0,
  ):
    self.store, self.plan, self.masking = store, plan, masking
    self.plan_sha256 = plan_sha256(plan)
    self.epochs = Epochs(plan, store.lengths, seed=seed, mode=assignment)
    super().__init__(
      num_rows=plan.num_packs,
      row_length=plan.row_length,
      batch_size=batch_size,
      shuffle_seed=seed,
      process_index=process_index,
      process_count=process_count,
      workers=workers,
    )

  @property
  def max_masked(self) -> int:
    """P: masked tokens of a row at most; 0 where none are masked."""
    if self.masking is None:
      return 0
    return self.masking.max_masked(self.plan.row_length, self.plan.packing_depth)

  def _evaluation_batch(self, rows: np.ndarray, size: int) -> PackedBatch:
    """Packs in the plan's order."""
    sequence_ids = np.full((size, self.plan.packing_depth), -1, np.int64)
    sequence_ids[: rows.size] = self.epochs.sequence_ids(0, rows)
    return self._pack(sequence_ids, epochs=np.zeros(size, np.int64))

  def _make_batch(self, row_numbers: np.ndarray) -> PackedBatch:
    epochs, packs = np.divmod(row_numbers, self.plan.num_packs)
    sequence_ids = np.empty((len(packs), self.plan.packing_depth), np.int64)
    for epoch in np.unique(epochs):
      here = epochs == epoch
      sequence_ids[here] = self.epochs.sequence_ids(int(epoch), packs[here])
    return self._pack(sequence_ids, epochs=epochs)

  def _pack(self, sequence_ids: np.ndarray, *, epochs: np.ndarray) -> PackedBatch:
    parts = []
    for start in range(0, len(sequence_ids), _ROWS_AT_ONCE):
      rows = slice(start, start + _ROWS_AT_ONCE)
      part = pack_rows(self.store, sequence_ids[rows], row_length=self.plan.row_length)
      if self.masking is not None:
        part = mask_tokens(part, self.masking, epochs=epochs[rows])
      parts.append(part)
    return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


class BatchIterator(Iterator[PackedBatch]):
  """Batches one after the other; the position is the number of the next one.

  Args:
    loader: makes the batches.
    first_step: the batch to begin with.

  Example:

    batches = loader.iterate()
    next(batches)
    state = batches.get_state()  # {"step": 1, "batch_size": 16, "plan": "9f3a..."}
    other_loader.iterate().set_state(state)   # also on another number of hosts
  """

  def __init__(self, loader: RowLoader, first_step: int):
    self._loader = loader
    self._step = check_integer("first_step", first_step, at_least=0)
    self._ahead: grain.DatasetIterator | None = None  # begun with the first batch

  def __next__(self) -> PackedBatch:
    if self._ahead is None:
      self._ahead = self._begin()
    batch = next(self._ahead)
    self._step += 1
    if self._loader.workers:  # out of shared memory, which is not ours to keep
      batch = {name: np.array(field) for name, field in batch.items()}
    return batch

  def get_state(self) -> dict[str, int | str]:
    """For the checkpoint: `step`, the number of the next batch, and what it counts in.

    That is `batch_size`, and of packed rows `plan`, the SHA-256 of their plan.
    """
    state = {"step": self._step, "batch_size": self._loader.batch_size}
    plan = self._loader.plan_sha256
    return state | ({"plan": plan} if plan else {})

  def set_state(self, state: dict[str, int | str]):
    """Goes on where `get_state` was called, on this or any other number of hosts.

    Args:
      state: of `get_state`; earlier versions did not name the plan.

    Raises:
      InputError: the state is of another batch size or another plan, or none.
    """
    if set(state) - {"plan"} != {"step", "batch_size"}:
      raise InputError(
        f"Expected a state with step and batch_size, found {short_repr(state)}."
      )
    if state["batch_size"] != self._loader.batch_size:
      raise InputError(
        f"The state counts batches of {state['batch_size']} packs; expected "
        f"{self._loader.batch_size}. Go on with the batch size it was saved with."
      )
    plan = self._loader.plan_sha256
    if state.get("plan", plan) != plan:
      raise InputError(
        f"The state counts packs of the plan {_short(state['plan'])}; here it is "
        f"{_short(plan)} (SHA-256). Go on with the plan it was saved with."
      )
    step = check_integer("step", state["step"], at_least=0)
    self.close()
    self._step = step

  def close(self):
    """Ends the thread or the workers; the next batch starts them again."""
    if self._ahead is not None:
      self._ahead.close()
      self._ahead = None

  def _begin(self) -> grain.DatasetIterator:
    # Sliced, not moved to the step: so workers, too, start there at any number of them.
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
    ahead = self._loader.batches[self._step :].to_iter_dataset(options)
    if self._loader.workers:
      if not flags.FLAGS.is_parsed():  # Grain reads its own, outside absl's app.run too
        flags.FLAGS.mark_as_parsed()
      ahead = ahead.mp_prefetch(
        grain.MultiprocessingOptions(
          num_workers=self._loader.workers, per_worker_buffer_size=2
        ),
        _follow_parent,
      )
    return iter(ahead)


def _short(sha256) -> str:
  return f"{str(sha256)[:12]}..." if sha256 else "none"


def _follow_parent(worker: int, workers: int):
  """Has a worker end when the program does, also if it is killed, and not before.

  Grain's would wait for ever for a program that was killed. Ctrl-C on a terminal goes to
  them all, and the program may need more batches to end in good order.
  """
  del worker, workers
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  parent = multiprocessing.parent_process()
  assert parent is not None

  def watch():
    parent.join()
    os._exit(1)

  threading.Thread(target=watch, daemon=True).start()
