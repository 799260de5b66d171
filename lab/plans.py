"""Plans and measurements that are made once, then cached by what they were made from."""

from __future__ import annotations

import functools
import hashlib
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import highspy
import numpy
import scipy

import packing
from lab import records
from lab.exhibits import Part
from packing.files import write_json


def cached_plan(
  part: Part,
  histogram: str,
  algorithm: str,
  depth: int | None = None,
  *,
  lengths: packing.Histogram | None = None,
  **options,
) -> packing.Plan:
  """A plan for a histogram; read from its file if it was made before.

  All parts of a report share the files. A change of the histogram, an option, a solver's
  version or the packer's code makes a new file. `depth` is the most sequences in a pack,
  None for no limit; algorithm and options are those of `packing.pack`. The histogram is a
  built-in one, unless `lengths` has it.

  Raises:
    InputError: as by `packing.pack`; or the file was altered.
  """
  options = {"max_sequences_per_pack": depth, **options}
  lengths = lengths or packing.load_histogram(histogram)
  made_from = [histogram, lengths.sha256, algorithm, sorted(options.items()), solvers()]
  key = digest(made_from)
  name = "-".join([histogram, algorithm, *(f"{k}={v}" for k, v in options.items())])
  path = part.folder.parent / "plans" / f"{name}-{key}.json"
  if path.exists():
    return packing.load_plan(path, histogram=lengths)
  print(f"packing {name}", file=sys.stderr, flush=True)
  plan = packing.pack(lengths, algorithm=algorithm, **options)
  path.parent.mkdir(parents=True, exist_ok=True)
  plan.save(path)
  return plan


def measured_once(part: Part, name: str, made_from: Any, make: Callable[[], Any]) -> Any:
  """`made_once` for a measurement of a part; `made_from` is what it depends on."""
  path = part.folder / "measured" / f"{name}-{digest(made_from)}.json"
  return made_once(path, make)


def made_once(path: pathlib.Path, make: Callable[[], Any]) -> Any:
  """The record of a path (see `lab.records`); if there is none, `make` makes it first."""
  if records.read(path) is None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, make())
  return records.read(path)


def digest(made_from: Any) -> str:
  """A short name for what a cached result was made from; JSON has to be able to hold it."""
  text = json.dumps(made_from, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


@functools.cache
def solvers() -> list[str]:
  """What a plan depends on besides its input: the packer's code, and versions."""
  code = hashlib.sha256()
  for path in sorted(pathlib.Path(packing.__file__).parent.rglob("*.py")):
    code.update(path.read_bytes())
  versions = [numpy.__version__, scipy.__version__, highspy.Highs().version()]
  return [code.hexdigest(), *versions]
