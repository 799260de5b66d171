"""Prepares a dataset in a folder that is complete or absent, even after interruptions."""

from __future__ import annotations

import contextlib
import dataclasses
import decimal
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from packing import InputError
from packing.errors import short_repr
from packing.files import whole_path
from pipeline.dataset import MANIFEST, PreparedDataset, open_dataset
from pipeline.preparation import write
from pipeline.settings import DatasetSettings
from pipeline.sources.document import DocumentFields
from pipeline.sources.document_shards import TRAIN
from pipeline.sources.partitions import (
  LIBRARIES,
  FilePartition,
  Partition,
  check_splits,
  fingerprint,
  open_source,
  source_inputs,
  source_names,
)
from pipeline.sources.tfds import SHARE_NONE, TfdsPartition, shared_file
from pipeline.tasks import glue, tagging
from pipeline.tasks.encoder import SPECIAL_IN_TEXT, about_special_tokens
from pipeline.tasks.registry import find_task
from pipeline.tokenizer import Tokenizer

MAX_CLASSES = 1000  # that are found in the data
_LOCK = ".lock"
_SHARDS = 3  # the version of their format; those of another are not kept
_OTHER_FOLDER = "another --out (config.data.directory in a run)"
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u2060\ufeff"))


def prepare(
  directory: str | pathlib.Path,
  settings: DatasetSettings,
  *,
  num_workers: int | None = None,
  runner: write.Runner | None = None,
) -> PreparedDataset:
  """Prepares a dataset, or opens it if it is prepared already.

  Everything is written to a temporary folder beside the final one, which is renamed at the
  end, so a killed run leaves nothing that looks complete. The same call again keeps the
  shards already written, or starts again if settings or sources have changed. Workers of a
  killed run may finish a shard; they write only to the temporary folder for their own
  settings and sources.

  Args:
    directory: where the dataset is, or will be.
    settings: what to prepare.
    num_workers: how many processes; None for one per core, at most 10.
    runner: does the work instead, such as `pipeline.preparation.beam.BeamRunner`.

  Raises:
    InputError: the folder holds something else, or the source cannot be used. If one of
      its files cannot be read, what was written is kept for the next call.
    OSError: the disk is full. What was written is kept for the next call.
  """
  directory = pathlib.Path(os.path.realpath(directory))  # "." has no name
  task, settings = find_task(settings)
  fields = task.document_fields(settings)
  given = settings.vocab_file
  if _exists(directory):
    # The vocabulary's file may be gone, as its source may: the dataset has a copy.
    vocabulary = Tokenizer(given) if given and pathlib.Path(given).exists() else None
    return _open_same(directory, settings, vocabulary)
  vocabulary = Tokenizer(given) if given else None
  if vocabulary and vocabulary.warning and task.texts is not None:
    print(f"WARNING: {vocabulary.warning}", file=sys.stderr)
  specs = {s: spec for s, spec in _specs(settings).items() if spec or s == TRAIN}
  for split, spec in specs.items():
    check_splits(spec, trained=split == TRAIN)
  sources = {split: open_source(spec, fields) for split, spec in specs.items()}
  _check_apart(sources)
  if vocabulary:
    vocabulary.ids_of(task.special_tokens)  # raises
  if task.names_labels and not settings.labels:
    names = find_classes(sources, settings, fields)
    if not names:
      what = "class in its records" if settings.task == glue.MULTI_LABEL else "records"
      raise InputError(f"{settings.source} has no {what}. Name another source.")
    if len(names) < 2:
      raise InputError(
        f"{settings.source} has only the class {names[0]!r}; expected several."
      )
    settings = dataclasses.replace(settings, labels=json.dumps(names, ensure_ascii=False))
    task, settings = find_task(settings)
    shown = ", ".join(name if name.isprintable() else ascii(name) for name in names)
    print(f"{len(names)} classes in {settings.source}: {shown}", file=sys.stderr)
  if settings.task == "tagging" and not tagging.mark_entities(task.label_names):
    print(
      "The tags are of no scheme of entities (IOB, IOE, BIOES, BIOS, BILOU), so `score` is "
      "the accuracy of words.",
      file=sys.stderr,
    )
  preparation = write.Preparation(task, settings, sources, vocabulary)
  fingerprints = {
    split: fingerprint(entry for part in parts for entry in part.inputs())
    for split, parts in sources.items()
  }

  partial = directory.with_name(f".{directory.name}.partial")
  with _locked(partial):
    if _exists(directory):  # another process finished first
      shutil.rmtree(partial, ignore_errors=True)
      return _open_same(directory, settings, vocabulary)
    try:
      work = _work_folder(partial, preparation, fingerprints)
      manifest = write.write_dataset(
        work, preparation, num_workers=num_workers, runner=runner
      )
      of_splits = [x for x in manifest["counts"].values() if isinstance(x, dict)]
      if typed := sum(counts.get(SPECIAL_IN_TEXT, 0) for counts in of_splits):
        print(about_special_tokens(typed), file=sys.stderr)
      manifest["source"] = {
        split: {name: value for name, value in values.items() if name != "version"}
        for split, values in fingerprints.items()
      }
      for path in work.iterdir():
        if path.name not in manifest["sha256"]:
          path.unlink(missing_ok=True)  # a worker of a killed run may remove it too
      with whole_path(work / MANIFEST) as path:
        path.write_text(json.dumps(manifest, indent=1) + "\n")
      os.rename(work, directory)
      shutil.rmtree(partial, ignore_errors=True)
    except InputError as error:
      cause = error.__cause__
      # A disk or network may work again, so keep what was written for the next call.
      if not (isinstance(cause, OSError) and cause.errno):
        shutil.rmtree(partial, ignore_errors=True)
      raise
  return open_dataset(directory, compare_all=True)


def find_classes(
  sources: write.Sources, settings: DatasetSettings, fields: DocumentFields
) -> list[str]:
  """The classes of the training documents, sorted, as numbers if all are numbers.

  Where files declare the names of their classes, these are the classes, in their order,
  also those of no document.

  Raises:
    InputError: a value cannot name a class, two look alike, there are more than
      `MAX_CLASSES`, files declare different classes, or each document lists all of several
      classes, as `[0, 1]` and `[1, 0]` do.
  """
  task_name = settings.task
  (field,) = set(fields.classes) & set(fields.required)
  names, kinds, fewest = set[str](), set[bool](), MAX_CLASSES
  alike: dict[str, str] = {}
  for document in write.training_documents(settings, sources):
    value = document.fields[field]
    if field == "label":
      glue.check_listed(document, task_name)
    else:
      tagging.tags_of(document)
    for one in value if isinstance(value, list) else [value]:
      if str(one).strip().lower() in ("nan", "-1", "-100", "-1.0", "-100.0"):
        raise InputError(
          f"{document.where}: {field} {short_repr(one)} marks what has no class. Leave it "
          f"out{'' if field == 'label' else ' with its word'}; if it is a class, name all "
          "of them with labels."
        )
      kinds.add(type(one) is str)
      is_name = isinstance(one, str | int | float | decimal.Decimal) and str(one).strip()
      if not is_name or len(kinds) > 1:
        raise InputError(
          f"{document.where}: {field} is {short_repr(value)}; expected names of classes, "
          "or numbers everywhere."
        )
      names.add(str(one))
      other = alike.setdefault(_as_seen(str(one)), str(one))
      if other != str(one):
        raise InputError(
          f"{document.where}: {field} {one!a} looks like {other!a} before it. "
          "Spell them alike; if they are two classes, name all classes with labels."
        )
    if len(names) > MAX_CLASSES:
      raise InputError(
        f"{document.where}: {field} has over {MAX_CLASSES} values. Set labels or columns."
      )
    if task_name == glue.MULTI_LABEL:
      fewest = min(fewest, len(set(map(str, value))))
  if 1 < len(names) == fewest and task_name == glue.MULTI_LABEL:
    raise InputError(
      f"Each {field} lists all of {', '.join(sorted(names))}. List only those that apply."
    )
  declared = {
    of_file
    for part in sources[TRAIN]
    if isinstance(part, FilePartition)
    for of_file in part.declared_classes(field)
  }
  if declared:
    first, *others = sorted(declared)
    if others or not names <= set(first):
      other = ", ".join(others[0] if others else sorted(names - set(first)))
      raise InputError(
        f"A file declares the classes {', '.join(first)}; others are {other}. Name all of "
        "them with labels."
      )
    return list(first)
  numbers = {x: number for x in names if (number := glue.number_of(x)) is not None}
  numbered = len(numbers) == len(names)
  # 007 and 7 are one number; their texts, too, decide.
  return sorted(names, key=lambda name: (numbers[name] if numbered else 0, name))


def _as_seen(name: str) -> str:
  """A name without what nobody sees: spaces around it, and how its accents are encoded.

  Example:
    >>> _as_seen(" cafe\u0301\xa0") == _as_seen("caf\xe9")
    True
  """
  visible = unicodedata.normalize("NFC", name).translate(_INVISIBLE)
  return " ".join(visible.split())


def _specs(settings: DatasetSettings) -> dict[str, str]:
  return {
    "train": settings.source,
    "held_out": settings.held_out_source,
    "mismatched": settings.mismatched_source,
  }


def _exists(directory: pathlib.Path) -> bool:
  return (directory.is_dir() and any(directory.iterdir())) or directory.is_file()


@contextlib.contextmanager
def _locked(partial: pathlib.Path) -> Iterator[None]:
  """Makes the unfinished folder, for one process at a time."""
  while True:
    try:
      partial.mkdir(parents=True, exist_ok=True)
      try:
        lock = (partial / _LOCK).open("a")
      except FileNotFoundError:  # removed between the two calls
        continue
    except OSError as error:
      raise InputError(
        f"The dataset cannot be written: {error}. Name another folder."
      ) from error
    with lock:
      try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        print(f"waiting for another process that writes {partial}", file=sys.stderr)
        fcntl.flock(lock, fcntl.LOCK_EX)
      if _is_open_as(lock.fileno(), partial / _LOCK):
        yield
        return


def _is_open_as(descriptor: int, path: pathlib.Path) -> bool:
  """Whether an open file still has this name."""
  try:
    return os.path.samestat(os.fstat(descriptor), path.stat())
  except FileNotFoundError:
    return False


def _work_folder(
  partial: pathlib.Path, preparation: write.Preparation, fingerprints: dict
) -> pathlib.Path:
  """The folder for these settings and sources, with what a killed preparation wrote.

  Folders of other settings and sources are removed. A worker that still writes to one of
  them finds it gone.
  """
  settings, vocabulary = preparation.settings, preparation.vocabulary
  state: dict = {"settings": dataclasses.asdict(settings), "sources": fingerprints}
  state["shards"] = _SHARDS
  if vocabulary:
    state["tokenizer"] = vocabulary.definition
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


def _open_same(
  directory: pathlib.Path,
  settings: DatasetSettings,
  vocabulary: Tokenizer | None,
) -> PreparedDataset:
  """Opens a dataset if it has these settings, vocabulary and sources.

  Raises:
    InputError: says what differs.
  """
  dataset = open_dataset(directory)
  stored = dataset.manifest["settings"]
  differences = [
    f"{name}: {stored.get(name)!r}, now {value!r}"
    for name, value in dataclasses.asdict(settings).items()
    if not _are_same(name, stored.get(name), value)
  ]
  if differences:
    raise InputError(
      f"{directory} has other settings ({'; '.join(differences)}). Give the same ones, or "
      f"{_OTHER_FOLDER}."
    )
  if vocabulary and vocabulary.definition != dataset.tokenizer.definition:
    raise InputError(
      f"{directory} has another vocabulary. Give its own, or {_OTHER_FOLDER}."
    )
  _check_sources(dataset, settings)
  return dataset


def _are_same(name: str, stored: Any, now: Any) -> bool:
  """Whether a setting is that of a dataset; sources may be spelled in another way."""
  if stored == now or (name, now) == ("labels", ""):  # which were found in the data
    return True
  is_source = stored and name in ("source", "held_out_source", "mismatched_source")
  return bool(is_source) and source_names(stored) == source_names(now)


def _check_apart(sources: Mapping[str, list[Partition]]):
  """Refuses held-out files that are among those to train on; all of them may be.

  So it does with examples of TensorFlow Datasets.
  """
  files = {
    split: {
      path for part in parts if isinstance(part, FilePartition) for path in part.paths
    }
    for split, parts in sources.items()
  }
  slices = {
    split: [one for x in parts if isinstance(x, TfdsPartition) for one in x.slices()]
    for split, parts in sources.items()
  }
  for split in sources.keys() - {TRAIN}:
    if files[TRAIN] == files[split] and slices[TRAIN] == slices[split]:
      continue
    if both := files[TRAIN] & files[split]:
      raise InputError(f"{min(both)} is in the source to train on, too. Move it out.")
    if shared := shared_file(slices[split], slices[TRAIN]):
      raise InputError(
        f"Examples of {shared} are in the source to train on, too. {SHARE_NONE}"
      )


def _check_sources(dataset: PreparedDataset, settings: DatasetSettings):
  """Compares names and sizes of the source's files, if they still exist; warns of dates.

  It also warns of a source of TensorFlow Datasets that it does not find.

  The standard library is not compared, since it changes with each patch of Python.
  """
  specs, directory = _specs(settings), dataset.directory
  for split, before in dataset.manifest["source"].items():
    if specs[split].partition(":")[0] == "stdlib":
      continue
    try:
      inputs = source_inputs(specs[split])
    except (InputError, OSError) as error:
      # Files that are gone are not needed. Why a library finds nothing is hard to tell.
      if any(name.partition(":")[0] in LIBRARIES for name in source_names(specs[split])):
        print(
          f"WARNING: {specs[split]} cannot be compared with {directory}, which keeps what "
          f"it had: {error}",
          file=sys.stderr,
        )
      continue
    now = fingerprint(inputs)
    if now["sha256"] != before["sha256"]:
      changes = [
        f"{before[unit]:,} {unit} then, {now[unit]:,} now"
        for unit in ("files", "bytes")
        if before[unit] != now[unit]
      ]
      raise InputError(
        f"{specs[split]} has changed since {directory} was prepared "
        f"({', '.join(changes) or 'other names of files'}). Restore the source, or prepare "
        f"a new dataset: give {_OTHER_FOLDER}."
      )
    written = (directory / MANIFEST).stat().st_mtime_ns
    if later := [name for name, _, changed in inputs if changed > written]:
      print(
        f"WARNING: {later[0]} changed after {directory} was prepared, which keeps "
        f"what it had. To prepare it again, give {_OTHER_FOLDER}.",
        file=sys.stderr,
      )
