"""From a shard of documents to a file of sequences and its summary."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterator

import numpy as np

from packing.files import whole_path
from pipeline.dataset import file_sha256
from pipeline.settings import DatasetSettings
from pipeline.sources.document_shards import DocumentShard
from pipeline.store import with_small_tokens, write_sequences
from pipeline.tasks.encoder import Encoder
from pipeline.tasks.registry import TASKS
from pipeline.tokenizer import load_tokenizer

_SUMMARY_SUFFIX = ".summary.json"


@dataclasses.dataclass(frozen=True)
class ShardWork:
  """All that is needed to write one shard; can be pickled.

  Attributes:
    shard: the documents.
    settings: how they become sequences.
    tokenizer: path of the vocabulary or tokenizer.
    directory: where to write.
  """

  shard: DocumentShard
  settings: DatasetSettings
  tokenizer: str
  directory: str


@dataclasses.dataclass(frozen=True, eq=False)
class ShardSummary:
  """What the manifest needs to know about a shard.

  Attributes:
    name: name of its file, without suffix.
    documents: how many were read.
    counts: int64[S]; its histogram.
    tally: counts of what happened to documents.
    sha256: the digest of its file; "" if there is none, because no document gave a
      sequence.
  """

  name: str
  documents: int
  counts: np.ndarray
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
  """Makes the sequences of a shard and writes them.

  The file is complete or absent, and so is its summary, which is written after it.

  Raises:
    InputError: the task cannot use a document.
    OSError: the disk is full, or not writable.
  """
  shard, settings = work.shard, work.settings
  task = TASKS[settings.task]
  tokenizer = load_tokenizer(work.tokenizer)
  encoder = Encoder(settings, tokenizer)
  schema = with_small_tokens(task.schema, len(tokenizer.vocabulary))
  counts = np.zeros(settings.max_sequence_length, np.int64)

  def counted():
    for sequence in task.make_sequences(shard, encoder):
      counts[len(sequence[0]) - 1] += 1
      yield sequence

  directory = pathlib.Path(work.directory)
  path = directory / f"{shard.name}.arrow"
  with whole_path(path) as partial:
    write_sequences(partial, counted(), schema=schema)
    digest = file_sha256(partial)
  if not counts.any():
    path.unlink()
    digest = ""
  tally = dict(encoder.tally)
  summary = ShardSummary(shard.name, len(shard.documents), counts, tally, digest)
  values = dataclasses.asdict(summary) | {"counts": counts.tolist()}
  with whole_path(directory / f"{shard.name}{_SUMMARY_SUFFIX}") as partial:
    partial.write_text(json.dumps(values))
  return summary


def load_summary(directory: str | pathlib.Path, name: str) -> ShardSummary | None:
  """The summary of a shard; None if the shard's file is not as it was written."""
  directory = pathlib.Path(directory)
  path = directory / f"{name}{_SUMMARY_SUFFIX}"
  summary = _read_summary(path) if path.exists() else None
  same = summary and file_sha256(directory / f"{name}.arrow") == summary.sha256
  return summary if same else None


def _read_summary(path: pathlib.Path) -> ShardSummary:
  values = json.loads(path.read_text())
  return ShardSummary(**values | {"counts": np.array(values["counts"])})


def all_summaries(directory: str | pathlib.Path) -> Iterator[ShardSummary]:
  """The summaries of all shards already written, in the order of their names."""
  return map(_read_summary, sorted(pathlib.Path(directory).glob(f"*{_SUMMARY_SUFFIX}")))
