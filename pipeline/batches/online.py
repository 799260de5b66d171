"""Packs made while reading a dataset in random order, or a stream."""

from __future__ import annotations

import copy
import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
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
  """Where a part stands after a batch; becomes a state only when one is asked for.

  Attributes:
    packer: a copy of the packer.
    reader: the state of the reader.
  """

  packer: packing.StreamPacker
  reader: Any


class Reader(Protocol):
  """Sequences in order, as examples made of JSON values and NumPy arrays."""

  def part(self, number: int, count: int) -> Reader:
    """One of `count` readers, from 0, which together read each sequence once."""

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
  """A `Reader` of the sequences of a store, endless, in another order each epoch.

  Of P parts, part i reads the sequences at the places i, i + P, i + 2P, ... of all epochs.
  """

  def __init__(self, store: SequenceStore, *, seed: int):
    self._store, self._next = store, 0
    self._seed = seed
    self._number, self._count = 0, 1  # of the part

  def part(self, number: int, count: int) -> ShuffledSequences:
    other = copy.copy(self)
    other._number, other._count = number, count
    return other

  def read(self) -> Iterator[list[tuple[int, int]]]:
    while True:
      for example in self._examples(self._next, _AT_ONCE):
        self._next += 1
        yield [example]

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

  def _examples(self, place: int, most: int) -> list[tuple[int, int]]:
    """Epoch and number of the sequences at a place of this part, and of those after it."""
    places = (np.arange(place, place + most) * self._count) + self._number
    epochs, places = np.divmod(places, len(self._store))
    numbers = np.concatenate(
      [
        epoch_order(len(self._store), self._seed, epoch, places[epochs == epoch])
        for epoch in np.unique(epochs).tolist()
      ]
    )
    return list(zip(epochs.tolist(), numbers.tolist(), strict=True))

  def _following(self, place: int) -> np.ndarray:
    """int64[64]: the sequences at a place of this part and after it."""
    return np.array([number for _, number in self._examples(place, 64)], np.int64)


class _Part:
  """One of the parts that are read and packed on their own."""

  def __init__(self, reader: Reader, packer: packing.StreamPacker):
    self._reader, self._packer = reader, packer
    self.position = Position(copy.copy(packer), reader.state())

  def state(self) -> dict[str, Any]:
    return {"packs": self.position.packer.state(), "reader": self.position.reader}

  def restore(self, state: Any):
    fits = isinstance(state, Mapping) and state.keys() == {"packs", "reader"}
    check(fits, "A part in the state", state, "the fields packs and reader")
    self._packer.restore(state["packs"])  # before the reader, whose stream others may use
    self._reader.restore(state["reader"])
    self.position = Position(copy.copy(self._packer), state["reader"])

  def packs(self, number: int) -> Iterator[tuple[list[list[Any]], Position]]:
    """So many packs at a time, each time with the position after them."""
    packs: list[list[Any]] = []
    # A restored state may hold ready packs, and the stream may have ended.
    for examples in itertools.chain([[]], self._reader.read()):
      for example in examples:
        self._packer.add(example)
      for pack in self._packer.take():
        packs.append(pack)
        if len(packs) == number:
          yield packs, Position(copy.copy(self._packer), self._reader.state())
          packs = []


class OnlineBatches(Iterator[PackedBatch]):
  """Batches of packs that are made while a thread reads.

  The sequences are read in parts, by default one for each process. Each part has its own
  reader and `StreamPacker`, and gives as many packs of each batch. So each process reads
  and packs only its own parts, and a batch is the same on any number of processes that
  divides the number of parts. Iteration ends when a part has too few packs for a batch.

  The state holds that of the packers, with the sequences of open packs, so a restored
  iterator continues with the same bits, and no sequence is lost or repeated.

  Args:
    reader: gives the sequences.
    plan: of a sample, packed in the same way; gives row length, length multiple, separator
      and depth.
    batch_size: B, packs of a batch, over all processes.
    masking: how tokens are masked; None for batches without the `mlm_` fields.
    process_index, process_count: which block of each batch to make, from 0.
    parts: how many parts there are; None for one for each process. A restored state has
      its own number.
    agree: called once for each batch with whether this process has it, None if reading
      failed; returns whether all processes have it. Needed if several processes read.

  Raises:
    InputError: the parts do not divide the batch, the processes do not divide the parts, or
      a number is out of range.

  Attributes:
    reader: that which was given.
    num_parts: how many parts there are.
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
    parts: int | None = None,
    agree: Callable[[bool | None], bool] = bool,
  ):
    self.reader, self._plan, self._masking = reader, plan, masking
    self._batch_size, self._agree = batch_size, agree
    self._process = process_index, process_count
    self._plan_sha256 = plan_sha256(plan)
    self._step = 0
    block_of_process(batch_size, process_index, process_count)  # reports wrong numbers
    self.num_parts = process_count if parts is None else parts
    self._parts = self._open_parts(self.num_parts)
    self._made: queue.Queue = queue.Queue(AHEAD)
    self._closed = threading.Event()
    self._is_started = False

  def __next__(self) -> PackedBatch:
    if self._closed.is_set():
      raise InputError("The batches are closed. Make new ones, and restore the state.")
    if not self._is_started:
      self._is_started = True
      threading.Thread(target=self._run, daemon=True).start()
    made = self._made.get()
    if isinstance(made, BaseException):
      self._made.put(made)  # for the next call
      raise made
    batch, positions = made
    self._step += 1
    for part, position in zip(self._parts.values(), positions, strict=True):
      part.position = position
    return batch

  def get_state(self) -> dict[str, Any]:
    """The state after the last batch that was returned, to save in a checkpoint.

    It is made of JSON values, and NumPy arrays if the reader's examples have them. All
    processes have the same, except for `of_parts`, which has the states of this process's
    parts by their numbers.
    """
    return {
      "step": self._step,
      "batch_size": self._batch_size,
      "plan": self._plan_sha256,
      "parts": self.num_parts,
      "of_parts": {str(number): part.state() for number, part in self._parts.items()},
    }

  def set_state(self, state: Mapping[str, Any]):
    """Resumes where `get_state` was called.

    Args:
      state: its result; `of_parts` must have at least this process's parts.

    Raises:
      InputError: the state has other fields, another plan, another batch size, or a number
        of parts that the processes do not divide; or iteration has begun.
    """
    if self._is_started:
      raise InputError("Iteration has begun; restore a state before the first batch.")
    check_same_state(state, self.get_state(), ("batch_size", "plan"))
    step = check_integer("step", state["step"], at_least=0)
    parts, of_parts = self._open_parts(state["parts"]), state["of_parts"]
    for number, part in parts.items():
      check(str(number) in of_parts, "of_parts", [*of_parts], f"a part {number}")
      part.restore(of_parts[str(number)])
    self._step, self.num_parts, self._parts = step, state["parts"], parts

  def close(self):
    """Ends the thread; there is no next batch.

    If the thread is waiting for the stream, it ends with the process.
    """
    self._closed.set()

  def produce(self) -> Iterator[tuple[PackedBatch, list[Position]]]:
    """Batches, each with the positions after it, made in the caller's thread."""
    number = self._batch_size // self.num_parts
    of_parts = [part.packs(number) for part in self._parts.values()]
    while True:
      try:
        made = [next(packs, None) for packs in of_parts]
      except BaseException:
        self._agree(None)
        raise
      found = [x for x in made if x is not None]
      if not self._agree(len(found) == len(made)):
        return
      packs = [pack for packs, _ in found for pack in packs]
      yield self._lay_out(packs), [position for _, position in found]

  def _open_parts(self, count: int) -> dict[int, _Part]:
    """This process's parts by their numbers, at their beginning."""
    index, processes = self._process
    check_integer("parts", count, at_least=1)
    block_of_process(self._batch_size, 0, count)
    if count % processes:
      raise InputError(
        f"The sequences are read in {count} parts, one for each process that the run began "
        f"with; found {processes} processes. Use {count}, or a number that divides it."
      )
    own = count // processes
    geometry = self._plan.geometry
    opened = {}
    for number in range(index * own, (index + 1) * own):
      reader = self.reader.part(number, count)
      packer = packing.StreamPacker(
        length=lambda example: int(geometry.sizes(self.reader.length(example))),
        row_length=geometry.capacity,
        max_sequences_per_pack=self._plan.packing_depth,
        shortest=int(geometry.sizes(1)),
      )
      opened[number] = _Part(reader, packer)
    return opened

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
    found = self.reader.gather([example for pack in packs for example in pack])

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
