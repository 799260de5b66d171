"""What each device of a run gets in a step, and what un-padding would give it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

import packing
from launch.data import make_loader
from launch.parts import OnlineRows
from launch.settings import RunSettings
from pipeline import OnlineBatches, PreparedDataset
from pipeline.batches.online import ShuffledSequences
from pipeline.batches.packed import PackedBatch

_ROWS = 2**10  # that are counted, about; in at least one step


def count_shares(
  run: RunSettings,
  dataset: PreparedDataset,
  plan: packing.Plan,
  *,
  rows: int,
  steps: int,
  devices: int,
) -> dict[str, Any]:
  """Counts the real tokens of each device in the first steps of a run on these devices.

  Of a run that reads a stream, the steps are those of its sample, packed in the same way.

  Args:
    run: its settings.
    dataset: its dataset.
    plan: of its packs.
    rows: of a step, over all devices.
    steps: of the run; the first of them are counted.
    devices: of all processes.

  Returns:
    The results of `shares_of`; `rows` of a device in a step; `row_length`; and `stream`.
  """
  batches = _whole_batches(run, dataset, plan, rows=rows, devices=devices)
  counted = min(steps, max(1, _ROWS // rows))
  return {
    "rows": rows // devices,
    "row_length": plan.row_length,
    "stream": run.data.stream,
    **shares_of(itertools.islice(batches, counted), devices=devices),
  }


def shares_of(batches: Iterable[PackedBatch], *, devices: int) -> dict[str, Any]:
  """Counts the real tokens of each device, packed and un-padded.

  Un-padding is simulated: the sequences of each step, in random order, are dealt one by one
  to the devices, and a device takes as long as it has tokens.

  Args:
    batches: whole, with the rows of all processes.
    devices: each has an equal block of the rows.

  Returns:
    `devices`; `steps`, how many were counted; `smallest` and `largest`, real tokens of a
    device in a step; and the same two of `unpadded`, with `waiting`, the share of the time
    that its devices wait for the slowest.
  """
  rng = np.random.default_rng(0)
  packed, unpadded = [], []
  for batch in batches:
    lengths = lengths_by_row(batch)
    packed.append(lengths.reshape(devices, -1).sum(axis=1))
    dealt = rng.permutation(lengths[lengths > 0])
    unpadded.append([dealt[device::devices].sum() for device in range(devices)])
  return {
    "devices": devices,
    "steps": len(packed),
    "smallest": int(np.min(packed)),
    "largest": int(np.max(packed)),
    "unpadded": {
      "smallest": int(np.min(unpadded)),
      "largest": int(np.max(unpadded)),
      "waiting": packing.waiting(np.array(unpadded), devices=devices),
    },
  }


def lengths_by_row(batch: PackedBatch) -> np.ndarray:
  """int64[B, M]: the real tokens of each sequence of a batch, 0 in empty slots.

  Example:
    >>> lengths_by_row({"segment_ids": np.array([[1, 1, 2, 0]]),
    ...                 "sequence_mask": np.array([[True, True, False]])}).tolist()
    [[2, 1, 0]]
  """
  rows, slots = batch["sequence_mask"].shape
  if slots == 1 and "real_tokens" in batch:  # end tokens that fill a row are not real
    return batch["real_tokens"][:, None].astype(np.int64)
  numbers = np.arange(rows)[:, None] * (slots + 1) + batch["segment_ids"]
  counts = np.bincount(numbers.ravel(), minlength=rows * (slots + 1))
  return counts.reshape(rows, slots + 1)[:, 1:]


def shares_line(shares: Mapping[str, Any]) -> str:
  """What `count_shares` found, in two sentences."""
  s, unpadded = shares, shares["unpadded"]
  steps = f"the first {s['steps']:,} steps of the {'sample' if s['stream'] else 'run'}"
  return (
    f"Each of {s['devices']} devices computes {s['rows']:,} rows of {s['row_length']:,} "
    f"tokens in a step, {s['smallest']:,} to {s['largest']:,} of them real (counted in "
    f"{steps}). Un-padding would give the devices {unpadded['smallest']:,} to "
    f"{unpadded['largest']:,} tokens of the same sequences; they would wait "
    f"{unpadded['waiting']:.1%} of the time for the slowest."
  )


def _whole_batches(
  run: RunSettings,
  dataset: PreparedDataset,
  plan: packing.Plan,
  *,
  rows: int,
  devices: int,
) -> Iterator[PackedBatch]:
  """The batches of a run, with the rows of all processes."""
  if isinstance(run.rows, OnlineRows):
    reader = ShuffledSequences(dataset.train, seed=run.seed)
    online = OnlineBatches(
      reader, plan, batch_size=rows, masking=None, parts=jax.process_count()
    )
    return (batch for batch, _ in online.produce())
  loader = make_loader(
    run,
    dataset.train,
    dataset.vocabulary,
    plan=plan,
    batch_size=rows,
    devices=devices,
  )
  return map(loader.__getitem__, itertools.count())
