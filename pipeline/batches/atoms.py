"""From documents to rows of atoms: `concat`, `concat_isolated` and `padding`.

An atom is the unit of shuffling: up to `atom_size` tokens. Rows have `row_length` tokens
(the paper's MSL). After the shuffle, smaller atoms are merged into rows and larger ones
are split.

| layout  | atoms                                                                      |
|---------|----------------------------------------------------------------------------|
| concat  | all documents and their end tokens are one stream, cut every s tokens      |
| padding | each document alone is cut every s - 1 tokens, and end tokens fill each    |
|         | piece up to s; where s > MSL, they fill only the last row of a tail        |

`concat_isolated` has the atoms of `concat`; in its rows each document is a sequence of its
own, as is each atom of a row of several.

Where s > MSL, a tail of exactly k rows has no end token: it would need a row of end tokens
alone, which would teach nothing.

The documents form a stream: the tokens of each and one end token, laid end to end. Atoms
depend only on the lengths of the documents, which do not count the end token.

References:
  Refining Packing and Shuffling Strategies for Enhanced Performance in Generative Language
  Models (the atom-size paper), appendix A.3. Its A.9 (b) always pads tails to the atom,
  which contradicts A.3 and its example; we follow A.3.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from packing.errors import check, check_integer
from pipeline.store import SequenceStore, ranges

LAYOUTS = ("concat", "concat_isolated", "padding")


@dataclasses.dataclass(frozen=True, eq=False)
class Atoms:
  """Atoms as blocks: a block is an atom, or one row of an atom that is longer than a row.

  Attributes:
    starts: int64[K]; where each block begins in the stream, in tokens.
    lengths: int64[K]; tokens of the stream in each block.
    offsets: int64[A + 1]; atom a is the blocks offsets[a] to offsets[a + 1].
    row_length: S, in tokens.
    blocks_per_row: how many blocks share a row.
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

  def order(self, seed: int, epoch: int) -> np.ndarray:
    """int64[K]: the blocks, with atoms shuffled; the blocks of an atom stay together."""
    atoms = np.random.default_rng((seed, epoch)).permutation(self.num_atoms)
    return ranges(self.offsets[atoms], np.diff(self.offsets)[atoms])

  def rows_of(self, order: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """int64[R, blocks_per_row]: the blocks of some rows in an order, -1 for none."""
    places = rows[:, None] * self.blocks_per_row + np.arange(self.blocks_per_row)
    inside = places < order.size
    return np.where(inside, order[np.where(inside, places, 0)], -1)

  def row_tokens(self) -> np.ndarray:
    """int64[R]: tokens of each row, in the unshuffled order, without padding.

    End tokens that only fill a block count as padding. A shuffle changes the rows but not
    their sum.
    """
    blocks = self.rows_of(np.arange(self.starts.size), np.arange(self.num_rows))
    tokens = np.minimum(self.lengths[blocks] + self.padded, self.sizes(blocks))
    return tokens.sum(axis=1)

  def sizes(self, blocks: np.ndarray) -> np.ndarray:
    """Tokens that some blocks take in a row, including the end tokens that fill them."""
    sizes = self.row_length // self.blocks_per_row if self.padded else self.lengths[blocks]
    return np.where(blocks >= 0, sizes, 0)


def cut(lengths: np.ndarray, *, layout: str, atom_size: int, row_length: int) -> Atoms:
  """Cuts documents into atoms.

  Args:
    lengths: int[D]; tokens of each document.
    layout: one of `LAYOUTS`.
    atom_size: s, in tokens.
    row_length: S, in tokens.

  Raises:
    InputError: the layout is unknown, or neither size divides the other.

  Example: a document of 130 tokens makes two atoms of 63 tokens and an end token, and a
    tail of 4 tokens and 60 end tokens.

    >>> cut(np.array([130]), layout="padding", atom_size=64, row_length=64).lengths.tolist()
    [63, 63, 4]

    With atoms larger than rows, 35 tokens make two rows of 32, not four.

    >>> cut(np.array([35]), layout="padding", atom_size=128, row_length=32).lengths.tolist()
    [32, 3]

  References:
    The atom-size paper, appendix A.3.
  """
  check(layout in LAYOUTS, "layout", layout, f"one of {', '.join(LAYOUTS)}")
  check_integer("row_length", row_length, at_least=2)
  check_integer("atom_size", atom_size, at_least=2)
  divides = max(atom_size, row_length) % min(atom_size, row_length) == 0
  check(divides, "atom_size", atom_size, f"a divisor or multiple of {row_length}")
  lengths = np.asarray(lengths, np.int64)
  size = min(atom_size, row_length)  # tokens of a block
  if layout != "padding":
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
  """Cuts stretches of tokens into pieces: starts and lengths; the last may be shorter."""
  places = ranges(0, counts) * size
  left = np.repeat(lengths, counts) - places
  return np.repeat(starts, counts) + places, np.minimum(left, size)


def documents(store: SequenceStore) -> tuple[np.ndarray, int]:
  """The documents of a store of the task `text`, in which one may be several sequences.

  Returns:
    int64[D], the tokens of each document without its end token; and the id of the end
    token.
  """
  ends = np.cumsum(store.lengths, dtype=np.int64)
  last = store.read(ends - 1, np.ones(ends.size, np.int64))
  ends = ends[last == last[-1]]
  return np.diff(ends, prepend=0) - 1, int(last[-1])
