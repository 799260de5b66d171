"""Prepared datasets: folders of sequences, complete or absent."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import pathlib
from concurrent.futures import ThreadPoolExecutor

from packing import InputError
from packing.errors import short_repr
from packing.files import parse_json
from pipeline.index import file_names
from pipeline.store import SequenceStore
from pipeline.tasks.registry import TASKS
from pipeline.tokenizer import Tokenizer

MANIFEST = "manifest.json"
VERSION = 1  # of the manifest


@dataclasses.dataclass(frozen=True)
class PreparedDataset:
  """An open prepared dataset.

  Attributes:
    directory: its folder.
    train: sequences to train on.
    tokenizer: the one that made them.
    manifest: settings, counts and checksums, as in `manifest.json`.
    mismatched: held-out sequences of another kind than `train`; None if there are none.
  """

  directory: pathlib.Path
  train: SequenceStore
  tokenizer: Tokenizer
  manifest: dict
  _held_out: SequenceStore | None
  mismatched: SequenceStore | None = None

  @property
  def vocabulary(self) -> list[str]:
    """Tokens in the order of their ids."""
    return self.tokenizer.vocabulary

  @property
  def labels(self) -> tuple[str, ...]:
    """Names of the classes to predict, in the order of their numbers; () for none."""
    has_classes = TASKS[self.manifest["settings"]["task"]].has_classes
    return tuple(self.manifest["labels"]["names"]) if has_classes else ()

  @property
  def held_out(self) -> SequenceStore:
    """Sequences of documents that neither the vocabulary nor the model was trained on.

    Raises:
      InputError: none were held out.
    """
    if self._held_out is None:
      raise InputError(
        f"{self.directory} has no held-out documents. Prepare it with held_out_fraction."
      )
    return self._held_out


def open_dataset(directory: str | pathlib.Path) -> PreparedDataset:
  """Opens a folder that `prepare` wrote, after comparing its checksums.

  Raises:
    InputError: the folder is not a prepared dataset, one of its files was altered, or
      another version of isopack wrote it.
  """
  directory = pathlib.Path(directory)
  try:
    manifest = parse_json((directory / MANIFEST).read_text(encoding="utf-8"))
    digests, shards = dict(manifest["sha256"]), dict(manifest["shards"])
    version, tokenizer = manifest["version"], manifest["tokenizer"]["file"]
    used = [tokenizer, *itertools.chain(*shards.values())]
    unchecked = [x for x in used if x not in digests or pathlib.Path(x).name != x]
    _ = manifest["settings"]["task"], manifest["labels"]["names"], shards["train"][0]
  except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
    reason = f"{type(error).__name__}: {error}"
    raise InputError(
      f"{directory} is not a prepared dataset ({reason[:200]}). Name another folder; "
      "python -m pipeline prepare makes one."
    ) from error
  wrong = ""
  if version != VERSION:
    wrong = f"{MANIFEST} has version {version!r}; expected {VERSION}"
  elif unchecked:
    name = short_repr(unchecked[0])
    wrong = f"{MANIFEST} names {name}, which is not a file of the folder with a checksum"
  elif altered := altered_file(directory, digests):
    wrong = f"{altered.name} is missing or was altered since it was prepared"
  if wrong:
    raise InputError(f"{directory}: {wrong}. Delete the folder, and prepare it again.")
  stores = {}
  for split, names in filter(lambda item: item[1], shards.items()):
    index = [directory / name for name in file_names(split) if name in digests]
    stores[split] = SequenceStore([directory / name for name in names], index)
  return PreparedDataset(
    directory=directory,
    train=stores["train"],
    tokenizer=Tokenizer(directory / tokenizer),
    manifest=manifest,
    _held_out=stores.get("held_out"),
    mismatched=stores.get("mismatched"),
  )


def altered_file(directory: pathlib.Path, digests: dict[str, str]) -> pathlib.Path | None:
  """The first file whose SHA-256 differs from its digest; None if all agree."""
  paths = [directory / name for name in digests]
  with ThreadPoolExecutor() as threads:
    found = threads.map(file_sha256, paths)
    for path, digest, expected in zip(paths, found, digests.values(), strict=True):
      if digest != expected:
        return path
  return None


def file_sha256(path: pathlib.Path) -> str:
  """The digest of a file; "" if there is none, or it is a pipe."""
  if not path.is_file():
    return ""
  with path.open("rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()
