"""The ways of `benchmarks/training.py`, and its tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from benchmarks.sample import BUCKETS
from benchmarks.steps import quartiles, spread

# By name: what it is called in the table, its batches, and of peers what they compute.
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
# The product of three quotients is the whole.
PARTS = (
  ("packing", "packed", "unpacked"),
  ("head", "masked", "padded"),
  ("framework", "unpacked", "masked"),
  ("the whole", "packed", "padded"),
)


def expand(names: Iterable[str], implementations: Sequence[str]) -> list[str]:
  """A key for each way, and for ours with each implementation of attention.

  Example:
    >>> expand(["packed", "padded"], ["xla", "splash"])
    ['packed', 'packed splash', 'padded']
  """
  return [
    name if implementation == "xla" else f"{name} {implementation}"
    for name in names
    for implementation in (implementations if name in OURS else ["xla"])
  ]


def split(key: str) -> tuple[str, str]:
  """The way, and of ours the implementation of attention.

  Example:
    >>> split("packed"), split("packed splash")
    (('packed', 'xla'), ('packed', 'splash'))
  """
  name, _, implementation = key.partition(" ")
  return name, implementation or "xla"


def table(
  found: Mapping[str, dict],
  keys: Iterable[str],
  not_run: Mapping[str, str],
  *,
  sequences: int,
) -> str:
  """A row for each way, in Markdown.

  Args:
    found: of `training.measure`.
    keys: of all ways, in order.
    not_run: reasons by key. Peers tell theirs in their rows; of ours there is none.
    sequences: of a round.
  """
  base = "padded" if "padded" in found else next(iter(found))
  lines = [
    f"| way | sequences a second (quartiles) | {base} = 1 (quartiles) "
    "| packed is faster (quartiles) | by processor time, "
    f"{base} = 1 | thousand tokens a second, with padding | compilations "
    "| first steps | loss of steps 1 and 2 |",
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
  ]
  for key in keys:
    name, implementation = split(key)
    title = WAYS[name][0] + ("" if implementation == "xla" else f", {implementation}")
    if key in not_run:
      if name in PEERS:
        lines.append(f"| {title} | {not_run[key]} |" + " |" * 7)
      continue
    way = found[key]
    rates = quartiles(way["rates"])
    faster = spread(_ratio(found, "packed", key)) if "packed" in found else ""
    processor = _ratio(found, key, base, rates="processor_rates")["median"]
    tokens = way["computed_tokens"] / sequences * rates["median"] / 1000
    lines.append(
      f"| {title} | {spread(rates)} | {spread(_ratio(found, key, base))} | {faster} "
      f"| {processor:.2f} | {tokens:.2f} | {way['compilations']} "
      f"| {way['first_seconds']:.1f} s | {way['losses'][0]:.5f}, {way['losses'][1]:.5f} |"
    )
  return "\n".join(lines)


def parts(found: Mapping[str, dict]) -> str:
  """What packing, the head and the framework give of the whole, where all were run."""
  if not {"packed", "unpacked", "masked", "padded"} <= set(found):
    return ""
  lines = ["| of the whole | what | times (quartiles) |", "|---|---|---:|"]
  for part, one, other in PARTS:
    ratio = spread(_ratio(found, one, other))
    lines.append(f"| {part} | {WAYS[one][0]} : {WAYS[other][0]} | {ratio} |")
  return "\n".join(lines)


def _ratio(
  found: Mapping[str, dict], one: str, other: str, *, rates: str = "rates"
) -> dict[str, float]:
  """Quartiles over rounds."""
  return quartiles(np.divide(found[one][rates], found[other][rates]))
