"""The order of batches: rows reshuffled in each epoch, epochs laid end to end."""

from __future__ import annotations

import abc
import copy
import functools
import math
from collections.abc import Callable, Iterator
from typing import Self

import grain
import numpy as np

import packing
from packing.epochs import LastTwo, assign_epoch
from packing.errors import check, check_integer
from packing.histogram import check_same_lengths
from pipeline.batches.balance import BALANCES, Balance, BalancedOrder
from pipeline.batches.masking import Masking, mask_tokens
from pipeline.batches.packed import PackedBatch, pack_rows
from pipeline.batches.plans import epoch_order, plan_sha256
from pipeline.batches.position import (
  block_of_process,
  check_same_order,
  check_same_state,
  ids_sha256,
)
from pipeline.store import SequenceStore

_ROWS_AT_ONCE = 32  # a few hundred kB of each array, which fit into the cache
_ROWS_TOGETHER = 1024  # whose sequences are computed together


class RowLoader(abc.ABC):
  """Endless batches of rows, all of one shape.

  Epochs are laid end to end, and batch `t` is their rows `t * B` to `(t + 1) * B`. So no
  row is dropped and none is padding alone. A batch depends only on the seed and `t`.
  Process `p` of `P` makes the `p`-th of its `P` equal blocks; joined, the blocks are the
  same batch for any `P`.

  Args:
    num_rows: rows of an epoch.
    row_length: S, in tokens.
    batch_size: B, rows of a batch, over all processes.
    shuffle_seed: reshuffles the rows in each epoch; None to keep their order.

  Attributes:
    batches: this process's blocks as a `grain.MapDataset`, to build on.
    plan_sha256: SHA-256 of the plan that the rows follow; None if they follow none.
    balance: how rows are dealt to steps; at random ("none"), except in `PackedLoader`.

  Raises:
    InputError: an option is out of range.

  Example: 2 processes with 4 rows per batch.

    global batch 7   rows 28 29 30 31 of the epochs laid end to end
    process 0        rows 28 29
    process 1                    rows 30 31
  """

  plan_sha256: str | None = None
  _read_ahead: Callable[[np.ndarray], None] | None = None  # given what comes next
  balance: Balance = "none"
  group = 1

  def __init__(
    self,
    *,
    num_rows: int,
    row_length: int,
    batch_size: int,
    shuffle_seed: int | None,
  ):
    self.num_rows, self.row_length = num_rows, row_length
    self.batch_size = batch_size
    self._shuffle_seed = shuffle_seed
    self._set_process(0, 1)

  def for_process(self, process_index: int, process_count: int) -> Self:
    """A copy of this loader for another process; both share the order of sequences.

    Raises:
      InputError: the processes do not divide the batch, or a number is out of range.
    """
    other = copy.copy(self)
    other._set_process(process_index, process_count)
    return other

  def _set_process(self, process_index: int, process_count: int):
    self._block = block_of_process(self.batch_size, process_index, process_count)
    self._size = self.batch_size // process_count
    self.process_index, self.process_count = process_index, process_count
    self._steps_together = max(_ROWS_TOGETHER // self._size, 1)
    self._contents_of_steps = LastTwo(self._contents_together)
    steps = grain.MapDataset.range(1).repeat()
    self.batches = steps.map_with_index(lambda step, _: self._make_batch(step))

  def _rows_of(self, steps: np.ndarray) -> np.ndarray:
    """int64[n, B / P]: this process's rows of some steps.

    Their numbers continue from epoch to epoch, so one gives both epoch and row.
    """
    rows = steps[:, None] * self.batch_size + np.arange(self.batch_size)[self._block]
    if self._shuffle_seed is None:
      return rows
    epochs, places = np.divmod(rows, self.num_rows)
    for epoch in np.unique(epochs).tolist():
      here = epochs == epoch
      order = epoch_order(self.num_rows, self._shuffle_seed, epoch, places[here])
      rows[here] = epoch * self.num_rows + order
    return rows

  def _make_batch(self, step: int) -> PackedBatch:
    group, number = divmod(step, self._steps_together)
    contents, epochs = self._contents_of_steps(group)
    if self._read_ahead:
      self._contents_of_steps(group + 1)
    rows = slice(number * self._size, (number + 1) * self._size)
    return self._lay_out(contents[rows], epochs[rows])

  def _contents_together(self, group: int) -> tuple[np.ndarray, np.ndarray]:
    """`_contents_of` this process's rows of a group of steps, which saves time.

    They are read ahead, if their files may not be in memory.
    """
    first = group * self._steps_together
    steps = np.arange(first, first + self._steps_together)
    contents, epochs = self._contents_of(self._rows_of(steps).ravel())
    if self._read_ahead:
      self._read_ahead(contents[contents >= 0])
    return contents, epochs

  def _contents_of(self, row_numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int64[R, K], `_contents` of rows of any epochs; and int64[R], their epochs."""
    epochs, rows = np.divmod(row_numbers, self.num_rows)  # a batch may cross epochs
    parts = [self._contents(int(e), rows[epochs == e]) for e in np.unique(epochs)]
    by_epoch = np.argsort(epochs, kind="stable")
    contents = np.empty((rows.size, parts[0].shape[1]), np.int64)
    contents[by_epoch] = np.concatenate(parts)
    return contents, epochs

  def contents_of_step(self, step: int) -> np.ndarray:
    """int64[B, K], `_contents` of a batch of all processes, by number of row."""
    rows = self.for_process(0, 1)._rows_of(np.array([step]))
    return self._contents_of(np.sort(rows[0]))[0]

  @abc.abstractmethod
  def _contents(self, epoch: int | None, rows: np.ndarray) -> np.ndarray:
    """int64[R, K]: the sequences, blocks or windows of some rows; -1 fills the rest.

    Epoch None is the evaluation, whose rows never change.
    """

  @abc.abstractmethod
  def _lay_out(self, contents: np.ndarray, epochs: np.ndarray) -> PackedBatch:
    """Makes rows from what `_contents` returns; a row of only -1 is empty."""

  @property
  def max_masked(self) -> int:
    """P: the most masked tokens in a row; 0 without masking."""
    return 0

  @property
  def batches_per_epoch(self) -> float:
    return self.num_rows / self.batch_size

  def __getitem__(self, step: int) -> PackedBatch:
    """This process's block of batch number `step`."""
    return self.batches[step]

  def iterate(self, first_step: int = 0) -> BatchIterator:
    """Batches from `first_step` on, made ahead of time in the background."""
    return BatchIterator(self, first_step)

  def first_rows(self, num_rows: int) -> np.ndarray:
    """int32[num_rows, S]: segment ids of this process's first rows, for pictures."""
    num_batches = math.ceil(num_rows * self.process_count / self.batch_size)
    rows = [self[step]["segment_ids"] for step in range(num_batches)]
    return np.concatenate(rows)[:num_rows]

  def evaluation_batches(self) -> Iterator[PackedBatch]:
    """Each row once over all processes, not shuffled; the last rows may be empty."""
    for step in range(self.num_evaluation_batches):
      start = step * self.batch_size + self.process_index * self._size
      rows = np.arange(start, start + self._size)
      contents = self._contents(None, rows[rows < self.num_rows])
      if self._read_ahead:
        self._read_ahead(contents[contents >= 0])
      missing = ((0, self._size - len(contents)), (0, 0))
      contents = np.pad(contents, missing, constant_values=-1)
      yield self._lay_out(contents, np.zeros(self._size, np.int64))

  @property
  def num_evaluation_batches(self) -> int:
    return math.ceil(self.num_rows / self.batch_size)


class PackedLoader(RowLoader):
  """Endless packed batches, all of one shape.

  Each epoch gives the same plan a fresh assignment: every sequence is used exactly once
  per epoch, each time with new neighbours. `RowLoader` describes the order of batches and
  processes.

  Args:
    store: the sequences.
    plan: made from their lengths.
    batch_size: B, packs of a batch, over all processes.
    masking: how tokens are masked; None for batches without the `mlm_` fields.
    seed: selects the assignments and the order of packs.
    balance: `none`; or `devices`, all devices of a step have nearly the same cost. The cost
      is the sum of squared lengths, which is what attention computes if it skips foreign
      sequences.
    devices: how many share a batch, each with a block of its rows; a divisor of B.

  Raises:
    InputError: an option is out of range.
  """

  def __init__(
    self,
    store: SequenceStore,
    plan: packing.Plan,
    *,
    batch_size: int,
    masking: Masking | None,
    seed: int,
    balance: Balance = "none",
    devices: int = 1,
  ):
    self.store, self.plan, self.masking = store, plan, masking
    self.plan_sha256, self.seed = plan_sha256(plan), seed
    self._read_ahead = store.read_ahead if store.reads_ahead else None
    check_integer("seed", seed, at_least=0)
    if store.histogram.sha256 != plan.histogram.sha256:
      check_same_lengths(store.lengths, plan.histogram)  # raises, and says where
    self._assigned = LastTwo(functools.partial(_assign_epoch, plan, store, seed))
    self.balance, self._devices = balance, devices
    self._set_group(devices, batch_size)
    super().__init__(
      num_rows=plan.num_packs,
      row_length=plan.row_length,
      batch_size=batch_size,
      shuffle_seed=seed,
    )

  def with_group(self, group: int) -> Self:
    """A copy of this loader in the order of a run that began with `group` devices."""
    other = copy.copy(self)
    other._set_group(group, self.batch_size)
    other._set_process(self.process_index, self.process_count)
    return other

  def _set_group(self, group: int, batch_size: int):
    self.group, self._order = group, None
    check(self.balance in BALANCES, "balance", self.balance, ", ".join(BALANCES))
    if self.balance != "none":
      self._order = BalancedOrder(
        self.plan,
        devices=self._devices,
        group=group,
        batch_size=batch_size,
        seed=self.seed,
      )

  def _rows_of(self, steps: np.ndarray) -> np.ndarray:
    if self._order is None:
      return super()._rows_of(steps)
    return np.stack([self._order(step)[self._block] for step in steps.tolist()])

  def epochs_of(self, step: int) -> np.ndarray:
    """int64[B]; the epoch of each row of a batch, over all processes."""
    if self._order is None:
      return (step * self.batch_size + np.arange(self.batch_size)) // self.num_rows
    return self._order(step) // self.num_rows

  @property
  def max_masked(self) -> int:
    if self.masking is None:
      return 0
    return self.masking.max_masked(self.plan.row_length, self.plan.packing_depth)

  def _contents(self, epoch: int | None, rows: np.ndarray) -> np.ndarray:
    return self._assigned(epoch or 0).sequences(rows)

  def _lay_out(self, contents: np.ndarray, epochs: np.ndarray) -> PackedBatch:
    parts = []
    for start in range(0, len(contents), _ROWS_AT_ONCE):
      rows = slice(start, start + _ROWS_AT_ONCE)
      part = pack_rows(
        self.store,
        contents[rows],
        row_length=self.plan.row_length,
        **self.plan.spacing,
      )
      if self.masking is not None:
        part = mask_tokens(part, self.masking, epochs=epochs[rows])
      parts.append(part)
    return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


def _assign_epoch(
  plan: packing.Plan, store: SequenceStore, seed: int, epoch: int
) -> packing.Assignment:
  return assign_epoch(plan, store.by_length, seed, epoch)


class BatchIterator(Iterator[PackedBatch]):
  """Batches in order; the position of the iterator is the number of the next batch.

  Args:
    loader: makes the batches.
    first_step: the batch to begin with.

  Example:

    batches = loader.iterate()
    next(batches)
    state = batches.get_state()
    # {"step": 1, "batch_size": 16, "rows": "41d0...", "plan": "9f3a..."}
    other_loader.iterate().set_state(state)   # on any number of processes
  """

  def __init__(self, loader: RowLoader, first_step: int):
    self._loader = loader
    self._step = check_integer("first_step", first_step, at_least=0)
    self._ahead: grain.DatasetIterator | None = None  # starts with the first batch

  def __next__(self) -> PackedBatch:
    if self._ahead is None:
      self._ahead = self._start()
    batch = next(self._ahead)
    self._step += 1
    return batch

  def get_state(self) -> dict[str, int | str]:
    """The state to save in a checkpoint.

    It has `step`, the number of the next batch, and `batch_size`; `rows`, the SHA-256 of
    its sequences, over all processes; for packed rows `plan`, the SHA-256 of the plan; and
    for balanced rows `balance` and its `group`.
    """
    loader = self._loader
    state: dict[str, int | str] = {
      "step": self._step,
      "batch_size": loader.batch_size,
      "rows": ids_sha256(loader.contents_of_step(self._step)),
    }
    if loader.plan_sha256:
      state["plan"] = loader.plan_sha256
    if loader.balance != "none":
      state |= {"balance": loader.balance, "group": loader.group}
    return state

  def set_state(self, state: dict[str, int | str]):
    """Resumes where `get_state` was called, on this or any number of processes.

    Args:
      state: from `get_state`.

    Raises:
      InputError: the state has another batch size, plan or balance, or other fields; or
        the order of rows has changed.
    """
    check_same_state(state, self.get_state(), ("batch_size", "plan", "balance"))
    step, loader = check_integer("step", state["step"], at_least=0), self._loader
    if isinstance(loader, PackedLoader) and "group" in state:
      loader = loader.with_group(check_integer("group", state["group"], at_least=1))
    check_same_order(state["rows"], loader.contents_of_step(step))
    self.close()
    self._step, self._loader = step, loader

  def close(self):
    """Ends the thread; the next batch starts it again."""
    if self._ahead is not None:
      self._ahead.close()
      self._ahead = None

  def _start(self) -> grain.DatasetIterator:
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
    return iter(self._loader.batches[self._step :].to_iter_dataset(options))
