"""From a shard of documents to a file of sequences, and what is known of it."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import os
import pathlib
import uuid
import zipfile
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pipeline.settings import DatasetSettings
from pipeline.sources.document_shards import DocumentShard
from pipeline.store import write_sequences
from pipeline.tasks.table import TASKS
from pipeline.tokenizer import load_tokenizer

_SUMMARY_SUFFIX = ".summary.npz"
_UNREADABLE = (  # what a damaged summary raises
  OSError,
  EOFError,
  ValueError,
  LookupError,
  TypeError,
  RuntimeError,
  zipfile.BadZipFile,
)


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
  settings: DatasetSettings
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
    for row in task.make_sequences(work.shard, work.settings, tokenizer, tally):
      lengths[len(row[0]) - 1] += 1
      yield row

  path = pathlib.Path(work.directory) / f"{work.shard.name}.arrow"
  partial = path.with_name(f".{path.name}.partial-{uuid.uuid4().hex}")
  try:
    if write_sequences(partial, counted(), schema=task.schema):
      _count_tokens(partial, tokens)
      digest = file_sha256(partial)
      with partial.open("rb") as file:
        os.fsync(file.fileno())
      os.replace(partial, path)
    else:
      digest = ""
      path.unlink(missing_ok=True)
  finally:
    partial.unlink(missing_ok=True)
  summary = ShardSummary(
    work.shard.name, len(work.shard.documents), lengths, tokens, dict(tally), digest
  )
  _save(summary, work.directory)
  return summary


def file_sha256(path: pathlib.Path) -> str:
  """The digest of a file; "" where it cannot be read."""
  try:
    with path.open("rb") as file:
      return hashlib.file_digest(file, "sha256").hexdigest()
  except OSError:
    return ""


def _count_tokens(path: pathlib.Path, tokens: np.ndarray):
  with pa.memory_map(str(path)) as source:
    reader = pa.ipc.open_file(source)
    for number in range(reader.num_record_batches):
      ids = reader.get_batch(number).column("input_ids").values.to_numpy()
      tokens += np.bincount(ids, minlength=tokens.size)


def _save(summary: ShardSummary, directory: str):
  path = pathlib.Path(directory) / f"{summary.name}{_SUMMARY_SUFFIX}"
  partial = path.with_name(f".{path.name}.partial-{uuid.uuid4().hex}")
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
      file.flush()
      os.fsync(file.fileno())
    os.replace(partial, path)
  finally:
    partial.unlink(missing_ok=True)


def load_summary(directory: str | pathlib.Path, name: str) -> ShardSummary | None:
  """The summary of a shard whose file is what was written, or None."""
  summary = _load(directory, name)
  path = pathlib.Path(directory) / f"{name}.arrow"
  return summary if summary and file_sha256(path) == summary.sha256 else None


def _load(directory: str | pathlib.Path, name: str) -> ShardSummary | None:
  path = pathlib.Path(directory) / f"{name}{_SUMMARY_SUFFIX}"
  try:
    with np.load(path) as found:
      tokens = np.zeros(int(found["vocab_size"]), np.int64)
      tokens[found["used"]] = found["token_counts"]
      return ShardSummary(
        name=name,
        counts=found["counts"],
        token_counts=tokens,
        **json.loads(str(found["head"])),
      )
  except _UNREADABLE:
    return None  # not there, or cut short


def all_summaries(directory: str | pathlib.Path) -> Iterator[ShardSummary]:
  """The summaries of all shards that are written, in the order of their names.

  Raises:
    OSError: one cannot be read.
  """
  for path in sorted(pathlib.Path(directory).glob(f"*{_SUMMARY_SUFFIX}")):
    summary = _load(directory, path.name.removesuffix(_SUMMARY_SUFFIX))
    if summary is None:
      raise OSError(f"{path} cannot be read; run the same command again")
    yield summary


def remove_summaries(directory: str | pathlib.Path):
  """Removes what only a preparation in progress needs."""
  for path in pathlib.Path(directory).glob(f"*{_SUMMARY_SUFFIX}"):
    path.unlink()
