"""Packing a stream into a bounded number of open packs, without losing a sequence."""

from __future__ import annotations

import bisect
import contextlib
import itertools
from collections.abc import Iterable, Iterator

from packing.errors import InputError, check, check_integer, short_repr

_STATE_VERSION = 2


class OnlinePacker:
  """Packs sequences as they arrive, by best fit over a bounded number of open packs.

  Arriving sequences wait in a look-ahead buffer. When it is full, the longest of them goes
  to the open pack with the least space that can hold it. If none fits, a new pack opens. If
  `open_packs` are open already, the fullest is first filled from the buffer and closed. The
  others keep their space for later sequences. A pack is closed as soon as a sequence of
  `shortest` tokens no longer fits.

  Args:
    row_length: tokens of a row.
    max_sequences_per_pack: the depth limit; None or "max" for no limit.
    open_packs: the most packs held open.
    look_ahead: the most sequences held back before they go to a pack; None for as many as
      `open_packs`.
    shortest: tokens of the shortest sequence expected; a pack with less space is closed.
      (Shorter sequences are packed too.)

  Raises:
    InputError: an argument is out of range.

  Example:
    >>> packer = OnlinePacker(row_length=8, open_packs=2, look_ahead=0)
    >>> [packer.add(name, length) for name, length in (("a", 5), ("b", 6), ("c", 3))]
    [[], [], [['a', 'c']]]
    >>> packer.flush()
    [['b']]

  References:
    Krell et al., https://arxiv.org/abs/2107.02027, section 5, names online packing as
    future work.
  """

  OPTIONS = (
    "row_length",
    "max_sequences_per_pack",
    "open_packs",
    "look_ahead",
    "shortest",
  )

  def __init__(
    self,
    *,
    row_length: int,
    max_sequences_per_pack: int | str | None = None,
    open_packs: int = 64,
    look_ahead: int | None = None,
    shortest: int = 1,
  ):
    if max_sequences_per_pack in (None, "max"):
      max_sequences_per_pack = row_length
    if look_ahead is None:
      look_ahead = open_packs
    self._row_length = check_integer("row_length", row_length, at_least=1)
    self._depth = check_integer(
      "max_sequences_per_pack", max_sequences_per_pack, at_least=1
    )
    self._most_packs = check_integer("open_packs", open_packs, at_least=1)
    self._look_ahead = check_integer("look_ahead", look_ahead, at_least=0)
    self._shortest = check_integer("shortest", shortest, at_least=1)
    self._arrivals = 0
    # Waiting sequences as (length, -arrival, name), ascending: the last one is the longest,
    # and of equal ones the oldest.
    self._waiting: list[tuple[int, int, object]] = []
    # Open packs as (space, number), ascending; packs are numbered as they are opened.
    self._open: list[tuple[int, int]] = []
    self._opened = 0
    # By pack number: the content as (name, length).
    self._packs: dict[int, list[tuple[object, int]]] = {}

  @property
  def num_added(self) -> int:
    """Sequences that have arrived."""
    return self._arrivals

  def add(self, name, length: int) -> list[list]:
    """Adds one sequence.

    Args:
      name: anything that identifies the sequence; packs are lists of names. To use `state`,
        it must be a value that JSON can store, such as an integer.
      length: tokens of the sequence.

    Returns:
      The packs that this sequence closed, each a list of names; often there are none.

    Raises:
      InputError: the length is not a whole number in 1..row_length.
    """
    length = check_integer("length", length, at_least=1)
    expected = f"at most row_length={self._row_length}. Truncate or split the sequence"
    check(length <= self._row_length, "length", length, expected)
    bisect.insort(self._waiting, (length, -self._arrivals, name), key=_no_name)
    self._arrivals += 1
    closed: list[list] = []
    if len(self._waiting) > self._look_ahead:
      self._place(closed)
    return closed

  def pack(self, lengths: Iterable[int]) -> Iterator[list]:
    """Packs a stream of lengths to its end; the sequences are named 0, 1, ....

    Yields:
      Packs as lists of names; at the end of the stream, the packs that are still open.

    Example:
      >>> list(OnlinePacker(row_length=8, open_packs=2).pack([5, 6, 3]))
      [[0, 2], [1]]
    """
    for length in lengths:
      yield from self.add(self._arrivals, length)
    yield from self.flush()

  def flush(self) -> list[list]:
    """Packs all waiting sequences and closes all packs, the fullest first."""
    closed: list[list] = []
    while self._waiting:
      self._place(closed)
    while self._open:
      closed.append(self._close(0))
    return closed

  def _place(self, closed: list[list]):
    """Moves the longest waiting sequence into a pack."""
    length, _, name = self._waiting.pop()
    at = bisect.bisect_left(self._open, (length, -1))
    if at < len(self._open):
      space, number = self._open.pop(at)
      content = self._packs[number]
    else:
      if len(self._open) == self._most_packs:
        self._top_up(closed)
      space, number = self._row_length, self._opened
      self._opened += 1
      content = self._packs[number] = []
    content.append((name, length))
    bisect.insort(self._open, (space - length, number))
    if space - length < self._shortest or len(content) == self._depth:
      closed.append(self._close(bisect.bisect_left(self._open, (space - length, number))))

  def _top_up(self, closed: list[list]):
    """Fills the fullest pack from the look-ahead, longest first, and closes it."""
    space, number = self._open[0]
    content = self._packs[number]
    while len(content) < self._depth:
      position = bisect.bisect_right(self._waiting, space, key=_length) - 1
      if position < 0:
        break
      length, _, name = self._waiting.pop(position)
      content.append((name, length))
      space -= length
    self._open[0] = (space, number)
    closed.append(self._close(0))

  def _close(self, position: int) -> list:
    _, number = self._open.pop(position)
    return [name for name, _ in self._packs.pop(number)]

  def __copy__(self) -> OnlinePacker:
    """A packer that goes on by itself; a few lists are copied, but no example."""
    other = object.__new__(type(self))
    other.__dict__ |= self.__dict__
    other._waiting, other._open = [*self._waiting], [*self._open]
    other._packs = {number: [*content] for number, content in self._packs.items()}
    return other

  def state(self) -> dict:
    """The packer's whole state, as an object that JSON can store.

    A packer made by `from_state` continues exactly as this one does.

    Example:
      >>> packer = OnlinePacker(row_length=8, open_packs=2)
      >>> _ = packer.add(0, 5)
      >>> OnlinePacker.from_state(packer.state()).flush()
      [[0]]
    """
    return {
      "version": _STATE_VERSION,
      "row_length": self._row_length,
      "max_sequences_per_pack": self._depth,
      "open_packs": self._most_packs,
      "look_ahead": self._look_ahead,
      "shortest": self._shortest,
      "arrivals": self._arrivals,
      "opened": self._opened,
      "waiting": [list(waiting) for waiting in self._waiting],
      "packs": [
        [number, [list(sequence) for sequence in content]]
        for number, content in self._packs.items()
      ],
    }

  @classmethod
  def from_state(cls, state: dict) -> OnlinePacker:
    """Makes a packer that continues from a state.

    Raises:
      InputError: the argument is not a state of this version, or is damaged.
    """
    if not isinstance(state, dict) or state.get("version") != _STATE_VERSION:
      raise InputError(
        f"state is {short_repr(state)}; expected a packer's, version {_STATE_VERSION}."
      )
    with intact():
      packer = cls(**{name: state[name] for name in cls.OPTIONS})
      packer._arrivals = check_integer("arrivals", state["arrivals"], at_least=0)
      packer._opened = check_integer("opened", state["opened"], at_least=0)
      packer._waiting = [(length, late, name) for length, late, name in state["waiting"]]
      for number, content in state["packs"]:
        packer._packs[number] = [(name, length) for name, length in content]
        space = packer._row_length - sum(length for _, length in content)
        packer._open.append((space, number))
      packer._open.sort()
      packer._check()
    return packer

  def _check(self):
    """Raises InputError unless `add` and `flush` can lead to these packs and sequences."""
    most, packs = self._row_length, self._packs.values()
    lengths = [length for length, _, _ in self._waiting]
    for length in itertools.chain(lengths, (n for pack in packs for _, n in pack)):
      check_integer("A length", length, at_least=1, at_most=most)
    for _, late, _ in self._waiting:
      check_integer("An arrival", late, at_least=1 - self._arrivals, at_most=0)
    for number in self._packs:
      check_integer("A pack", number, at_least=0, at_most=self._opened - 1)
    order = [_no_name(waiting) for waiting in self._waiting]
    numbers = [late for _, late in order]
    held = len(order) + sum(map(len, packs))
    if not (
      order == sorted(order)
      and len(set(numbers)) == len(numbers) <= self._look_ahead
      and len(self._packs) == len(self._open) <= self._most_packs
      and all(0 < len(pack) < self._depth for pack in packs)
      and all(space >= self._shortest for space, _ in self._open)
      and held <= self._arrivals
    ):
      raise ValueError("its sequences do not fit its options")


@contextlib.contextmanager
def intact() -> Iterator[None]:
  """Turns what reading a damaged state raises into an InputError."""
  try:
    yield
  except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
    raise InputError(
      f"The state is damaged ({repr(error)[:100]}). Resume from another checkpoint."
    ) from error


def _length(waiting):
  return waiting[0]


def _no_name(waiting):
  return waiting[:2]
