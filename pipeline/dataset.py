"""Prepared datasets: a folder of sequences that is whole or not there."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from packing import InputError
from pipeline.preparation import write
from pipeline.preparation.shard_files import file_sha256
from pipeline.settings import DatasetSettings
from pipeline.sources.partitions import fingerprint, open_source
from pipeline.store import SequenceStore
from pipeline.tasks.table import TASKS, find_task
from pipeline.tokenizer import TOKENIZER_FILE, VOCABULARY_FILE, Tokenizer

MANIFEST = "manifest.json"
_LOCK = ".lock"


@dataclasses.dataclass(frozen=True)
class PreparedDataset:
  """A prepared dataset, opened.

  Attributes:
    directory: where it is.
    train: sequences to train on.
    vocabulary: tokens in the order of their ids.
    manifest: settings, counts and checksums, as in `manifest.json`.
    mismatched: held out too, of another kind than `train`; None where none was given.
  """

  directory: pathlib.Path
  train: SequenceStore
  vocabulary: list[str]
  manifest: dict
  _held_out: SequenceStore | None
  mismatched: SequenceStore | None = None

  @property
  def labels(self) -> tuple[str, ...]:
    """Names of the classes of a task, in the order of their numbers; () for none."""
    is_task = self.manifest["settings"]["task"] != "pretraining"
    return tuple(self.manifest["labels"]["names"]) if is_task else ()

  @property
  def held_out(self) -> SequenceStore:
    """Sequences of documents that neither the vocabulary nor the training saw.

    Raises:
      InputError: none were held out.
    """
    if self._held_out is None:
      raise InputError(
        f"{self.directory} was prepared without held-out documents. Prepare it with "
        "--held-out-fraction or --held-out-source."
      )
    return self._held_out


def open_dataset(directory: str | pathlib.Path) -> PreparedDataset:
  """Opens a folder that `prepare` wrote, after its checksums were compared.

  Raises:
    InputError: the folder is not a prepared dataset, or a file of it was altered.
  """
  directory = pathlib.Path(directory)
  try:
    manifest = json.loads((directory / MANIFEST).read_text())
    digests = dict(manifest["sha256"])
    shards = {split: list(names) for split, names in manifest["shards"].items()}
    settings = dict(manifest["settings"])
  except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
    raise InputError(
      f"{directory} is no prepared dataset ({error!r}). Name another folder, or delete "
      "this one if nothing in it is needed."
    ) from error
  if altered := _altered(directory, digests):
    raise InputError(
      f"{altered} is missing or was altered since it was prepared. Delete {directory} and "
      "prepare it again."
    )
  stores = {
    split: SequenceStore([directory / name for name in names])
    for split, names in shards.items()
    if names
  }
  has_vocabulary = digests.keys() & {VOCABULARY_FILE, TOKENIZER_FILE}
  if "train" not in stores or not has_vocabulary or "task" not in settings:
    raise InputError(f"{directory / MANIFEST} is not whole. Prepare the dataset again.")
  return PreparedDataset(
    directory=directory,
    train=stores["train"],
    vocabulary=_stored_tokenizer(directory).vocabulary,
    manifest=manifest,
    _held_out=stores.get("held_out"),
    mismatched=stores.get("mismatched"),
  )


def _stored_tokenizer(directory: pathlib.Path) -> Tokenizer:
  vocabulary = directory / VOCABULARY_FILE
  return Tokenizer(vocabulary if vocabulary.exists() else directory / TOKENIZER_FILE)


def _altered(directory: pathlib.Path, digests: dict[str, str]) -> pathlib.Path | None:
  """The first file that is not as its checksum says, if any."""
  paths = [directory / name for name in digests]
  with ThreadPoolExecutor() as threads:
    for path, digest in zip(paths, threads.map(file_sha256, paths), strict=True):
      if digest != digests[path.name]:
        return path
  return None


def prepare(
  directory: str | pathlib.Path,
  settings: DatasetSettings,
  *,
  num_workers: int | None = None,
  runner: write.Runner | None = None,
) -> PreparedDataset:
  """Prepares a dataset, or opens it where that is done already.

  Everything is written to a folder beside the final one, and moved there at the end. So
  a killed run leaves nothing that looks whole; the same call again goes on with what it
  has written, or starts clean where settings or sources are others. Workers of a killed
  run that live on elsewhere write to a folder of those settings and sources alone.

  Args:
    directory: where the dataset is, or shall be.
    settings: what to prepare.
    num_workers: processes; None for one a core, at most 10.
    runner: does the work in another way, such as `pipeline.preparation.beam.runner`.

  Raises:
    InputError: the folder holds something else, or the source cannot be used.
    OSError: the disk is full. What is written is kept for the next call.
  """
  directory = pathlib.Path(os.path.realpath(directory))  # "." has no name
  task, settings = find_task(settings)
  if _is_there(directory):
    return _open_same(directory, settings)
  wanted = task.wanted(settings)
  sources = {"train": open_source(settings.source, wanted)}
  if settings.held_out_source:
    sources["held_out"] = open_source(settings.held_out_source, wanted)
  if settings.mismatched_source:
    sources["mismatched"] = open_source(settings.mismatched_source, wanted)
  given = Tokenizer(pathlib.Path(settings.vocab_file)) if settings.vocab_file else None
  for token in task.special_tokens if given else ():
    given.id_of(token)  # type: ignore[union-attr]
  prints = {split: fingerprint(partitions) for split, partitions in sources.items()}

  partial = directory.with_name(f".{directory.name}.partial")
  with _claimed(partial, directory) as lock:
    if lock is None:
      return _open_same(directory, settings)  # another process was faster
    try:
      work = _start_or_go_on(partial, settings, prints)
      manifest = write.write(
        work, settings, sources, num_workers=num_workers, runner=runner, lock=lock
      )
      manifest["source"] = {
        split: {k: v for k, v in found.items() if k != "version"}
        for split, found in prints.items()
      }
      if altered := _altered(work, manifest["sha256"]):
        raise OSError(
          f"{altered} is not what was written to it. Run the same command again: such "
          "files are written anew"
        )
      write.clean(work)
      with (work / MANIFEST).open("w") as file:
        file.write(json.dumps(manifest, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
      os.rename(work, directory)
      shutil.rmtree(partial, ignore_errors=True)
    except InputError:
      shutil.rmtree(partial, ignore_errors=True)
      raise
  return open_dataset(directory)


def _is_there(directory: pathlib.Path) -> bool:
  try:
    return (directory.is_dir() and any(directory.iterdir())) or directory.is_file()
  except OSError as error:
    raise InputError(
      f"{directory} cannot be read: {error}. Name another folder."
    ) from error


@contextlib.contextmanager
def _claimed(partial: pathlib.Path, directory: pathlib.Path) -> Iterator[int | None]:
  """Holds the unfinished folder for one process and its workers.

  Gives the descriptor of the lock; None if another process finished meanwhile.
  """
  waited = False
  while True:
    try:
      partial.mkdir(parents=True, exist_ok=True)
      try:
        lock = (partial / _LOCK).open("a")
      except FileNotFoundError:  # finished, or swept, between the two
        continue
    except OSError as error:
      raise InputError(
        f"The dataset cannot be written: {error}. Name another folder."
      ) from error
    with lock:
      try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if waited else fcntl.LOCK_NB))
      except BlockingIOError:
        print(
          f"waiting for another process that prepares {directory}, or its last workers",
          file=sys.stderr,
        )
        waited = True
        continue
      with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(lock.fileno()), (partial / _LOCK).stat()):
          done = _is_there(directory)
          if done:
            shutil.rmtree(partial)
          yield None if done else lock.fileno()
          return
    time.sleep(0.01)
    if _is_there(directory):
      yield None
      return


def _start_or_go_on(
  partial: pathlib.Path, settings: DatasetSettings, prints: dict
) -> pathlib.Path:
  """The folder of these settings and sources, with what a killed preparation wrote.

  What others left is removed; a worker that they left finds its folder gone.
  """
  state: dict = {"settings": dataclasses.asdict(settings), "sources": prints}
  if settings.vocab_file:
    state["tokenizer"] = Tokenizer(pathlib.Path(settings.vocab_file)).definition
  text = json.dumps(state, sort_keys=True)
  work = partial / hashlib.sha256(text.encode()).hexdigest()[:16]
  for path in partial.iterdir():
    if path.is_dir() and path != work:
      shutil.rmtree(path, ignore_errors=True)
    elif path.is_file() and path.name != _LOCK:
      path.unlink()
  work.mkdir(exist_ok=True)
  write.remove_unfinished(work)
  return work


def _open_same(directory: pathlib.Path, settings: DatasetSettings) -> PreparedDataset:
  dataset = open_dataset(directory)
  check_same(directory, dataset.manifest["settings"], dataclasses.asdict(settings))
  if settings.vocab_file:
    given = Tokenizer(pathlib.Path(settings.vocab_file))
    if given.definition != _stored_tokenizer(directory).definition:
      raise InputError(
        f"{directory} was prepared with another vocabulary, or other merges, than those of "
        f"{settings.vocab_file} now. Delete the folder, or name another."
      )
  _check_sources(dataset, settings)
  return dataset


def _check_sources(dataset: PreparedDataset, settings: DatasetSettings):
  """Compares names and sizes of the source's files, where they are still there.

  Not those of the standard library, which is another with each patch of Python.
  """
  wanted = TASKS[settings.task].wanted(settings)
  specs = {
    "train": settings.source,
    "held_out": settings.held_out_source,
    "mismatched": settings.mismatched_source,
  }
  for split, before in dataset.manifest["source"].items():
    if specs[split].partition(":")[0] == "stdlib":
      continue
    try:
      found = fingerprint(open_source(specs[split], wanted))
    except InputError:
      continue  # gone, which a finished dataset can do without
    if found["sha256"] != before["sha256"]:
      raise InputError(
        f"{dataset.directory} was prepared from {before['files']} files with "
        f"{before['bytes']:,} bytes; {specs[split]} has {found['files']} with "
        f"{found['bytes']:,} now, or others. Delete the folder, or name another."
      )


def check_same(directory: pathlib.Path, found: dict, expected: dict):
  """Compares the settings of a dataset with those that are asked for.

  Raises:
    InputError: names the settings that differ.
  """
  # A dataset from before a setting was there is as the setting's default makes it.
  found = {f.name: f.default for f in dataclasses.fields(DatasetSettings)} | found
  differences = [
    f"{name}: {found[name]!r}, now {value!r}"
    for name, value in expected.items()
    if found[name] != value
  ]
  if differences:
    raise InputError(
      f"{directory} was prepared with other settings ({'; '.join(differences)}). Delete "
      "it, or name another folder."
    )
