"""The packs of a plan over a dataset; other sequences share a pack in each epoch."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from packing.assignment import Assignment
from packing.errors import InputError, check_integer
from packing.histogram import check_same_lengths
from packing.plan import Plan
from packing.row import SameTypes, length_of, make_rows


class PerEpoch:
  """Makes a value for each epoch and caches the last two; pickling drops the cache."""

  def __init__(self, make: Callable[[int], Any]):
    self._make, self._cached = make, functools.lru_cache(maxsize=2)(make)
    self._lock = threading.Lock()  # so that two threads do not make the same value

  def __call__(self, epoch: int) -> Any:
    with self._lock:
      return self._cached(int(epoch))  # also for NumPy integers

  def __reduce__(self):
    return PerEpoch, (self._make,)


class SharedEpochs:
  """Like `PerEpoch` for assignments, of which processes share the last two.

  They are in a temporary file that each process maps, so they take memory once, however
  many workers there are. The process that made the object removes the file.

  Args:
    make: gives the assignment of an epoch. Those of all epochs have packs of the same
      sizes. It is called for epoch 0 at once, before workers start.

  Raises:
    InputError: the folder for temporary files has no room.
  """

  def __init__(self, make: Callable[[int], Assignment]):
    self._make, self._lock = make, threading.Lock()
    first = make(0)
    self._sizes = first.num_packs, first.sequence_ids.size
    size = 8 * (3 + first.offsets.size + 2 * first.sequence_ids.size)
    handle, self._path = tempfile.mkstemp(prefix="isopack-", suffix=".assignments")
    weakref.finalize(self, _remove, self._path, os.getpid())
    try:
      # Where it can, reserves the room: that a page cannot be written would be no error.
      reserve = getattr(os, "posix_fallocate", lambda *x: os.ftruncate(x[0], x[2]))
      reserve(handle, 0, size)
    except OSError as error:
      raise InputError(
        f"{self._path} needs {size} bytes, in which workers share assignments: {error}. "
        "Set TMPDIR to a folder with room."
      ) from error
    finally:
      os.close(handle)
    self._map()
    self._offsets[:] = first.offsets
    self._epochs[:], self._newest[:] = -1, 0
    self._write(0, first)

  def _map(self):
    packs, number = self._sizes
    flat = np.memmap(self._path, np.int64, "r+")
    parts = np.split(flat.view(np.ndarray), np.cumsum([2, 1, packs + 1, number]))
    self._epochs, self._newest, self._offsets, *self._ids = parts

  def _write(self, epoch: int, assignment: Assignment):
    slot = 1 - int(self._newest[0])  # so that the newest stays whole for its readers
    self._epochs[slot] = -1
    self._ids[slot][:] = assignment.sequence_ids
    self._epochs[slot], self._newest[0] = epoch, slot

  def __call__(self, epoch: int) -> Assignment:
    with self._lock:
      if epoch not in self._epochs:
        self._write(epoch, self._make(epoch))
      ids = self._ids[self._epochs.tolist().index(epoch)].view()
    ids.flags.writeable = False
    return Assignment(self._offsets, ids)

  def __getstate__(self) -> tuple:
    return self._make, self._path, self._sizes

  def __setstate__(self, state: tuple):
    make, path, sizes = state
    if not os.path.exists(path):  # that process has ended, or is on another machine
      self.__init__(make)  # type: ignore[misc]
      return
    self._make, self._path, self._sizes = make, path, sizes
    self._lock = threading.Lock()
    self._map()


def _remove(path: str, process: int):
  if os.getpid() == process:  # workers that are forked have the object, too
    with contextlib.suppress(OSError):
      os.remove(path)


def assign_epoch(plan: Plan, lengths: np.ndarray, seed: int, epoch: int) -> Assignment:
  """The assignment of an epoch, with the packs in the order of the plan."""
  (own_seed,) = np.random.SeedSequence([seed, epoch]).generate_state(1)
  return plan.assign(lengths, seed=int(own_seed))


class PlannedPacks:
  """Reads the examples of packs; the datasets of `packing.torch` and others build on this.

  Args:
    examples: gives an example for each number, such as a list. If it has `__getitems__`,
      that method is called with many numbers at a time.
    plan: a plan for exactly these lengths.
    lengths: int[N]; tokens of each example. Without it, all examples are read once.
    seed: determines the assignments, together with the epoch.
    keep: keeps assignments: `PerEpoch` for this process, `SharedEpochs` for workers, too.

  Raises:
    InputError: the plan is for other lengths, or an example has no list of tokens or is
      padded.

  Example:
    >>> import packing
    >>> examples = [{"input_ids": [n] * n} for n in (4, 2, 3, 2)]
    >>> plan = packing.pack([4, 2, 3, 2], max_sequence_length=6)
    >>> packs = PlannedPacks(examples, plan)
    >>> packs.rows(0, [0, 1])["input_ids"].tolist()
    [[2, 2, 3, 3, 3, 0], [2, 2, 4, 4, 4, 4]]
  """

  def __init__(
    self,
    examples: Any,
    plan: Plan,
    *,
    lengths: Any = None,
    seed: int = 0,
    keep: Callable[[Callable[[int], Assignment]], Any] = PerEpoch,
  ):
    if lengths is None:
      lengths = [length_of(examples[i], f"Example {i}") for i in range(len(examples))]
    self.plan, self._examples, self._same_types = plan, examples, SameTypes()
    lengths = check_same_lengths(lengths, plan.histogram)
    # Workers that are not forked get a copy, of 2 bytes a sequence or even 1.
    lengths = lengths.astype(np.min_scalar_type(lengths.max(initial=0)))
    seed = check_integer("seed", seed, at_least=0)
    self._assigned = keep(functools.partial(assign_epoch, plan, lengths, seed))

  def assignment(self, epoch: int) -> Assignment:
    """Which examples share a pack in an epoch."""
    return self._assigned(check_integer("epoch", epoch, at_least=0))

  def read(self, epoch: int, numbers: Sequence[int]) -> list[list[Any]]:
    """The examples of some packs."""
    assignment = self.assignment(epoch)
    packs = [assignment[number].tolist() for number in numbers]
    flat = [i for pack in packs for i in pack]
    if hasattr(self._examples, "__getitems__"):
      examples = iter(self._examples.__getitems__(flat))
    else:
      examples = (self._examples[i] for i in flat)
    return [[next(examples) for _ in pack] for pack in packs]

  def rows(self, epoch: int, numbers: Sequence[int]) -> dict[str, np.ndarray]:
    """The rows of some packs, by `packing.make_rows`; M is the plan's packing depth."""
    rows = make_rows(
      self.read(epoch, numbers),
      self.plan.row_length,
      max_sequences=self.plan.packing_depth,
      **self.plan.spacing,
    )
    return self._same_types(rows)
