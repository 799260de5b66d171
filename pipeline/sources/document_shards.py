"""Shards of documents: the unit of work, of randomness, and of a file on disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pipeline.sources.partitions import Document, Partition

TRAIN, HELD_OUT, MISMATCHED = SPLITS = "train", "held_out", "mismatched"


class DocumentShard(NamedTuple):
  """Documents that follow each other in one split of one partition.

  Where they stand fixes every random choice: the seed, the split, the partition, the
  shard's number and the document's number in it; never the order of work.

  Attributes:
    split: "train", "held_out" or "mismatched".
    partition: number of the partition in its source.
    number: of the shard in its partition and split.
    documents: at least one.
  """

  split: str
  partition: int
  number: int
  documents: list[Document]

  @property
  def name(self) -> str:
    """Of its file, without suffix. Names sort as sequences are numbered."""
    return f"{self.split}-{self.partition:05d}-{self.number:05d}"

  @property
  def key(self) -> tuple[int, int, int]:
    """For random choices."""
    return SPLITS.index(self.split), self.partition, self.number


def document_shards(
  partition: Partition,
  number: int,
  *,
  split: str | None,
  held_out_fraction: float,
  shard_bytes: int,
  seed: int,
) -> Iterator[DocumentShard]:
  """Reads a partition as shards, in the order in which they fill.

  Args:
    partition: what to read.
    number: of the partition in its source.
    split: the split of all its documents; None to hold out some of them.
    held_out_fraction: of the documents, where split is None.
    shard_bytes: a shard ends with the document that brings it there, if it has two.
    seed: of which documents are held out.
  """
  pending: dict[str, list[Document]] = {name: [] for name in SPLITS}
  sizes = dict.fromkeys(SPLITS, 0)
  numbers = dict.fromkeys(SPLITS, 0)
  for index, document in enumerate(partition.read()):
    name = split or (
      HELD_OUT if is_held_out(index, held_out_fraction, seed + (number << 32)) else TRAIN
    )
    pending[name].append(document)
    sizes[name] += document_size(document)
    if sizes[name] >= shard_bytes and len(pending[name]) > 1:
      yield DocumentShard(name, number, numbers[name], pending[name])
      pending[name], sizes[name] = [], 0
      numbers[name] += 1
  for name in SPLITS:
    if pending[name]:
      yield DocumentShard(name, number, numbers[name], pending[name])


def document_size(value) -> int:
  """Bytes of all texts in UTF-8, and 4 a number; of what a document holds, not its place.

  Example:
    >>> document_size({"sentences": ["a b", "c"], "label": 1, "where": "x", "read": 9})
    8
  """
  if isinstance(value, str):
    return len(value) if value.isascii() else len(value.encode(errors="surrogatepass"))
  if isinstance(value, dict):
    parts = (part for key, part in value.items() if key not in ("where", "read"))
    return sum(map(document_size, parts))
  if isinstance(value, list):
    if value and isinstance(value[0], int):
      return 4 * len(value)
    return sum(map(document_size, value))
  return 4


def is_held_out(index: int, fraction: float, seed: int) -> bool:
  """Whether a document is held out: one at random of each 1/fraction that follow.

  So a stream is split without knowing its end, and evenly: of n documents n x fraction
  are held out, give or take two.

  Example:
    >>> sum(is_held_out(index, 0.05, 0) for index in range(2000))
    100
  """
  if fraction <= 0:
    return False
  blocks = range(int(index * fraction), int((index + 1) * fraction) + 1)
  return any(int((k + _uniform(k, seed)) / fraction) == index for k in blocks)


_MASK = 2**64 - 1


def _uniform(number: int, seed: int) -> float:
  """In [0, 1), from SplitMix64 (Steele, Lea and Flood, 2014)."""
  x = (number * 0x9E3779B97F4A7C15 + seed * 0xD1342543DE82EF95 + 1) & _MASK
  x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
  x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
  return ((x ^ (x >> 31)) >> 11) / 2**53
