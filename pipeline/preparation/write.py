"""The work of preparing: read, learn a vocabulary, cut into sequences, count."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
import tqdm

from packing import InputError
from pipeline import bpe, wordpiece
from pipeline.preparation import shard_files
from pipeline.preparation.shard_files import ShardSummary, ShardWork
from pipeline.preparation.workers import write_shards
from pipeline.settings import DatasetSettings
from pipeline.sources.document_shards import (
  HELD_OUT,
  MISMATCHED,
  TRAIN,
  DocumentShard,
  document_shards,
  document_size,
)
from pipeline.sources.partitions import Partition
from pipeline.tasks.table import TASKS, find_task
from pipeline.tokenizer import TOKENIZER_FILE, VOCABULARY_FILE, Tokenizer

VERSION = 1  # of the manifest
MAX_WORKERS = 10  # of about 180 MB each, by default: within 2 GB in all
VOCABULARY_CHARACTERS = 32_000_000  # of the training text that a vocabulary is learned from

Sources = dict[str, list[Partition]]  # by split; what is held out where it has its own


class Runner(Protocol):
  """Reads sources and writes shards; returns their summaries in any order."""

  def __call__(
    self,
    directory: pathlib.Path,
    settings: DatasetSettings,
    sources: Sources,
    tokenizer: str,
  ) -> Iterable[ShardSummary]: ...


def write(
  directory: pathlib.Path,
  settings: DatasetSettings,
  sources: Sources,
  *,
  num_workers: int | None = None,
  runner: Runner | None = None,
  lock: int | None = None,
) -> dict:
  """Writes vocabulary and shards into a folder, which may hold some of them already.

  Args:
    directory: where to write.
    settings: what to make.
    sources: of what.
    num_workers: processes; None for one a core, at most `MAX_WORKERS`.
    runner: does the work in another way.
    lock: file descriptor of the folder's lock, which workers hold as well.

  Returns:
    The manifest, but for what only the finished folder tells.

  Raises:
    InputError: the source gives no sequences, or documents that cannot be used.
  """
  tokenizer = _write_tokenizer(directory, settings, sources)
  if runner is not None:
    found = iter(runner(directory, settings, sources, str(tokenizer.path)))
  else:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    workers = num_workers or min(cores, MAX_WORKERS)
    found = _watched(directory, settings, sources, str(tokenizer.path), workers, lock)
  token_counts = np.zeros(len(tokenizer.vocabulary), np.int64)
  summaries = []
  for summary in found:
    if summary.split == TRAIN:
      token_counts += summary.token_counts
    # Of a shard a row of lengths stays in memory, not one of the vocabulary.
    summaries.append(dataclasses.replace(summary, token_counts=np.zeros(0, np.int64)))
  summaries.sort(key=lambda summary: summary.name)
  return _manifest(settings, tokenizer, summaries, token_counts)


def clean(directory: pathlib.Path):
  """Removes what the finished dataset does not need."""
  shard_files.remove_summaries(directory)
  remove_unfinished(directory)


def remove_unfinished(directory: pathlib.Path):
  """Removes files that were not finished, and errors that were left."""
  for path in directory.glob(".*.partial-*"):
    path.unlink(missing_ok=True)


def shards_of(
  settings: DatasetSettings, sources: Sources, split: str, number: int
) -> Iterator[DocumentShard]:
  """The shards of one partition of a source."""
  return document_shards(
    sources[split][number],
    number,
    split=split if HELD_OUT in sources else None,
    held_out_fraction=settings.held_out_fraction,
    shard_bytes=settings.shard_bytes,
    seed=settings.seed,
  )


def _all_shards(settings: DatasetSettings, sources: Sources) -> Iterator[DocumentShard]:
  for split, partitions in sources.items():
    for number in range(len(partitions)):
      yield from shards_of(settings, sources, split, number)


def _watched(
  directory: pathlib.Path,
  settings: DatasetSettings,
  sources: Sources,
  tokenizer: str,
  num_workers: int,
  lock: int | None,
) -> Iterator[ShardSummary]:
  """Does the work, and shows documents, tokens and the time left."""
  parts = [part for partitions in sources.values() for part in partitions]
  unit = parts[0].counts if parts else ""
  sizes = [part.size for part in parts]
  total = sum(sizes) if all(sizes) and {p.counts for p in parts} == {unit} else None
  read = {"bytes": 0, "documents": 0}  # of shards that are written
  sizes_of: dict[str, tuple[int, int]] = {}

  def work() -> Iterator[ShardWork | ShardSummary]:
    for shard in _all_shards(settings, sources):
      taken = (d["read"] if "read" in d else document_size(d) for d in shard.documents)
      sizes_of[shard.name] = sum(taken), len(shard.documents)
      written = shard_files.load_summary(directory, shard.name)
      yield written or ShardWork(shard, settings, tokenizer, str(directory))

  documents = tokens = 0
  with tqdm.tqdm(
    total=total, desc="preparing", unit=f" {unit}", unit_scale=True, smoothing=0.05
  ) as bar:
    for summary in write_shards(work(), num_workers=num_workers, lock=lock):
      yield summary
      documents += summary.documents
      tokens += summary.tokens
      size, number = sizes_of.pop(summary.name)
      read["bytes"] += size
      read["documents"] += number
      step = read[unit] - bar.n
      bar.set_postfix_str(f"{documents:,} documents, {tokens:,} tokens", refresh=False)
      bar.update(step if total is None else min(step, total - bar.n))
    if total is not None:  # what lies between documents
      bar.update(total - bar.n)


def _write_tokenizer(
  directory: pathlib.Path, settings: DatasetSettings, sources: Sources
) -> Tokenizer:
  given, byte_level = settings.vocab_file, TASKS[settings.task].byte_level
  as_json = given.endswith(".json") if given else byte_level
  name = TOKENIZER_FILE if as_json else VOCABULARY_FILE
  path = directory / name
  if not path.exists():
    partial = path.with_name(f".{name}.partial-{os.getpid()}")
    if pathlib.Path(given).name == bpe.VOCABULARY_FILE:  # one file of its two
      Tokenizer(pathlib.Path(given)).save(partial)
    elif given:
      shutil.copyfile(given, partial)
    else:
      texts = tqdm.tqdm(_training_texts(settings, sources), "reading", unit=" texts")
      if byte_level:
        text = bpe.train_tokenizer(texts, vocab_size=settings.vocab_size)
      else:
        vocabulary = wordpiece.train_vocabulary(texts, vocab_size=settings.vocab_size)
        text = "\n".join(vocabulary) + "\n"
      partial.write_text(text, encoding="utf-8")
    with partial.open("rb") as file:
      os.fsync(file.fileno())
    os.replace(partial, path)
  return Tokenizer(path)


def _training_texts(settings: DatasetSettings, sources: Sources) -> Iterator[str]:
  """The first texts of what is trained on."""
  task = TASKS[settings.task]
  left = VOCABULARY_CHARACTERS
  for shard in _all_shards(
    settings, {TRAIN: sources[TRAIN]} if HELD_OUT in sources else sources
  ):
    if shard.split == TRAIN:
      for document in shard.documents:
        for text in task.texts(document, settings):  # type: ignore[misc]
          yield text
          left -= len(text)
        if left <= 0:
          return


def _manifest(
  settings: DatasetSettings,
  tokenizer: Tokenizer,
  summaries: list[ShardSummary],
  token_counts: np.ndarray,
) -> dict:
  task, _ = find_task(settings)
  counts: dict = {"documents": sum(s.documents for s in summaries), "documents_used": 0}
  names, histograms = {}, {}
  digests = {tokenizer.path.name: shard_files.file_sha256(tokenizer.path)}
  digests |= {f"{s.name}.arrow": s.sha256 for s in summaries if s.sequences}
  for split in _splits(settings):
    mine = [summary for summary in summaries if summary.split == split]
    tally: dict[str, int] = {}
    for summary in mine:
      for key, value in summary.tally.items():
        tally[key] = tally.get(key, 0) + int(value)
    histogram = sum((s.counts for s in mine), np.zeros(settings.max_sequence_length, int))
    sequences = int(histogram.sum())
    used = tally.pop("documents_used", 0)
    counts["documents_used"] += used
    counts[split] = {
      "documents": used,
      "sequences": sequences,
      "tokens": int(histogram @ np.arange(1, histogram.size + 1)),
      "too_long": tally.pop("too_long", 0),
    }
    if settings.task == "pretraining":
      counts[split]["random_next"] = tally.pop("random_next", 0) / max(sequences, 1)
    counts[split] |= tally
    names[split] = [f"{summary.name}.arrow" for summary in mine if summary.sequences]
    histograms[split] = histogram.tolist()
  _check_enough(settings, counts)
  for token in wordpiece.NEVER_MASKED:
    if token in tokenizer.vocabulary:
      token_counts[tokenizer.id_of(token)] = 0
  return {
    "version": VERSION,
    "settings": dataclasses.asdict(settings),
    "tokenizer": {"file": tokenizer.path.name, "size": len(tokenizer.vocabulary)},
    "labels": {
      "dtype": str(task.schema.field("sequence_label").type),
      "names": list(task.label_names),
    },
    "counts": counts,
    "histograms": histograms,
    "most_frequent_token": int(token_counts.argmax()),  # of those that are masked
    "shards": names,
    "sha256": dict(sorted(digests.items())),
  }


def _splits(settings: DatasetSettings) -> tuple[str, ...]:
  return (TRAIN, HELD_OUT, *([MISMATCHED] if settings.mismatched_source else []))


def _check_enough(settings: DatasetSettings, counts: dict):
  wants_held_out = settings.held_out_source or settings.held_out_fraction
  least = 2 if settings.task == "pretraining" else 1
  filter_flag = "--min-words" if settings.task == "text" else "--min-sentences"
  for split, wanted in ((TRAIN, True), (HELD_OUT, wants_held_out)):
    documents, sequences = counts[split]["documents"], counts[split]["sequences"]
    if split == HELD_OUT and settings.held_out_source and not sequences:
      raise InputError(
        f"{settings.held_out_source} gave no documents that can be used; expected at least "
        "one to hold out. Name another --held-out-source."
      )
    if wanted and (documents < least or not sequences):
      raise InputError(
        f"Expected at least {least} documents to train on"
        f"{f' and {least} to hold out' if wants_held_out else ''}; {settings.source} gave "
        f"{counts[TRAIN]['documents']} and {counts[HELD_OUT]['documents']} that can be "
        f"used, of {counts['documents']} in all. Give more documents, say with --documents "
        f"where they end, or change --held-out-fraction or {filter_flag}."
      )
  if settings.mismatched_source and not counts[MISMATCHED]["sequences"]:
    raise InputError(
      f"{settings.mismatched_source} gave no documents that can be used; expected at least "
      "one to hold out. Name another --mismatched-source, or leave it out."
    )
