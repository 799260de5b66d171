"""A stream, packed while it is read."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed
from torch.utils.data import IterableDataset, get_worker_info

from packing.errors import InputError, check, check_integer
from packing.online import StreamPacker
from packing.online.stream import is_hugging_face

_FIELDS = {"shard", "seen", "ended", "packs", "stream"}


class PackedIterableDataset(IterableDataset):
  """Packs examples as they arrive; its items are packs, for `PackedCollator`.

  Each rank and worker packs its own part of the stream, and each example appears in exactly
  one pack. A `datasets.IterableDataset` is split by its own shards, so each shard is read
  once if there are enough of them. Any other stream is read whole by each rank and worker,
  which takes every n-th example; a stream that shares out its own examples is an error
  where that shows. The end of the stream closes all open packs.

  `state_dict` and `load_state_dict` resume exactly, in this process or in workers under
  torchdata's `StatefulDataLoader`. The state is that of the newest iterator, and holds the
  examples of open packs. If the stream has methods of these names, its state is saved and
  loaded too; otherwise the stream is read again up to the same example. (`datasets` itself
  drops the examples of a shuffle buffer on resuming, and fails to resume a stream that is
  shuffled in several workers. Shuffle the dataset before `to_iterable_dataset`.)

  Args:
    stream: examples, in the same order each time.
    row_length: tokens of a row; a longer example is an error.
    rank, world_size: those of this process; by default, those of `torch.distributed` if it
      is initialised. A Hugging Face stream needs them on several ranks; if it is already
      split by node, pass 0 and 1. Pass 0 and 1 under accelerate and transformers' `Trainer`
      too, which share out batches themselves.
    options: options of `packing.OnlinePacker`, such as `open_packs` and `look_ahead`.

  Raises:
    packing.InputError: an option is out of range.

  Example:
    >>> stream = [{"input_ids": [1] * n} for n in (5, 6, 3, 2, 8)]
    >>> packs = PackedIterableDataset(stream, row_length=8, open_packs=2, look_ahead=0)
    >>> [[len(x["input_ids"]) for x in pack] for pack in packs]
    [[5, 3], [6, 2], [8]]
  """

  def __init__(
    self,
    stream: Iterable[Any],
    *,
    row_length: int,
    rank: int | None = None,
    world_size: int | None = None,
    **options: Any,
  ):
    if (rank is None) != (world_size is None):
      raise InputError("Expected both rank and world_size, or neither.")
    if rank is not None:
      last = check_integer("world_size", world_size, at_least=1) - 1
      check_integer("rank", rank, at_least=0, at_most=last)
    self._stream = stream
    self._given = None if rank is None or world_size is None else (rank, world_size)
    self._copied_in = 0, 1  # the rank of the process that a spawned worker comes from
    self._options = {"row_length": row_length, **options}
    self._resume: dict[str, Any] | None = None  # a state that no iterator has taken yet
    self._loaded_in = os.getpid()  # the process of that state
    self._at = _Place(StreamPacker(**self._options))  # of the newest iterator
    self._was_read = False
    # In shared memory, for persistent workers; below 0 until it is set.
    self._epoch = torch.full((1,), -1, dtype=torch.int64).share_memory_()

  def set_epoch(self, epoch: int):
    """Sets the epoch of a stream that has one, by which it shuffles, also in workers.

    A loader prepared by accelerate sets its own count from 0 when it begins. So call
    `set_epoch` of that loader, too; docs/how_to_pack.md says more.
    """
    if hasattr(self._stream, "set_epoch"):
      self._stream.set_epoch(epoch)
      self._epoch[0] = epoch

  def _ranks(self) -> tuple[int, int]:
    """The rank of this process, or of the one that started it, and how many there are."""
    if self._given is not None:
      return self._given
    accelerate = sys.modules.get("accelerate")
    state = getattr(accelerate, "PartialState", None)
    shared = state._shared_state if state else {}
    if shared.get("num_processes", 1) > 1:
      raise InputError(
        "Accelerate and Trainer share out batches themselves. Pass rank=0, world_size=1."
      )
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
      return distributed.get_rank(), distributed.get_world_size()
    return self._copied_in

  def __getstate__(self) -> dict[str, Any]:
    return self.__dict__ | {"_copied_in": self._ranks()}

  def _shard(self) -> tuple[int, int]:
    """The number of this shard, and how many shards there are."""
    rank, ranks = self._ranks()
    worker = get_worker_info()
    workers = worker.num_workers if worker else 1
    return rank * workers + (worker.id if worker else 0), ranks * workers

  def _part(self) -> tuple[Iterable[Any], int, int]:
    """A stream, and which of its examples are ours: number `own` of `shares` shares."""
    worker = get_worker_info()
    stream: Any = self._stream
    shared = worker is not None and worker.num_workers > 1
    if is_hugging_face(stream):
      from datasets.distributed import split_dataset_by_node

      rank, ranks = self._ranks()
      if self._given is None and ranks > 1:
        raise InputError(
          "On several ranks, pass rank and world_size to split a Hugging Face stream. Pass "
          "0 and 1 if you have split it by datasets.distributed.split_dataset_by_node."
        )
      part = split_dataset_by_node(stream, rank=rank, world_size=ranks)
      part.set_epoch(stream.epoch)
      return part, 0, 1  # it shares out its shards among workers itself
    if shared and isinstance(stream, IterableDataset):
      raise InputError(
        f"The stream is a {type(stream).__name__}, which may share out its examples among "
        "workers. Use one worker, or a stream that is no IterableDataset."
      )
    if self._was_read and isinstance(stream, Iterator):
      raise InputError("The stream is an iterator, which was read. Give a new one.")
    if worker is not None and self._epoch >= 0:
      stream.set_epoch(int(self._epoch))  # the worker has a copy of the stream
    return stream, *self._shard()

  def __iter__(self) -> Iterator[list[Any]]:
    at = _Place(StreamPacker(**self._options))
    if self._resume is not None:
      if get_worker_info() is not None and self._loaded_in != os.getpid():
        raise InputError(
          "The state was loaded before the worker started, so each epoch would resume from "
          "it. Use torchdata's StatefulDataLoader, which loads it in the workers, or "
          "num_workers=0."
        )
      self._restore(at, self._resume)  # a state that is refused stays loaded
      at.resumed, self._resume = self._resume, None
    self._at = at  # now, since a loader may ask for the state before the first pack
    return self._packs(at)

  def _packs(self, at: _Place) -> Iterator[list[Any]]:
    stream, own, shares = self._part()
    at.stream, examples = stream, stream
    start = None  # to which a stream returns after an epoch that was resumed
    if at.resumed is not None and not at.ended:
      if at.resumed["stream"] is not None:
        start = stream.state_dict()  # type: ignore[attr-defined]
        stream.load_state_dict(at.resumed["stream"])  # type: ignore[attr-defined]
      else:
        examples = itertools.islice(iter(stream), at.seen, None)
    at.resumed = None
    yield from at.packer.take()
    if not at.ended:
      self._was_read = True
      for example in examples:
        number = at.seen
        at.seen += 1
        if number % shares == own:
          at.packer.add(example)
          yield from at.packer.take()
      at.ended = True
      at.packer.flush()
      yield from at.packer.take()
    if start is not None:
      stream.load_state_dict(start)  # type: ignore[attr-defined]
    # In a worker, others may still read this epoch, so its state stays that of the end.
    if self._at is at and get_worker_info() is None:
      self._at = _Place(StreamPacker(**self._options))  # that of the next epoch

  def state_dict(self) -> dict[str, Any]:
    """The position between two packs; plain data if examples and the stream's state are."""
    at = self._at
    for state in (self._resume, at.resumed):  # a loaded state, and no pack yielded since
      if state is not None:
        return state
    stream = getattr(at.stream, "state_dict", None) if at.seen else None
    return {
      "shard": list(self._shard()),
      "seen": at.seen,
      "ended": at.ended,
      "packs": at.packer.state(),
      "stream": stream() if stream else None,
    }

  def load_state_dict(self, state: dict[str, Any]):
    """Makes the next iterator continue from the point where `state_dict` was called.

    Raises:
      packing.InputError: the argument is not a state of such a dataset.
    """
    if not isinstance(state, dict) or set(state) != _FIELDS:
      raise InputError("Expected a state of PackedIterableDataset, found another.")
    self._resume, self._loaded_in = state, os.getpid()

  def _restore(self, at: _Place, state: dict[str, Any]):
    shard = list(self._shard())
    if state["shard"] != shard:
      raise InputError(
        f"The state has shard {state['shard']}, not {shard}. Use as many ranks and workers."
      )
    stream = state["stream"]
    saved = stream.get("epoch") if isinstance(stream, dict) else None
    if saved is not None and saved != getattr(self._stream, "epoch", saved):
      raise InputError(
        f"The state is of epoch {saved}. Call set_epoch({saved}) first, and under "
        "accelerate that of the prepared loader, which sets the epoch of its dataset."
      )
    at.seen = check_integer("seen in the state", state["seen"], at_least=0)
    check(isinstance(state["ended"], bool), "ended in the state", state["ended"], "a bool")
    at.packer.restore(state["packs"])
    at.ended = state["ended"]


class _Place:
  """Where an iterator is."""

  def __init__(self, packer: StreamPacker):
    self.packer = packer
    self.stream: Iterable[Any] | None = None  # that which is read
    self.seen, self.ended = 0, False  # examples read of it
    self.resumed: dict[str, Any] | None = None  # the state to begin with
