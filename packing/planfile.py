"""Plan files: each is one JSON object, which is checked when it is loaded.

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
        "sha256": "..."                        see Histogram.sha256
      },
      "strategies": [[lengths], ...],          each in ascending order
      "repeat_counts": [...],                  packs of each strategy
      "bound_weights": [...] or null,          one for each size that occurs
      "details": {...},                        what the algorithm reported
      "certificate": {...}                     for readers; loading ignores it
    }

`Plan.save` writes a plan file. `load_plan` trusts nothing in it: the strategies must be a
partition of the histogram, and the histogram must match its checksum. The loaded plan
proves its bound from the weights again when `lower_bound` is asked for.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from packing import files
from packing.errors import InputError
from packing.histogram import MAX_SEQUENCE_LENGTH, Histogram
from packing.plan import FORMAT, VERSION, Plan
from packing.problem import Geometry

_WHAT = "a plan written by Plan.save"
_GEOMETRY = [field.name for field in dataclasses.fields(Geometry)]


def load_plan(path, *, histogram: Histogram | None = None) -> Plan:
  """Reads and checks a plan.

  Args:
    path: a file written by `Plan.save`.
    histogram: the histogram that the plan must be for; None to accept any.

  Returns:
    The plan.

  Raises:
    InputError: the file is not a plan, is a plan for another histogram, or was changed, so
      that its counts do not match its checksum or its packs.

  Example:
    >>> import packing, tempfile, os
    >>> histogram = packing.Histogram.from_lengths([3, 5, 2], max_sequence_length=5)
    >>> path = os.path.join(tempfile.mkdtemp(), "plan.json")
    >>> packing.pack(histogram, algorithm="lpfhp").save(path)
    >>> load_plan(path, histogram=histogram).strategies
    [(2, 3), (5,)]
  """
  content = files.read_json(path, what=_WHAT)
  if content.get("format") != FORMAT:
    raise InputError(f"{path} has format {content.get('format')!r}; expected {_WHAT}.")
  if content.get("version") != VERSION:
    raise InputError(
      f"{path} has version {content.get('version')!r}; expected {VERSION}. Make a new plan."
    )
  try:
    entry = content["histogram"]
    size, pairs = entry["max_sequence_length"], np.array(entry["counts"])
    if pairs.dtype.kind != "i" or pairs.shape[1:] != (2,):
      raise TypeError("counts are not pairs of whole numbers")
    if not 1 <= pairs[:, 0].min() <= pairs[:, 0].max() <= size <= MAX_SEQUENCE_LENGTH:
      raise ValueError("a length is out of range")
    counts = np.zeros(size, np.int64)
    counts[pairs[:, 0] - 1] = pairs[:, 1]
    stored = Histogram(counts, source=entry["source"])
    _check_sha256(stored, entry["sha256"], histogram)
    names = ("strategies", "repeat_counts", "algorithm", "bound_weights", "details")
    return Plan(stored, **{name: content[name] for name in (*names, *_GEOMETRY)})
  except InputError as error:
    raise InputError(f"{path}: {error}") from error
  except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
    raise InputError(f"{path} is damaged ({error!r}); expected {_WHAT}.") from error


def _check_sha256(stored: Histogram, sha256, histogram: Histogram | None):
  if stored.sha256 != sha256:
    raise InputError("the histogram was changed, as its sha256 shows. Make the plan again.")
  if histogram is not None and histogram.sha256 != stored.sha256:
    size = max(stored.longest, histogram.longest)
    its, this = (x.extended(size).counts for x in (stored, histogram))
    index = int(np.flatnonzero(its != this)[0])
    raise InputError(
      f"the plan was made for another histogram: {its[index]} of its lengths are "
      f"{index + 1}, and {this[index]} of this one's. Make a plan for this one."
    )
