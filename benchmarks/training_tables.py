"""The ways of `benchmarks/training.py`, and its tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.command import DTYPES
from benchmarks.sample import BUCKETS
from lab.statistics import quartiles, ratio, spread

# By name: the title in the table, the layout of batches, and for peers the computation.
OURS = {
  "packed": ("isopack, packed", "packs"),
  "unpacked": ("isopack, one sequence a row", "rows"),
  "buckets": (f"isopack, {BUCKETS} buckets of lengths", "buckets"),
}
PEERS = {
  "padded": ("Hugging Face, padded to the row", "rows", "whole"),
  "longest": ("Hugging Face, padded to the longest of the batch", "longest", "whole"),
  "sorted": ("Hugging Face, sorted by length", "sorted", "whole"),
  "masked": ("the same, padded to the row, head at masked tokens", "rows", "masked"),
  "sorted_masked": ("the same, sorted, head at masked tokens", "sorted", "masked"),
  "unpadded": ("the same, un-padded, head at masked tokens", "rows", "unpadded"),
}
WAYS: dict[str, tuple] = {**OURS, **PEERS}
# How steps are timed; a ratio is one of times of the same kind.
KINDS = ("queued", "awaited")
# The last quotient is the product of the other three.
PARTS = (
  ("packing", "packed", "unpacked"),
  ("head", "masked", "padded"),
  ("framework", "unpacked", "masked"),
  ("the whole", "packed", "padded"),
)


class Key(NamedTuple):
  """What stands in the key of a measured way; "" for the first dtype of a run."""

  name: str
  implementation: str = "xla"
  dtype: str = ""


def expand(
  names: Iterable[str], implementations: Sequence[str], dtypes: Sequence[str]
) -> list[str]:
  """A key for each way and dtype; our ways have one for each implementation of attention.

  Example:
    >>> expand(["packed", "padded"], ["xla", "splash"], ["float32"])
    ['packed', 'packed splash', 'padded']
    >>> expand(["packed", "padded"], ["xla"], ["float32", "bfloat16"])
    ['packed', 'packed bfloat16', 'padded', 'padded bfloat16']
  """
  return [
    " ".join(filter(None, (name, implementation.removeprefix("xla"), dtype)))
    for name in names
    for implementation in (implementations if name in OURS else ["xla"])
    for dtype in ("", *dtypes[1:])
  ]


def split(key: str) -> Key:
  """What `expand` put together.

  Example:
    >>> split("packed")
    Key(name='packed', implementation='xla', dtype='')
    >>> split("packed splash bfloat16")
    Key(name='packed', implementation='splash', dtype='bfloat16')
  """
  name, *rest = key.split(" ")
  dtype = rest.pop() if rest and rest[-1] in DTYPES else ""
  return Key(name, rest[0] if rest else "xla", dtype)


def way_rows(
  measured: Mapping[str, dict],
  keys: Iterable[str],
  not_run: Mapping[str, str],
  *,
  sequences: int,
) -> list[dict[str, str]]:
  """A row for each way that ran, from `training.measure`, in the order of `keys`.

  Peers that did not run have the reason in their rows; our ways that did not run have no
  row. `sequences` is the number in a round.
  """
  base = "padded" if "padded" in measured else next(iter(measured))
  records = []
  for key in keys:
    name, implementation, dtype = split(key)
    title = ", ".join(
      filter(None, (WAYS[name][0], implementation.removeprefix("xla"), dtype))
    )
    if key not in measured:
      if name in PEERS:
        records.append({"way": title, _rate_title(KINDS[0]): not_run[key]})
      continue
    record = {"way": title}
    for kind in KINDS:
      record |= _of_kind(measured, key, base, kind)
    way = measured[key]
    tokens = way["computed_tokens"] / sequences * np.median(way["queued"]["rates"]) / 1000
    record |= {
      "thousand tokens a second, with padding": f"{tokens:.2f}",
      "compilations": str(way["compilations"]),
      "first steps": f"{way['first_seconds']:.1f} s",
      "loss of steps 1 and 2": f"{way['losses'][0]:.5f}, {way['losses'][1]:.5f}",
    }
    records.append(record)
  return records


def _rate_title(kind: str) -> str:
  return f"sequences a second, {kind} (quartiles)"


def _of_kind(
  measured: Mapping[str, dict], key: str, base: str, kind: str
) -> dict[str, str]:
  """The rate of a way and its ratios, all of one kind of timing."""
  way, of_base = measured[key][kind], measured[base][kind]
  packed = measured["packed"][kind] if "packed" in measured else None
  processor = np.median(np.divide(way["processor_rates"], of_base["processor_rates"]))
  return {
    _rate_title(kind): spread(quartiles(way["rates"])),
    f"{base} = 1, {kind}": ratio(way["rates"], of_base["rates"]),
    f"packed is faster, {kind}": ratio(packed["rates"], way["rates"]) if packed else "",
    f"by processor time, {base} = 1, {kind}": f"{processor:.2f}",
  }


def part_rows(measured: Mapping[str, dict]) -> list[dict[str, str]]:
  """The shares of packing, the head and the framework; none unless all four ways ran."""
  if not {"packed", "unpacked", "masked", "padded"} <= set(measured):
    return []
  return [
    {
      "of the whole": part,
      "what": f"{WAYS[one][0]} : {WAYS[other][0]}",
      **{
        f"times, {kind} (quartiles)": ratio(
          measured[one][kind]["rates"], measured[other][kind]["rates"]
        )
        for kind in KINDS
      },
    }
    for part, one, other in PARTS
  ]


def realised_line(measured: Mapping[str, dict], *, packing_factor: float) -> str:
  """How much of the packing factor becomes speed; "" unless both ways ran.

  Example:
    >>> packed, unpacked = {"rates": [6.0]}, {"rates": [4.0]}
    >>> measured = {"packed": dict.fromkeys(KINDS, packed)}
    >>> measured["unpacked"] = dict.fromkeys(KINDS, unpacked)
    >>> print(realised_line(measured, packing_factor=2.0))
    Packing factor 2.000; packed : unpacked is 0.75 (0.75 to 0.75) of it with queued ...
  """
  if not {"packed", "unpacked"} <= set(measured):
    return ""
  realised = []
  for kind in KINDS:
    packed, unpacked = (
      np.array(measured[x][kind]["rates"]) for x in ("packed", "unpacked")
    )
    realised.append(ratio(packed, unpacked * packing_factor))
  return (
    f"Packing factor {packing_factor:.3f}; packed : unpacked is {realised[0]} of it with "
    f"queued steps, {realised[1]} with awaited ones."
  )
