"""From a shard of documents to a file of sequences, and what is known of it."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pipeline.documents import DocumentShard
from pipeline.settings import Settings
from pipeline.store import write_sequences
from pipeline.tasks import TASKS
from pipeline.tokenizer import load_tokenizer

_SUMMARY_SUFFIX = ".summary.npz"


@dataclasses.dataclass(frozen=True)
class ShardWork:
  """All that is needed to write one shard; can be pickled.

  Attributes:
    shard: the documents.
    settings: what to make of them.
    tokenizer: path of the vocabulary or tokenizer.
    directory: where to write.
  """

  shard: DocumentShard
  settings: Settings
  tokenizer: str
  directory: str


@dataclasses.dataclass(frozen=True, eq=False)
class ShardSummary:
  """What is known of a shard that was written.

  Attributes:
    name: of its file, without suffix.
    documents: that were read.
    counts: int64[S]; its histogram.
    token_counts: int64[V]; how often each id occurs.
    tally: what happened to documents.
    sha256: of its file; "" where there is none, because no document gave a sequence.
  """

  name: str
  documents: int
  counts: np.ndarray
  token_counts: np.ndarray
  tally: dict[str, int]
  sha256: str

  @property
  def split(self) -> str:
    return self.name.partition("-")[0]

  @property
  def sequences(self) -> int:
    return int(self.counts.sum())

  @property
  def tokens(self) -> int:
    return int(self.counts @ np.arange(1, self.counts.size + 1))


def write_shard(work: ShardWork) -> ShardSummary:
  """Cuts the documents of a shard and writes the sequences.

  The file is there whole, with its summary beside it, or not at all.

  Raises:
    InputError: a document that the task cannot use.
    OSError: the disk is full, or not writable.
  """
  tokenizer = load_tokenizer(work.tokenizer)
  task = TASKS[work.settings.task]
  tally: collections.Counter[str] = collections.Counter()
  lengths = np.zeros(work.settings.max_sequence_length, np.int64)
  tokens = np.zeros(len(tokenizer.vocabulary), np.int64)

  def counted():
    for row in task.cut(work.shard, work.settings, tokenizer, tally):
      lengths[len(row[0]) - 1] += 1
      yield row

  path = pathlib.Path(work.directory) / f"{work.shard.name}.arrow"
  partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
  digest = ""
  try:
    if write_sequences(partial, counted(), schema=task.schema):
      _count_tokens(partial, tokens)
      with partial.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
      os.replace(partial, path)
  finally:
    partial.unlink(missing_ok=True)
  summary = ShardSummary(
    work.shard.name, len(work.shard.documents), lengths, tokens, dict(tally), digest
  )
  _save(summary, work.directory)
  return summary


def _count_tokens(path: pathlib.Path, tokens: np.ndarray):
  with pa.memory_map(str(path)) as source:
    reader = pa.ipc.open_file(source)
    for number in range(reader.num_record_batches):
      ids = reader.get_batch(number).column("input_ids").values.to_numpy()
      tokens += np.bincount(ids, minlength=tokens.size)


def _save(summary: ShardSummary, directory: str):
  path = pathlib.Path(directory) / f"{summary.name}{_SUMMARY_SUFFIX}"
  partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
  head = {
    "documents": summary.documents,
    "tally": summary.tally,
    "sha256": summary.sha256,
  }
  try:
    with partial.open("wb") as file:
      used = np.flatnonzero(summary.token_counts)
      np.savez(
        file,
        head=np.array(json.dumps(head)),
        counts=summary.counts,
        used=used.astype(np.int32),
        token_counts=summary.token_counts[used],
        vocab_size=summary.token_counts.size,
      )
    os.replace(partial, path)
  finally:
    partial.unlink(missing_ok=True)


def load_summary(directory: str | pathlib.Path, name: str) -> ShardSummary | None:
  """The summary of a shard that is written already, or None."""
  path = pathlib.Path(directory) / f"{name}{_SUMMARY_SUFFIX}"
  if not path.is_file():
    return None
  with np.load(path) as found:
    tokens = np.zeros(int(found["vocab_size"]), np.int64)
    tokens[found["used"]] = found["token_counts"]
    return ShardSummary(
      name=name,
      counts=found["counts"],
      token_counts=tokens,
      **json.loads(str(found["head"])),
    )


def all_summaries(directory: str | pathlib.Path) -> Iterator[ShardSummary]:
  """The summaries of all shards that are written, in the order of their names."""
  for path in sorted(pathlib.Path(directory).glob(f"*{_SUMMARY_SUFFIX}")):
    summary = load_summary(directory, path.name.removesuffix(_SUMMARY_SUFFIX))
    if summary is not None:
      yield summary


def remove_summaries(directory: str | pathlib.Path):
  """Removes what only a preparation in progress needs."""
  for path in pathlib.Path(directory).glob(f"*{_SUMMARY_SUFFIX}"):
    path.unlink()
