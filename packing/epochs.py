"""The packs of a plan over a dataset; other sequences share a pack in each epoch."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing.context
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from packing.assignment import Assignment, sort_by_length
from packing.errors import InputError, check_integer
from packing.histogram import check_same_lengths
from packing.plan import Plan
from packing.row import SameTypes, length_of, make_rows

# With at most this many sequences, all packs of an epoch are computed at once, which takes
# 8 bytes a sequence.
_SMALL = 1 << 20


class LastTwo:
  """Makes a value for a number and keeps the last two; pickling drops them."""

  def __init__(self, make: Callable[[int], Any]):
    self._make, self._kept = make, functools.lru_cache(maxsize=2)(make)
    self._lock = threading.Lock()  # so that two threads do not make the same value

  def __call__(self, number: int) -> Any:
    with self._lock:
      return self._kept(int(number))  # also for NumPy integers

  def __reduce__(self):
    return LastTwo, (self._make,)


class SharedOrder:
  """Sequence numbers by length, in a temporary file that processes share.

  Each process maps the file, so the numbers take memory once, however many workers there
  are. The process that made the object removes the file.

  Args:
    lengths: int[N], in tokens.

  Attributes:
    array: uint32[N] or uint64[N], from `sort_by_length`; read-only.

  Raises:
    InputError: the folder for temporary files has no room.
  """

  def __init__(self, lengths: np.ndarray):
    self._lengths = lengths
    order = sort_by_length(lengths)
    try:
      handle, self._path = tempfile.mkstemp(prefix="isopack-", suffix=".by_length")
      weakref.finalize(self, _remove, self._path, os.getpid())
      # A full disk is an error here; on a page that is written later it would be a crash.
      with os.fdopen(handle, "wb") as file:
        file.write(order.data)
    except OSError as error:
      raise InputError(
        "Workers share the order of sequences in a temporary file of "
        f"{order.nbytes} bytes: {error}. Set TMPDIR to a folder with room."
      ) from error
    self._type = order.dtype
    # Mapped at once, so that forked workers need no file of this name.
    self.array = np.memmap(self._path, self._type, "r")

  def __getstate__(self) -> tuple:
    # A worker that this process starts needs only the name of the file.
    starts_worker = multiprocessing.context.get_spawning_popen() is not None
    is_enough = starts_worker and os.path.exists(self._path)
    return None if is_enough else self._lengths, self._path, self._type

  def __setstate__(self, state: tuple):
    self._lengths, self._path, self._type = state
    try:
      self.array = np.memmap(self._path, self._type, "r")
      if self._lengths is None or self.array.size == self._lengths.size:
        return
    except (OSError, ValueError) as error:  # that process has ended
      if self._lengths is None:
        raise InputError(
          f"{self._path}, in which workers share the order of sequences, is gone or "
          f"damaged: {error}. Make the dataset again."
        ) from error
    self.__init__(self._lengths)  # type: ignore[misc]


def _remove(path: str, process: int):
  if os.getpid() == process:  # workers that are forked have the object, too
    with contextlib.suppress(OSError):
      os.remove(path)


def assign_epoch(plan: Plan, by_length: np.ndarray, seed: int, epoch: int) -> Assignment:
  """The assignment of an epoch, with the packs in the order of the plan.

  Args:
    plan: the plan of all epochs.
    by_length: from `sort_by_length`, of lengths that the plan was made for.
    seed: selects the assignments, together with the epoch.
    epoch: the number of the epoch, from 0.
  """
  (own_seed,) = np.random.SeedSequence([seed, epoch]).generate_state(1)
  return Assignment(plan.slots, by_length, int(own_seed))


def _assign_to_read_singly(
  plan: Plan, order: np.ndarray | SharedOrder, seed: int, epoch: int
) -> Assignment:
  """As `assign_epoch`; a small dataset's packs are computed at once, not one by one."""
  by_length = order.array if isinstance(order, SharedOrder) else order
  assignment = assign_epoch(plan, by_length, seed, epoch)
  if by_length.size <= _SMALL:
    _ = assignment.sequence_ids
  return assignment


class PlannedPacks:
  """Reads the examples of packs; the datasets of `packing.torch` and others build on this.

  Args:
    examples: gives an example for each number, such as a list. If it has `__getitems__`,
      that method is called with many numbers at a time.
    plan: a plan for exactly these lengths.
    lengths: int[N]; tokens of each example. Without it, all examples are read once.
    seed: determines the assignments, together with the epoch.
    shared: whether workers share the order of sequences, in a temporary file.

  Raises:
    InputError: the plan is for other lengths, there are more or fewer examples than
      lengths, or an example has no list of tokens or is padded.

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
    shared: bool = False,
  ):
    if lengths is None:
      lengths = [length_of(examples[i], f"Example {i}") for i in range(len(examples))]
    self.plan, self._examples, self._same_types = plan, examples, SameTypes()
    lengths = check_same_lengths(lengths, plan.histogram)
    if hasattr(examples, "__len__") and len(examples) != lengths.size:
      raise InputError(
        f"There are {len(examples)} examples and {lengths.size} lengths. Give one length "
        "for each example, and a plan for them."
      )
    lengths = lengths.astype(np.min_scalar_type(lengths.max(initial=0)))
    seed = check_integer("seed", seed, at_least=0)
    self._order = SharedOrder(lengths) if shared else sort_by_length(lengths)
    assign = functools.partial(_assign_to_read_singly, plan, self._order, seed)
    self._assigned = LastTwo(assign)

  def assignment(self, epoch: int) -> Assignment:
    """Which examples share a pack in an epoch."""
    return self._assigned(check_integer("epoch", epoch, at_least=0))

  def read(self, epoch: int, numbers: Sequence[int]) -> list[list[Any]]:
    """The examples of some packs."""
    rows = self.assignment(epoch).sequences(numbers).tolist()
    packs = [[i for i in row if i >= 0] for row in rows]
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
