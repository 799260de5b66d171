"""The steps of preparing: learn a vocabulary, write shards, make the manifest."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import tqdm

from packing import InputError
from packing.files import whole_path
from pipeline.dataset import VERSION, file_sha256
from pipeline.index import file_names, write_index
from pipeline.preparation.shard_files import (
  ShardSummary,
  ShardWork,
  load_summary,
)
from pipeline.preparation.workers import write_shards
from pipeline.settings import DatasetSettings
from pipeline.sources.document import Document
from pipeline.sources.document_shards import (
  HELD_OUT,
  MISMATCHED,
  TRAIN,
  document_shards,
)
from pipeline.sources.partitions import Partition
from pipeline.store import read_batches
from pipeline.tasks.registry import Task
from pipeline.tokenizer import (
  END,
  NEVER_MASKED,
  TOKENIZER_FILE,
  VOCABULARY_FILE,
  Tokenizer,
  ids_by_role,
  load_tokenizer,
  train_bpe,
  train_word_pieces,
)

MAX_WORKERS = 10  # by default; each has about 180 MB, so they stay within 2 GB
VOCABULARY_CHARACTERS = 32_000_000  # of training text that a vocabulary is learned from

Sources = dict[str, list[Partition]]  # by split; held-out splits only if they have sources


@dataclasses.dataclass(frozen=True)
class Preparation:
  """What to prepare, resolved once.

  Attributes:
    task: the rules of the task.
    settings: the settings, with the task's defaults filled in.
    sources: partitions by split.
    vocabulary: the tokenizer of `settings.vocab_file`; None to learn one.
  """

  task: Task
  settings: DatasetSettings
  sources: Sources
  vocabulary: Tokenizer | None


# Writes the shards to a folder, given the path of the tokenizer; returns their summaries
# in any order.
Runner = Callable[[pathlib.Path, Preparation, str], Iterable[ShardSummary]]


def write_dataset(
  directory: pathlib.Path,
  preparation: Preparation,
  *,
  num_workers: int | None = None,
  runner: Runner | None = None,
) -> dict:
  """Writes vocabulary and shards into a folder, which may hold some of them already.

  Args:
    directory: where to write.
    preparation: what to write.
    num_workers: how many processes; None for one per core, at most `MAX_WORKERS`.
    runner: does the work instead of processes on this machine.

  Returns:
    The manifest, without the source.

  Raises:
    InputError: the source gives no sequences, or has documents that cannot be used.
  """
  tokenizer = _write_tokenizer(directory, preparation)
  if runner is None:
    has_affinity = hasattr(os, "sched_getaffinity")  # macOS lacks it
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    workers = num_workers or min(cores, MAX_WORKERS)
    runner = functools.partial(_write_shards, num_workers=workers)
  written = runner(directory, preparation, str(tokenizer.path))
  summaries = sorted(written, key=lambda summary: summary.name)
  return _manifest(directory, preparation, tokenizer, summaries)


def remove_unfinished(directory: pathlib.Path):
  """Removes unfinished files."""
  for path in directory.glob(".*.partial-*"):
    path.unlink(missing_ok=True)


def split_parts(sources: Sources) -> Iterator[tuple[str | None, int, Partition]]:
  """Split, number and partition; the split is None if some documents are held out."""
  for split, partitions in sources.items():
    for number, partition in enumerate(partitions):
      yield (split if HELD_OUT in sources else None), number, partition


def training_documents(settings: DatasetSettings, sources: Sources) -> Iterator[Document]:
  """The documents that are not held out."""
  for part in split_parts(sources):
    if part[0] in (None, TRAIN):
      for shard in document_shards(settings, *part):
        if shard.split == TRAIN:
          yield from shard.documents


def _write_shards(
  directory: pathlib.Path,
  preparation: Preparation,
  tokenizer: str,
  *,
  num_workers: int,
) -> Iterator[ShardSummary]:
  """Writes the shards, and shows partitions, documents and tokens."""
  settings, parts = preparation.settings, list(split_parts(preparation.sources))
  begun = tokens = 0

  def work() -> Iterator[ShardWork | ShardSummary]:
    nonlocal begun
    for part in parts:
      begun += 1
      for shard in document_shards(settings, *part):
        summary = load_summary(directory, shard.name)
        yield summary or ShardWork(shard, settings, tokenizer, str(directory))

  with tqdm.tqdm(desc="preparing", unit=" documents", unit_scale=True) as bar:
    for summary in write_shards(work(), num_workers=num_workers):
      yield summary
      tokens += summary.tokens
      done = f"partition {begun} of {len(parts)}, {tokens:,} tokens"
      bar.set_postfix_str(done, refresh=False)
      bar.update(summary.documents)


def _write_tokenizer(directory: pathlib.Path, preparation: Preparation) -> Tokenizer:
  settings, byte_level = preparation.settings, preparation.task.byte_level
  given = pathlib.Path(settings.vocab_file) if settings.vocab_file else None
  as_json = given.suffix == ".json" if given else byte_level
  path = directory / (TOKENIZER_FILE if as_json else VOCABULARY_FILE)
  if not path.exists():
    with whole_path(path) as partial:
      if given:
        shutil.copyfile(given, partial)
      else:
        texts = tqdm.tqdm(_training_texts(preparation), "reading", unit=" texts")
        if byte_level:
          special = preparation.task.special_tokens or (END,)
          size = settings.vocab_size
          text = train_bpe(texts, vocab_size=size, special_tokens=special)
        else:
          vocabulary = train_word_pieces(texts, vocab_size=settings.vocab_size)
          text = "\n".join(vocabulary) + "\n"
        partial.write_text(text, encoding="utf-8")
  return load_tokenizer(str(path))


def _training_texts(preparation: Preparation) -> Iterator[str]:
  """The first texts of the training split."""
  texts, settings = preparation.task.texts, preparation.settings
  assert texts is not None
  left = VOCABULARY_CHARACTERS
  for document in training_documents(settings, preparation.sources):
    for text in texts(document, settings):
      yield text
      left -= len(text)
    if left <= 0:
      return


def _manifest(
  directory: pathlib.Path,
  preparation: Preparation,
  tokenizer: Tokenizer,
  summaries: list[ShardSummary],
) -> dict:
  task, settings = preparation.task, preparation.settings
  counts: dict = {"documents": sum(s.documents for s in summaries), "documents_used": 0}
  shards, histograms, paths = {}, {}, {}
  for split in (TRAIN, HELD_OUT, *([MISMATCHED] if settings.mismatched_source else [])):
    of_split = [summary for summary in summaries if summary.split == split]
    tally: collections.Counter[str] = collections.Counter()
    histogram = np.zeros(settings.max_sequence_length, np.int64)
    for summary in of_split:
      tally.update(summary.tally)
      histogram += summary.counts
    sequences = sum(summary.sequences for summary in of_split)
    counts[split] = {
      "documents": tally.pop("documents_used", 0),
      "sequences": sequences,
      "tokens": sum(summary.tokens for summary in of_split),
      "too_long": tally.pop("too_long", 0),
    }
    for name in task.tallied_shares:
      counts[split][name] = tally.pop(name, 0) / max(sequences, 1)
    counts[split] |= tally
    counts["documents_used"] += counts[split]["documents"]
    shards[split] = [f"{summary.name}.arrow" for summary in of_split if summary.sequences]
    paths[split] = [directory / name for name in shards[split]]
    histograms[split] = histogram.tolist()
  _check_enough(preparation, counts)
  digests = {tokenizer.path.name: file_sha256(tokenizer.path)}
  digests |= {f"{s.name}.arrow": s.sha256 for s in summaries if s.sequences}
  for split in filter(paths.get, paths):
    write_index(directory, split, read_batches(paths[split], reads_ahead=True))
    digests |= {name: file_sha256(directory / name) for name in file_names(split)}
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
    "most_frequent_token": _most_frequent(paths[TRAIN], tokenizer),
    "shards": shards,
    "bytes": {name: (directory / name).stat().st_size for name in sorted(digests)},
    "sha256": dict(sorted(digests.items())),
  }


def _most_frequent(paths: list[pathlib.Path], tokenizer: Tokenizer) -> int:
  """The id that occurs most often among the tokens that may be masked."""
  counts = np.zeros(len(tokenizer.vocabulary), np.int64)
  for path in paths:
    for batch in read_batches([path]):
      ids = batch.column("input_ids").values.to_numpy()
      counts += np.bincount(ids, minlength=counts.size)
  special = ids_by_role(tokenizer.vocabulary, NEVER_MASKED)
  counts[[*itertools.chain(*special.values())]] = 0
  return int(counts.argmax())


def _check_enough(preparation: Preparation, counts: dict):
  """Raises InputError if a split has too few documents."""
  task, settings = preparation.task, preparation.settings
  for split, name in (HELD_OUT, "held_out_source"), (MISMATCHED, "mismatched_source"):
    source = getattr(settings, name)
    if source and not counts[split]["sequences"]:
      raise InputError(f"{source} gave no documents that can be used. Name another {name}.")
  least = task.min_documents
  holds_out = settings.held_out_source or settings.held_out_fraction
  for split in (TRAIN, HELD_OUT) if holds_out else (TRAIN,):
    if counts[split]["documents"] < least or not counts[split]["sequences"]:
      of_text = "`documents`" if task.fields == ("text",) else ""
      share = "held_out_fraction" if settings.held_out_fraction else ""
      left_out = counts["documents"] > counts["documents_used"]
      filters = left_out and task.filter and getattr(settings, task.filter) > 1
      of_short = task.filter if filters else ""
      others = " or ".join(["Add more", *filter(None, (of_text, share, of_short))])
      others = others.replace(" or ", " or set ", 1)
      if settings.task == "squad" and settings.held_out_fraction:
        others = (
          "Questions are held out with their contexts: add contexts, or set "
          "held_out_fraction or another seed"
        )
      held_out = f" and held out {counts[HELD_OUT]['documents']}" if holds_out else ""
      expected = f"{least} each" if holds_out else f"at least {least}"
      raise InputError(
        f"{settings.source} had {counts[TRAIN]['documents']} usable documents{held_out}; "
        f"expected {expected}. {others}."
      )
