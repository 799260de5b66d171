"""Shards of documents: each is one unit of work, one random seed and one file."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator
from typing import NamedTuple

from packing import splitmix
from pipeline.settings import DatasetSettings
from pipeline.sources.document import Document
from pipeline.sources.partitions import Partition

TRAIN, HELD_OUT, MISMATCHED = SPLITS = "train", "held_out", "mismatched"


class DocumentShard(NamedTuple):
  """Consecutive documents in one split of one partition.

  Random choices depend only on the seed, the split, the partition, the shard's number and
  the document's number in it; never on the order of work.

  Attributes:
    split: "train", "held_out" or "mismatched".
    partition: number of the partition in its source.
    number: number of the shard in its partition and split.
    documents: at least one.
  """

  split: str
  partition: int
  number: int
  documents: list[Document]

  @property
  def name(self) -> str:
    """Name of its file, without suffix. Sequences are numbered in the order of names."""
    return f"{self.split}-{self.partition:05d}-{self.number:05d}"

  @property
  def key(self) -> tuple[int, int, int]:
    """The seed of its random choices."""
    return SPLITS.index(self.split), self.partition, self.number


def document_shards(
  settings: DatasetSettings, split: str | None, number: int, partition: Partition
) -> Iterator[DocumentShard]:
  """Reads a partition as shards, in the order in which they fill.

  Args:
    settings: `shard_bytes` is the size at which a shard with at least two documents ends;
      `seed` selects the documents to hold out.
    split: the split of all its documents; None to hold out `held_out_fraction` of them, or
      of their contexts for squad, which several questions share.
    number: number of the partition in its source.
    partition: what to read.
  """
  fraction, seed = settings.held_out_fraction, settings.seed + (number << 32)
  pending: dict[str, list[Document]] = {name: [] for name in SPLITS}
  sizes = dict.fromkeys(SPLITS, 0)
  numbers = dict.fromkeys(SPLITS, 0)
  for index, document in enumerate(partition.read()):
    if split:
      name = split
    elif settings.task == "squad":
      name = HELD_OUT if _has_held_out_context(document, settings) else TRAIN
    else:
      name = HELD_OUT if is_held_out(index, fraction, seed) else TRAIN
    pending[name].append(document)
    sizes[name] += document.size
    if sizes[name] >= settings.shard_bytes and len(pending[name]) > 1:
      yield DocumentShard(name, number, numbers[name], pending[name])
      pending[name], sizes[name] = [], 0
      numbers[name] += 1
  for name in SPLITS:
    if pending[name]:
      yield DocumentShard(name, number, numbers[name], pending[name])


def is_held_out(index: int, fraction: float, seed: int) -> bool:
  """Whether a document is held out: one at random of every 1/fraction consecutive ones.

  This splits a stream evenly without knowing its end: of n documents, n x fraction are
  held out, give or take two.

  Example:
    >>> sum(is_held_out(index, 0.05, 0) for index in range(2000))
    100
  """
  if fraction <= 0:
    return False
  for block in range(int(index * fraction), int((index + 1) * fraction) + 1):
    drawn = int((block + _uniform(block, seed)) / fraction)
    # Where 1/fraction is not whole, two blocks share a document, which is the first's.
    if max(drawn, math.ceil(block / fraction)) == index:
      return True
  return False


def _has_held_out_context(document: Document, settings: DatasetSettings) -> bool:
  """Whether a question is held out: with all that share its context, wherever they are."""
  digest = hashlib.sha256(str(document.fields["context"]).encode()).digest()
  drawn = _uniform(int.from_bytes(digest[:8]), settings.seed)
  return drawn < settings.held_out_fraction


@functools.lru_cache(maxsize=8)  # consecutive documents need the same values
def _uniform(number: int, seed: int) -> float:
  """A float in [0, 1)."""
  key = (number - 1) * splitmix.GAMMA + seed * 0xD1342543DE82EF95 + 1
  return (splitmix.mix_one(key) >> 11) / 2**53
