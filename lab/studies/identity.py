"""What a run had: its config, its data and its weights.

By them a record is recognised, wherever the data and the weights are.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lab import records
from lab.machine import machine_and_device
from launch.door import nested
from launch.settings import OPTIONS, RunSettings
from model import weights
from pipeline.dataset import MANIFEST, file_sha256
from pipeline.store import read_batches

_PLACES = ("directory", "source", "held_out_source", "vocab_file", "init_from")
_DEFAULTS = nested({name: known.default for name, known in OPTIONS.items()})


def known_by(settings: RunSettings) -> dict[str, Any]:
  """What the record of a run says of its data, its weights and its machine."""
  return {
    "dataset": dataset_digest(settings),
    "started_from": weights_digest(settings.model.init_from),
    "machine": machine_and_device(),
  }


def is_of(record: Mapping[str, Any], settings: RunSettings) -> bool:
  """Whether a record is of the data and the weights that a run names."""
  of_weights = weights_digest(settings.model.init_from)
  is_of_data = record.get("dataset") == dataset_digest(settings)
  return is_of_data and record.get("started_from") == of_weights


# ------------------------------------------------------------------------------ the data


def dataset_digest(settings: RunSettings) -> str | None:
  """The digest of the sequences and the vocabulary prepared for a run; None if none are.

  It does not depend on how many files hold the sequences, nor on their types.
  """
  manifest = pathlib.Path(settings.data.directory, MANIFEST)
  with contextlib.suppress(OSError, ValueError, LookupError):
    stat = manifest.stat()
    return _content_digest(manifest, stat.st_size, stat.st_mtime_ns)
  return None


@functools.cache
def _content_digest(path: pathlib.Path, *_: int) -> str:
  """The digest of a dataset; the size and the time of its manifest are for the cache."""
  manifest, digest = json.loads(path.read_text()), hashlib.sha256()
  digest.update(manifest["sha256"][manifest["tokenizer"]["file"]].encode())
  for split, names in sorted(manifest["shards"].items()):
    batches = read_batches(path.parent / name for name in names) if names else []
    digest.update(f"{split} {sum(map(len, batches))}".encode())
    table = pa.Table.from_batches(batches) if batches else pa.table({})
    for name, column in zip(table.column_names, table.columns, strict=True):
      digest.update(name.encode())
      _add(digest, column)
  return digest.hexdigest()


def _add(digest: Any, values: pa.ChunkedArray):
  """Adds the values of a column to a digest; numbers as if they had 64 bits."""
  kind = values.type
  if pa.types.is_list(kind):
    _add(digest, pc.list_value_length(values))
    _add(digest, pc.list_flatten(values))
  elif pa.types.is_string(kind):
    _add(digest, pc.binary_length(values))
    digest.update("".join(values.to_pylist()).encode())
  else:
    wide = np.float64 if pa.types.is_floating(kind) else np.int64
    for chunk in values.chunks:
      digest.update(chunk.to_numpy(zero_copy_only=False).astype(wide).tobytes())


# ------------------------------------------------------------------------------ the weights


def weights_digest(init_from: str) -> str | None:
  """The digest of the weights in a folder, or of those that a study's run had there.

  None if neither is known.
  """
  if not init_from:
    return None
  for path in (f"{init_from}.json", f"{init_from}/summary.json"):
    with contextlib.suppress(ValueError, KeyError, TypeError):
      return records.read(path)["parameters_digest"]
  folder = pathlib.Path(init_from)
  of_checkpoint = folder.glob(f"{weights.CHECKPOINTS}/*/{weights.PARAMS}/**/*")
  files = sorted(folder.glob("*.safetensors")) or sorted(
    path for path in of_checkpoint if path.is_file()
  )
  stats = [(path, path.stat()) for path in files]
  digests = [_sha256(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]
  if len(digests) > 1:
    return hashlib.sha256("".join(digests).encode()).hexdigest()
  return digests[0] if digests else None


@functools.cache
def _sha256(path: pathlib.Path, *_: int) -> str:
  """`file_sha256`; the file's size and time of change are for the cache."""
  return file_sha256(path)


# ------------------------------------------------------------------------------ the config


def is_same_run(stored: Any, wanted: Mapping[str, Any]) -> bool:
  """Whether a stored `study.identity` is the wanted one; ignores what else is stored."""
  stored = stored or {}
  others = all(stored.get(key) == wanted[key] for key in wanted.keys() - {"config"})
  return others and _agrees(stored.get("config"), wanted["config"])


def _agrees(stored: Any, wanted: Any, defaults: Any = _DEFAULTS) -> bool:
  """Whether a stored config, in dictionaries by group, is the wanted one.

  A field that is newer than the file had its default. The places of data and weights are
  ignored, since digests identify these.
  """
  if not (isinstance(stored, dict) and isinstance(wanted, dict)):
    return stored == wanted
  defaults = defaults if isinstance(defaults, dict) else {}
  return all(
    name in _PLACES
    or _agrees(stored.get(name, defaults.get(name)), wanted.get(name), defaults.get(name))
    for name in stored.keys() | wanted.keys()
  )


def without_places(config: Any) -> Any:
  """A config's dictionary, without the fields that say where data and weights are."""
  if not isinstance(config, dict):
    return config
  return {k: without_places(v) for k, v in config.items() if k not in _PLACES}
