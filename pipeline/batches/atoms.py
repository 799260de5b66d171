"""From documents to rows by atoms: the layouts `concat` and `padding`.

An atom is what is shuffled: up to `atom_size` tokens. Rows have `row_length` tokens (the
paper's MSL). Smaller atoms are merged into rows after the shuffle, larger ones are split.

| layout  | atoms                                                                      |
|---------|----------------------------------------------------------------------------|
| concat  | all documents and their end tokens are one stream, cut every s tokens      |
| padding | each document by itself is cut every s - 1 tokens, and the end token fills |
|         | each piece up to s; a tail fills its last row alone where s > MSL          |

A tail of exactly k rows, where s > MSL, fills them with text and ends with no end token: a
row of end tokens alone would teach nothing.

Documents lie in a stream: the tokens of each and one end token, laid end to end. All that
is here follows from their lengths; a number of tokens leaves the end token out.

References:
  Refining Packing and Shuffling Strategies for Enhanced Performance in Generative Language
  Models (the atom-size paper), appendix A.3. Its A.9 (b) has tails padded to the atom
  always, which contradicts A.3 and its example; A.3 holds here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from packing import InputError
from packing.errors import check_integer, short_repr
from pipeline.batches.packed import PackedBatch
from pipeline.store import SequenceStore

LAYOUTS = ("concat", "padding")
Read = Callable[[np.ndarray, np.ndarray], np.ndarray]  # as SequenceStore.read


@dataclasses.dataclass(frozen=True, eq=False)
class Atoms:
  """Atoms, in blocks: a block is an atom, or the part of one that is a row.

  Attributes:
    starts: int64[K]; where each block begins in the stream, in tokens.
    lengths: int64[K]; tokens of the stream in each block.
    offsets: int64[A + 1]; atom a is the blocks offsets[a] to offsets[a + 1].
    row_length: S, in tokens.
    blocks_per_row: blocks that are merged into a row.
    padded: whether end tokens fill the blocks.
  """

  starts: np.ndarray
  lengths: np.ndarray
  offsets: np.ndarray
  row_length: int
  blocks_per_row: int
  padded: bool

  @property
  def num_atoms(self) -> int:
    return self.offsets.size - 1

  @property
  def num_rows(self) -> int:
    """Rows of an epoch; the last may have fewer blocks than the others."""
    return -(-self.starts.size // self.blocks_per_row)

  def order(self, seed: tuple[int, ...]) -> np.ndarray:
    """int64[K]: the blocks when the atoms are shuffled; those of an atom stay together."""
    atoms = np.random.default_rng(seed).permutation(self.num_atoms)
    counts = np.diff(self.offsets)[atoms]
    firsts = self.offsets[atoms] - (np.cumsum(counts) - counts)
    return np.repeat(firsts, counts) + np.arange(self.starts.size)

  def rows_of(self, order: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """int64[R, blocks_per_row]: the blocks of some rows of an order, -1 for none."""
    places = rows[:, None] * self.blocks_per_row + np.arange(self.blocks_per_row)
    inside = places < order.size
    return np.where(inside, order[np.where(inside, places, 0)], -1)

  def row_tokens(self) -> np.ndarray:
    """int64[R]: tokens of each row of the atoms in order, but the end tokens that pad.

    In another order rows have others, and all together as many.
    """
    blocks = self.rows_of(np.arange(self.starts.size), np.arange(self.num_rows))
    tokens = np.minimum(self.lengths[blocks] + self.padded, self.sizes(blocks))
    return tokens.sum(axis=1)

  def sizes(self, blocks: np.ndarray) -> np.ndarray:
    """Tokens that some blocks have in a row, the end tokens that fill them included."""
    sizes = self.row_length // self.blocks_per_row if self.padded else self.lengths[blocks]
    return np.where(blocks >= 0, sizes, 0)


def cut(lengths: np.ndarray, *, layout: str, atom_size: int, row_length: int) -> Atoms:
  """Cuts documents into atoms.

  Args:
    lengths: int[D]; tokens of each document.
    layout: "concat" or "padding".
    atom_size: s, in tokens.
    row_length: S, in tokens.

  Raises:
    InputError: no such layout, or neither of the two sizes divides the other.

  Example: a document of 130 tokens makes atoms of 63 tokens and an end token, and a tail
    of 4 tokens and 60 end tokens.

    >>> cut(np.array([130]), layout="padding", atom_size=64, row_length=64).lengths.tolist()
    [63, 63, 4]

    Where atoms are larger than rows, one of 35 tokens makes two rows of 32, not four.

    >>> cut(np.array([35]), layout="padding", atom_size=128, row_length=32).lengths.tolist()
    [32, 3]

  References:
    The atom-size paper, appendix A.3.
  """
  _check(layout, atom_size, row_length)
  lengths = np.asarray(lengths, np.int64)
  size = min(atom_size, row_length)  # of a block
  if layout == "concat":
    num_tokens = int((lengths + 1).sum())
    starts = np.arange(0, num_tokens, size)
    sizes = np.minimum(size, num_tokens - starts)
    edges = np.arange(0, starts.size + atom_size // size, atom_size // size)
    offsets = np.minimum(edges, starts.size)
  else:
    documents = np.cumsum(lengths + 1) - (lengths + 1)
    counts = -(-lengths // (atom_size - 1))
    atoms, left = _pieces(documents, lengths, counts, atom_size - 1)
    counts = -(-left // size)
    starts, left = _pieces(atoms, left, counts, size)
    sizes = np.minimum(left, size)
    offsets = np.concatenate([[0], np.cumsum(counts)])
  return Atoms(
    starts, sizes, offsets, row_length, row_length // size, padded=layout == "padding"
  )


def _pieces(
  starts: np.ndarray, lengths: np.ndarray, counts: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
  """Cuts stretches into pieces of a size: starts, and lengths where the last is a tail."""
  firsts = np.cumsum(counts) - counts
  places = (np.arange(counts.sum()) - np.repeat(firsts, counts)) * size
  left = np.repeat(lengths, counts) - places
  return np.repeat(starts, counts) + places, np.minimum(left, size)


def num_rows(lengths: np.ndarray, *, layout: str, atom_size: int, row_length: int) -> int:
  """Rows of an epoch, predicted from the numbers of tokens alone.

  With T tokens, end tokens included, `concat` has ceil(T / S) rows whatever the atoms.
  `padding` has ceil(L / (s - 1)) atoms of a document of L tokens, merged where s < S;
  where s > S each atom is s / S rows, and a tail of t tokens ceil(t / S).

  Args:
    lengths: int[D]; tokens of each document.
    layout: "concat" or "padding".
    atom_size: s, in tokens.
    row_length: S, in tokens.

  Example: a document of 130 tokens and one of 35.

    >>> lengths = np.array([130, 35])
    >>> num_rows(lengths, layout="concat", atom_size=64, row_length=64)
    3
    >>> [num_rows(lengths, layout="padding", atom_size=s, row_length=64) for s in (16, 64)]
    [3, 4]

  References:
    The atom-size paper, appendices A.3 and A.9.
  """
  _check(layout, atom_size, row_length)
  lengths = np.asarray(lengths, np.int64)
  if layout == "concat":
    return -(-int((lengths + 1).sum()) // row_length)
  whole_atoms, tails = np.divmod(lengths, atom_size - 1)
  if atom_size <= row_length:
    atoms = int((whole_atoms + (tails > 0)).sum())
    return -(-atoms * atom_size // row_length)
  return int((whole_atoms * (atom_size // row_length) - (-tails // row_length)).sum())


def steps_per_epoch(
  lengths: np.ndarray, *, layout: str, atom_size: int, row_length: int, batch_size: int
) -> float:
  """Steps of an epoch, predicted as `num_rows`; a fraction, for epochs laid end to end."""
  rows = num_rows(lengths, layout=layout, atom_size=atom_size, row_length=row_length)
  return rows / batch_size


def lay_out(
  atoms: Atoms,
  blocks: np.ndarray,
  *,
  read: Read,
  end_id: int,
  loss_on_padding: bool,
  num_slots: int = 1,
) -> PackedBatch:
  """Lays blocks into rows.

  Args:
    atoms: that the blocks are of.
    blocks: int64[B, blocks_per_row]; numbers of blocks, -1 for none.
    read: gives the tokens of stretches of the stream.
    end_id: of the end token, which pads as well.
    loss_on_padding: whether the end tokens that pad a block are predicted too; the first
      one, which ends it where there is room, always is.
    num_slots: M, sequences that the batch has room for; a row of atoms is one.

  Returns:
    A PackedBatch with `loss_mask` and `real_tokens`, int32[B], which end tokens that only
    fill a block are not among. To the model these are tokens as others; what is left of
    the last row is padding, with segment 0. `sequence_ids` is the number of the row's
    first atom.
  """
  sizes = atoms.sizes(blocks)
  ends = sizes.sum(axis=1)
  occupied = np.arange(atoms.row_length) < ends[:, None]
  used = blocks >= 0
  sizes, real = sizes[used], atoms.lengths[blocks[used]]
  places = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # in block
  is_real = places < np.repeat(real, sizes)
  tokens = np.full(places.size, end_id, np.int32)
  tokens[is_real] = read(atoms.starts[blocks[used]], real)
  is_target = places <= np.repeat(real, sizes)  # text, and the first end token

  def rows(values, dtype=np.int32) -> np.ndarray:
    field = np.zeros(occupied.shape, dtype)
    field[occupied] = values
    return field

  slots = np.zeros((len(blocks), num_slots), np.int32)
  sequence_mask = slots.astype(bool)
  sequence_mask[:, 0] = ends > 0
  sequence_ids = np.full(slots.shape, -1, np.int64)
  first = np.searchsorted(atoms.offsets, blocks[:, 0], side="right") - 1
  sequence_ids[:, 0] = np.where(ends > 0, first, -1)
  positions = np.broadcast_to(np.arange(atoms.row_length), occupied.shape)
  return {
    "input_ids": rows(tokens),
    "token_type_ids": rows(0),
    "segment_ids": rows(1),
    "position_ids": rows(positions[occupied]),
    "loss_mask": rows(loss_on_padding | is_target, bool),
    "real_tokens": rows(is_target).sum(1, dtype=np.int32),
    "cls_positions": slots,
    "sequence_labels": slots.copy(),
    "sequence_mask": sequence_mask,
    "sequence_ids": sequence_ids,
  }


def documents(store: SequenceStore) -> tuple[np.ndarray, int]:
  """The documents of a store of the task `text`, whole again where they were cut.

  Returns:
    int64[D], tokens of each; and the id of the end token, which each ends with and the
    store too.
  """
  ends = np.cumsum(store.lengths, dtype=np.int64)
  last = store.read(ends - 1, np.ones(ends.size, np.int64))
  ends = ends[last == last[-1]]
  return np.diff(ends, prepend=0) - 1, int(last[-1])


def _check(layout: str, atom_size: int, row_length: int):
  if layout not in LAYOUTS:
    raise InputError(
      f"layout is {short_repr(layout)}; expected one of {', '.join(LAYOUTS)}."
    )
  check_integer("row_length", row_length, at_least=2)
  check_integer("atom_size", atom_size, at_least=2)
  if max(atom_size, row_length) % min(atom_size, row_length):
    raise InputError(
      f"atom_size is {atom_size}; expected what divides the row of {row_length} tokens, to "
      "be merged, or a multiple of it, to be split."
    )
