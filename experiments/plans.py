"""Plans that are made once: kept in files, by what they were made from."""

from __future__ import annotations

import functools
import hashlib
import json
import pathlib
import sys

import highspy
import numpy
import scipy

import packing


def plans_folder(folder: pathlib.Path) -> pathlib.Path:
  """Where a part of the report has its plans: beside it, for all parts.

  Args:
    folder: of the part.
  """
  return folder.parent / "plans"


def cached_plan(
  folder: pathlib.Path, histogram: str, *, algorithm: str, **options
) -> packing.Plan:
  """A plan for a built-in histogram, from its file where it was made before.

  Another histogram, option, version of the solvers or line of the packer's code is
  another file.

  Args:
    folder: of the files.
    histogram: its name.
    algorithm: of `packing.ALGORITHMS`.
    **options: as of `packing.pack`.

  Raises:
    InputError: as of `packing.pack`; or the file was altered.
  """
  lengths = packing.load_histogram(histogram)
  made_from = [histogram, lengths.sha256, algorithm, sorted(options.items()), _solvers()]
  key = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:16]
  told = "-".join([histogram, algorithm, *(f"{k}={v}" for k, v in options.items())])
  path = folder / f"{told}-{key}.json"
  if path.exists():
    return packing.load_plan(path, histogram=lengths)
  print(f"packing {told}", file=sys.stderr, flush=True)
  plan = packing.pack(lengths, algorithm=algorithm, **options)
  folder.mkdir(parents=True, exist_ok=True)
  plan.save(path)
  return plan


@functools.cache
def _solvers() -> list[str]:
  """What a plan depends on beside its input."""
  code = hashlib.sha256()
  for path in sorted(pathlib.Path(packing.__file__).parent.glob("*.py")):
    code.update(path.read_bytes())
  versions = [numpy.__version__, scipy.__version__, highspy.Highs().version()]
  return [code.hexdigest(), *versions]
