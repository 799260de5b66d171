"""Packs made while reading a dataset in random order, or a stream."""

from __future__ import annotations

import copy
import itertools
import queue
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

import packing
from packing import InputError
from packing.errors import check, check_integer
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

AHEAD = 2  # batches made ahead of time
_POLL = 0.5  # seconds between checks whether to end
_AT_ONCE = 1024  # sequences whose places in the order are computed together


class Gathered(NamedTuple):
  """The sequences of a batch.

  Attributes:
    store: the store that holds them.
    places: int64[N]; the position of each in the store.
    numbers: int64[N]; identify the sequences, also after a restart.
    epochs: int64[N]; the epoch of each.
  """

  store: SequenceStore
  places: np.ndarray
  numbers: np.ndarray
  epochs: np.ndarray


class Position(NamedTuple):
  """Where iteration stands after a batch; becomes a state only when one is asked for.

  Attributes:
    step: the number of the next batch.
    packer: a copy of the packer.
    reader: the state of the reader.
  """

  step: int
  packer: packing.StreamPacker
  reader: Any


class Reader(Protocol):
  """Sequences in order, as examples made of JSON values and NumPy arrays."""

  def read(self) -> Iterator[list[Any]]:
    """Yields examples a few at a time. Between two yields, `state` returns the position."""

  def length(self, example: Any) -> int:
    """Tokens of a sequence."""

  def gather(self, examples: list[Any]) -> Gathered:
    """What `pack_rows` needs to lay out some sequences."""

  def state(self) -> Any:
    """The position, as JSON values."""

  def restore(self, state: Any):
    """Continues from a position that `state` returned."""


class ShuffledSequences:
  """A `Reader` of the sequences of a store, endless, in another order each epoch."""

  def __init__(self, store: SequenceStore, *, seed: int):
    self._store, self._next = store, 0
    self._seed = seed

  def read(self) -> Iterator[list[tuple[int, int]]]:
    while True:
      epoch, place = divmod(self._next, len(self._store))
      for number in self._order(epoch, place, _AT_ONCE).tolist():
        self._next += 1
        yield [(epoch, number)]

  def length(self, example: tuple[int, int]) -> int:
    return int(self._store.lengths[example[1]])

  def gather(self, examples: list[tuple[int, int]]) -> Gathered:
    epochs, numbers = np.array(examples, np.int64).reshape(-1, 2).T
    return Gathered(self._store, numbers, numbers, epochs)

  def state(self) -> dict[str, int | str]:
    return {"next": self._next, "sequences": ids_sha256(self._following(self._next))}

  def restore(self, state: Any):
    fits = isinstance(state, dict) and state.keys() == {"next", "sequences"}
    check(fits, "reader in the state", state, "the fields next and sequences")
    place = check_integer("next of the reader", state["next"], at_least=0)
    check_same_order(state["sequences"], self._following(place))
    self._next = place

  def _order(self, epoch: int, place: int, most: int) -> np.ndarray:
    """The sequences at a place of an epoch and the next ones, at most so many."""
    places = np.arange(place, min(place + most, len(self._store)))
    return epoch_order(len(self._store), self._seed, epoch, places)

  def _following(self, place: int) -> np.ndarray:
    """Some of the next sequences: 64, or those that remain of two epochs."""
    epoch, place = divmod(place, len(self._store))
    following = self._order(epoch, place, 64)
    if following.size < 64:
      following = np.concatenate([following, self._order(epoch + 1, 0, 64)])
    return following


class OnlineBatches(Iterator[PackedBatch]):
  """Batches of packs that a `StreamPacker` makes while a thread reads.

  All processes read and pack everything, and each lays out its block of the rows. The state
  holds that of the packer, with the sequences of open packs, so a restored iterator
  continues with the same bits, and no sequence is lost or repeated.

  Args:
    reader: gives the sequences.
    plan: of a sample, packed in the same way; gives row length, length multiple, separator
      and depth.
    batch_size: B, packs of a batch, over all processes.
    masking: how tokens are masked; None for batches without the `mlm_` fields.
    process_index, process_count: which block of each batch to make, from 0.

  Raises:
    InputError: the processes do not divide the batch, or a number is out of range.
  """

  def __init__(
    self,
    reader: Reader,
    plan: packing.Plan,
    *,
    batch_size: int,
    masking: Masking | None,
    process_index: int = 0,
    process_count: int = 1,
  ):
    self._block = block_of_process(batch_size, process_index, process_count)
    self._reader, self._plan, self._masking = reader, plan, masking
    self._batch_size = batch_size
    geometry = plan.geometry
    self._packer = packing.StreamPacker(
      length=lambda example: int(geometry.sizes(reader.length(example))),
      row_length=geometry.capacity,
      max_sequences_per_pack=plan.packing_depth,
      shortest=int(geometry.sizes(1)),
    )
    self._plan_sha256 = plan_sha256(plan)
    self._position = Position(0, copy.copy(self._packer), reader.state())
    self._made: queue.Queue = queue.Queue(AHEAD)
    self._closed = threading.Event()
    self._is_started = False

  def __next__(self) -> PackedBatch:
    if not self._is_started:
      self._is_started = True
      threading.Thread(target=self._run, daemon=True).start()
    made = self._made.get()
    if isinstance(made, BaseException):
      self._made.put(made)  # for the next call
      raise made
    batch, self._position = made
    return batch

  def get_state(self) -> dict[str, Any]:
    """The state to save in a checkpoint, after the last batch that was returned.

    It is made of JSON values, and NumPy arrays if the reader's examples have them.
    """
    step, packer, reader = self._position
    return {
      "step": step,
      "batch_size": self._batch_size,
      "plan": self._plan_sha256,
      "packs": packer.state(),
      "reader": reader,
    }

  def set_state(self, state: dict[str, Any]):
    """Resumes where `get_state` was called, on any number of processes.

    Raises:
      InputError: the state has other fields, another plan or another batch size; or
        iteration has begun.
    """
    if self._is_started:
      raise InputError("Iteration has begun; restore a state before the first batch.")
    check_same_state(state, self.get_state(), ("batch_size", "plan"))
    step = check_integer("step", state["step"], at_least=0)
    before = self._reader.state()
    self._reader.restore(state["reader"])
    try:
      self._packer.restore(state["packs"])
    except InputError:  # a state that is refused changes nothing
      self._reader.restore(before)
      raise
    self._position = Position(step, copy.copy(self._packer), state["reader"])

  def close(self):
    """Ends the thread. If it is waiting for the stream, it ends with the process."""
    self._closed.set()

  def produce(self) -> Iterator[tuple[PackedBatch, Position]]:
    """Batches, each with the position after it, made in the caller's thread."""
    packs: list[list[Any]] = []
    step = self._position.step
    # A restored state may hold ready packs, and the stream may have ended.
    for examples in itertools.chain([[]], self._reader.read()):
      for example in examples:
        self._packer.add(example)
      for pack in self._packer.take():
        packs.append(pack)
        if len(packs) == self._batch_size:
          step += 1
          position = Position(step, copy.copy(self._packer), self._reader.state())
          yield self._lay_out(packs[self._block]), position
          packs = []

  def _run(self):
    try:
      for made in self.produce():
        self._put(made)
        if self._closed.is_set():
          return
      self._put(StopIteration())
    except BaseException as error:  # raised by the next call of __next__
      self._put(error)

  def _put(self, made: Any):
    while not self._closed.is_set():
      try:
        return self._made.put(made, timeout=_POLL)
      except queue.Full:
        continue

  def _lay_out(self, packs: list[list[Any]]) -> PackedBatch:
    used = np.arange(self._plan.packing_depth) < np.array([[len(p)] for p in packs])
    found = self._reader.gather([example for pack in packs for example in pack])

    def slots(values: np.ndarray, empty: int) -> np.ndarray:
      made = np.full(used.shape, empty, np.int64)
      made[used] = values
      return made

    batch = pack_rows(
      found.store,
      slots(found.places, -1),
      row_length=self._plan.row_length,
      **self._plan.spacing,
    )
    if found.store.texts is None:  # a stream numbers its sequences; pairs have no streams
      batch["sequence_ids"] = slots(found.numbers, -1)
    if self._masking is None:
      return batch
    return mask_tokens(batch, self._masking, epochs=slots(found.epochs, 0))
