"""Plans as files: one JSON object, portable and checked on the way in.

    {
      "format": "isopack-plan",
      "version": 1,
      "algorithm": "optimal",
      "row_length": 512,
      "max_sequences_per_pack": 3,
      "length_multiple": 1,
      "separator_tokens": 0,
      "histogram": {
        "max_sequence_length": 512,
        "source": "...",
        "counts": [[length, count], ...],      lengths that occur, ascending
        "sha256": "..."                        of the counts, see Histogram.sha256
      },
      "strategies": [[lengths], ...],          each ascending
      "repeat_counts": [...],                  packs of each strategy
      "bound_weights": [...] or null,          one for each size that occurs
      "details": {...},                        what the algorithm reported
      "certificate": {...}                     for readers; made anew on loading
    }

Nothing in the file is believed: the strategies must be a partition of the histogram,
the histogram must have its checksum, and the bound is proven again from the weights.
"""

from __future__ import annotations

import json

import numpy as np

from packing import files
from packing.errors import InputError
from packing.histogram import Histogram
from packing.plan import Plan

_FORMAT, _VERSION = "isopack-plan", 1
_WHAT = "a plan written by Plan.save"


def save(plan: Plan, path):
  """Writes a plan; the file is whole or not there."""
  lengths = np.flatnonzero(plan.histogram.counts) + 1
  counts = plan.histogram.counts[lengths - 1]
  weights = plan.bound_weights
  content = {
    "format": _FORMAT,
    "version": _VERSION,
    "algorithm": plan.algorithm,
    "row_length": plan.row_length,
    "max_sequences_per_pack": plan.max_sequences_per_pack,
    "length_multiple": plan.length_multiple,
    "separator_tokens": plan.separator_tokens,
    "histogram": {
      "max_sequence_length": plan.histogram.max_sequence_length,
      "source": plan.histogram.source,
      "counts": np.stack([lengths, counts], axis=1).tolist(),
      "sha256": plan.histogram.sha256,
    },
    "strategies": [list(strategy) for strategy in plan.strategies],
    "repeat_counts": plan.repeat_counts.tolist(),
    "bound_weights": None if weights is None else weights.tolist(),
    "details": plan.details,
    "certificate": plan.certificate().as_dict(),
  }
  files.write_text(path, json.dumps(content) + "\n")


def load_plan(path, *, histogram: Histogram | None = None) -> Plan:
  """Reads a plan and checks it.

  Args:
    path: a file written by `Plan.save`.
    histogram: the histogram that the plan is to be used for, if it is at hand.

  Returns:
    The plan.

  Raises:
    InputError: not a plan file; a plan for another histogram than the one given; or a
      file changed since, so that counts and checksum, or counts and packs, differ.

  Example:
    >>> import packing, tempfile, os
    >>> histogram = packing.Histogram.from_lengths([3, 5, 2], max_sequence_length=5)
    >>> path = os.path.join(tempfile.mkdtemp(), "plan.json")
    >>> packing.pack(histogram, algorithm="lpfhp").save(path)
    >>> load_plan(path, histogram=histogram).strategies
    [(2, 3), (5,)]
  """
  content = files.read_json(path, what=_WHAT)
  if content.get("format") != _FORMAT:
    raise InputError(
      f'{path} has format {content.get("format")!r}; expected "{_FORMAT}", {_WHAT}.'
    )
  if content.get("version") != _VERSION:
    raise InputError(
      f"{path} has version {content.get('version')!r}; expected {_VERSION}. Make the plan "
      "anew, or use the version of isopack that wrote it."
    )
  try:
    found = content["histogram"]
    size = found["max_sequence_length"]
    pairs = np.array(found["counts"])
    if type(size) is not int or pairs.dtype.kind != "i" or pairs.shape[1:] != (2,):
      raise TypeError("histogram")
    if not ((pairs[:, 0] >= 1) & (pairs[:, 0] <= size)).all() or size > 2**24:
      raise ValueError("lengths out of range")
    counts = np.zeros(size, np.int64)
    counts[pairs[:, 0] - 1] = pairs[:, 1]
    stored = Histogram(counts, source=str(found["source"]))
    _check_sums(path, stored, found["sha256"], histogram)
    weights = content["bound_weights"]
    details = content["details"]
    if not isinstance(details, dict):
      raise TypeError("details")
    return Plan(
      histogram=stored,
      strategies=[tuple(map(_integer, s)) for s in content["strategies"]],
      repeat_counts=np.array([_integer(n) for n in content["repeat_counts"]], np.int64),
      row_length=content["row_length"],
      max_sequences_per_pack=content["max_sequences_per_pack"],
      algorithm=content["algorithm"],
      length_multiple=content["length_multiple"],
      separator_tokens=content["separator_tokens"],
      bound_weights=None
      if weights is None
      else np.array([_integer(w) for w in weights], np.int64),
      details=details,
    )
  except InputError as error:
    raise InputError(f"{path}: {error}") from error
  except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
    raise InputError(
      f"{path} is damaged ({type(error).__name__}: {error}); expected {_WHAT}."
    ) from error


def _check_sums(path, stored: Histogram, sha256, histogram: Histogram | None):
  if stored.sha256 != sha256:
    raise InputError(
      f"the histogram was changed: its counts have sha256 {stored.sha256[:12]}..., the "
      f"file says {str(sha256)[:12]}.... Make the plan anew."
    )
  if histogram is not None and histogram.sha256 != stored.sha256:
    raise InputError(
      f"the plan was made for another histogram: {stored.num_sequences} sequences, "
      f"sha256 {stored.sha256[:12]}..., not {histogram.num_sequences}, "
      f"{histogram.sha256[:12]}.... Make a plan for this one."
    )


def _integer(value) -> int:
  if type(value) is not int:
    raise TypeError(f"{value!r} is not a whole number")
  return value
