"""Prepared datasets: folders of sequences, complete or absent."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import pathlib
import sys
from collections.abc import Mapping
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
LARGE = 2**32  # bytes of all files; to read as many at each start would take long


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


def open_dataset(
  directory: str | pathlib.Path, *, compare_all: bool = False
) -> PreparedDataset:
  """Opens a folder that `prepare` wrote, after comparing its checksums.

  A dataset of more than 4 GiB is not read for this: the sizes of its files are compared, a
  line on the standard error says so, and its stores read ahead.

  Args:
    directory: the folder.
    compare_all: whether to compare the checksums of a large dataset, too.

  Raises:
    InputError: the folder is not a prepared dataset, one of its files was altered, or
      another version of isopack wrote it.
  """
  directory = pathlib.Path(directory)
  try:
    manifest = parse_json((directory / MANIFEST).read_text(encoding="utf-8"))
    digests, shards = dict(manifest["sha256"]), dict(manifest["shards"])
    sizes = dict(manifest.get("bytes", {}))  # manifests of before have none
    is_large = sizes.keys() == digests.keys() and sum(sizes.values()) > LARGE
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
  elif altered := _altered_file(
    directory, sizes if is_large and not compare_all else digests
  ):
    wrong = f"{altered.name} is missing or was altered since it was prepared"
  if wrong:
    raise InputError(f"{directory}: {wrong}. Delete the folder, and prepare it again.")
  if is_large and not compare_all:
    print(
      f"{directory} has {sum(sizes.values()) / 1e9:,.0f} GB, so only the sizes of its "
      "files were compared. An audit (docs/batches.md) compares their checksums.",
      file=sys.stderr,
    )
  stores = {}
  for split, names in filter(lambda item: item[1], shards.items()):
    index = [directory / name for name in file_names(split)]
    has_index = all(path.name in digests for path in index)  # not from before
    paths = [directory / name for name in names]
    stores[split] = SequenceStore(paths, index if has_index else None, reads_ahead=is_large)
  return PreparedDataset(
    directory=directory,
    train=stores["train"],
    tokenizer=Tokenizer(directory / tokenizer),
    manifest=manifest,
    _held_out=stores.get("held_out"),
    mismatched=stores.get("mismatched"),
  )


def _altered_file(
  directory: pathlib.Path, expected: Mapping[str, str | int]
) -> pathlib.Path | None:
  """The first file whose SHA-256, or size in bytes, is another; None if all agree."""
  paths = [directory / name for name in expected]
  with ThreadPoolExecutor() as threads:
    found = threads.map(_told, paths, expected.values())
    for path, told, known in zip(paths, found, expected.values(), strict=True):
      if told != known:
        return path
  return None


def _told(path: pathlib.Path, known: str | int) -> str | int:
  """What a file has for a SHA-256 or a size."""
  if isinstance(known, str):
    return file_sha256(path)
  return path.stat().st_size if path.is_file() else -1


def file_sha256(path: pathlib.Path) -> str:
  """The digest of a file; "" if there is none, or it is a pipe."""
  if not path.is_file():
    return ""
  with path.open("rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()
