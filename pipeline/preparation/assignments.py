"""Assignments on disk, made shard by shard; with a runner, no process has all lengths."""

from __future__ import annotations

import collections
import json
import pathlib
import shutil
import uuid
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

import packing
from packing import Assignment, InputError
from packing.errors import check_integer
from pipeline.preparation import ranks
from pipeline.preparation.beam import BeamRunner, Errors
from pipeline.store import open_arrow

PACKS_A_FILE = 65_536
_SCHEMA = pa.schema([("sequence_ids", pa.list_(pa.int64()))])
_PLAN = "plan.json"


def write_assignment(
  dataset: str | pathlib.Path,
  directory: str | pathlib.Path,
  *,
  split: str = "train",
  algorithm: str = "optimal",
  max_sequences_per_pack: int | str | None = "auto",
  seed: int = 0,
  runner: BeamRunner | None = None,
) -> packing.Plan:
  """Plans the packs of a prepared dataset and writes which sequences share one.

  This process makes the plan, from the sum of the histograms. Then each shard learns how
  many sequences of each length come before it, computes the pack and slot of each of its
  own sequences, and sends them to the file of that pack.

  Args:
    dataset: a prepared dataset. Its lengths are checked, its checksums are not.
    directory: a new folder. It gets `plan.json`, and `packs-00000.arrow` and so on with
      `PACKS_A_FILE` packs each.
    split: "train" or "held_out".
    algorithm: the packing algorithm.
    max_sequences_per_pack: depth limit, as in `packing.pack`.
    seed: selects the assignment.
    runner: a Beam runner; None for this process.

  Raises:
    InputError: the dataset is not a prepared one or was altered; or the folder already
      exists or cannot be written.
    OSError: the disk is full.
  """
  check_integer("seed", seed, at_least=0, at_most=2**32 - 1)
  dataset, directory = pathlib.Path(dataset), pathlib.Path(directory)
  try:
    manifest = json.loads((dataset / "manifest.json").read_text())
    paths = [str((dataset / name).absolute()) for name in manifest["shards"][split]]
    counts = np.array(manifest["histograms"][split])
    source = f"{manifest['settings']['source']}, {split}"
  except (OSError, ValueError, LookupError, TypeError) as error:
    raise InputError(f"{dataset} is not a prepared dataset ({error!r}).") from error
  if not paths:
    raise InputError(f"{dataset} has no {split} sequences. Name another split.")
  if directory.exists():
    raise InputError(f"{directory} exists already; expected a new folder. Name another.")
  histogram = packing.Histogram(counts, source=source)
  plan = packing.pack(
    histogram, algorithm=algorithm, max_sequences_per_pack=max_sequences_per_pack
  )
  partial = directory.with_name(f".{directory.name}.partial-{uuid.uuid4().hex}")
  try:
    partial.mkdir(parents=True)
  except OSError as error:
    raise InputError(
      f"The packs cannot be written: {error}. Name another folder."
    ) from error
  try:
    plan.save(partial / _PLAN)
    place = str(partial.absolute())
    if runner is None:
      _write_in_this_process(paths, place, seed)
    else:
      _write_with_runner(runner, paths, place, seed)
    partial.rename(directory)
  finally:
    shutil.rmtree(partial, ignore_errors=True)
  return plan


def read_assignment(directory: str | pathlib.Path) -> tuple[packing.Plan, Assignment]:
  """Reads into memory the plan and the assignment that `write_assignment` wrote.

  `PackedLoader` checks whether they belong to its dataset.

  Raises:
    InputError: they are missing or damaged.
  """
  paths = sorted(pathlib.Path(directory).glob("packs-*.arrow"))
  if not paths:
    raise InputError(
      f"{directory} holds no packs. Write them with python -m pipeline assign."
    )
  chunks = []  # not one table: Arrow's offsets have 32 bits, too few for all the files
  for path in paths:
    try:
      schema, batches = open_arrow(path)
      table = pa.Table.from_batches(batches, schema).cast(_SCHEMA)
      chunks += table["sequence_ids"].chunks
    except (OSError, ValueError) as error:
      raise InputError(
        f"{path} is not a file of packs ({error}). Write them again with python -m "
        "pipeline assign."
      ) from error
  depths = np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in chunks])
  offsets = np.concatenate([[0], np.cumsum(depths, dtype=np.int64)])
  ids = np.concatenate([chunk.flatten().to_numpy() for chunk in chunks])
  return _load_plan(directory), Assignment(offsets, ids)


def _write_in_this_process(paths: list[str], directory: str, seed: int):
  parts = collections.defaultdict(list)
  counts = [count_lengths(path, directory) for path in paths]
  for item in _with_starts(paths, counts, directory):
    for number, part in place_shard(item, directory, seed):
      parts[number].append(part)
  for group in parts.items():
    write_packs(group, directory)


def _write_with_runner(runner: BeamRunner, paths: list[str], directory: str, seed: int):
  beam = runner.beam
  with runner.pipeline(directory) as (pipeline, errors):
    _ = (
      pipeline
      | "shards to count" >> beam.Create(list(enumerate(paths)))
      | "spread counting" >> beam.Reshuffle()
      | "count lengths" >> beam.Map(_save_counts, directory, errors)
    )
  # This process reads S numbers for each shard, never the lengths.
  counts = []
  for number in range(len(paths)):
    path = _counts_path(directory, number)
    counts.append(np.load(path))
    path.unlink()
  shards = _with_starts(paths, counts, directory)
  with runner.pipeline(directory) as (pipeline, errors):
    _ = (
      pipeline
      | "shards to place" >> beam.Create(shards)
      | "spread placing" >> beam.Reshuffle()
      | "place" >> beam.FlatMap(_place_or_record, directory, seed, errors)
      | "by pack" >> beam.GroupByKey()
      | "write packs" >> beam.Map(_write_or_record, directory, errors)
    )


def _with_starts(paths: list[str], histograms: list[np.ndarray], directory: str) -> list:
  """Each shard with the number of sequences of each length in the shards before it."""
  counts = np.array(histograms)
  planned = _load_plan(directory).histogram.counts
  if not np.array_equal(counts.sum(axis=0), planned):
    raise InputError(
      f"The shards in {pathlib.Path(paths[0]).parent} hold {counts.sum():,} sequences; "
      f"the manifest says {planned.sum():,}, or other lengths. Prepare the dataset again."
    )
  return list(zip(paths, np.cumsum(counts, axis=0) - counts, strict=True))


def _shard_lengths(path: str, size: int) -> np.ndarray:
  try:
    columns = [batch.column("input_ids") for batch in open_arrow(path)[1]]
    lengths = np.concatenate([np.diff(column.offsets.to_numpy()) for column in columns])
    if lengths.min() < 1 or lengths.max() > size:
      raise ValueError(f"lengths from {lengths.min()} to {lengths.max()}")
  except (OSError, ValueError, LookupError) as error:
    raise InputError(
      f"{path} is missing or was altered since it was prepared ({error}). Prepare the "
      "dataset again."
    ) from error
  return lengths


def count_lengths(path: str, directory: str) -> np.ndarray:
  """int64[S]: the histogram of a shard."""
  size = _load_plan(directory).histogram.max_sequence_length
  return np.bincount(_shard_lengths(path, size) - 1, minlength=size)


def _counts_path(directory: str, number: int) -> pathlib.Path:
  return pathlib.Path(directory) / f"counts-{number:05d}.npy"


def _save_counts(item: tuple[int, str], directory: str, errors: Errors):
  with errors.recorded(f"counts-{item[0]:05d}"):
    np.save(_counts_path(directory, item[0]), count_lengths(item[1], directory))


def _place_or_record(item: tuple[str, np.ndarray], directory: str, seed: int, errors):
  with errors.recorded(pathlib.Path(item[0]).stem):
    yield from place_shard(item, directory, seed)


def _write_or_record(item, directory: str, errors: Errors):
  with errors.recorded(f"packs-{item[0]:05d}"):
    write_packs(item, directory)


def place_shard(item: tuple[str, np.ndarray], directory: str, seed: int) -> Iterator:
  """Packs, slots and numbers of a shard's sequences, by the file that they go to."""
  path, before = item
  plan = _load_plan(directory)
  lengths = _shard_lengths(path, plan.histogram.max_sequence_length)
  packs, slots = ranks.place(plan, lengths, before, seed=seed)
  ids = int(before.sum()) + np.arange(lengths.size)
  files = packs // PACKS_A_FILE
  for number in np.unique(files).tolist():
    here = files == number
    yield number, (packs[here], slots[here], ids[here])


def write_packs(item, directory: str):
  """Writes one file of packs, from the parts that each shard has in it."""
  number, parts = item
  packs, slots, ids = map(np.concatenate, zip(*parts, strict=True))
  order = np.lexsort((slots, packs))
  depths = np.bincount(packs - number * PACKS_A_FILE)
  offsets = pa.array(np.concatenate([[0], np.cumsum(depths)]), pa.int32())
  column = pa.ListArray.from_arrays(offsets, pa.array(ids[order]))
  path = pathlib.Path(directory) / f"packs-{number:05d}.arrow"
  with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
    writer.write_batch(pa.RecordBatch.from_arrays([column], schema=_SCHEMA))


def _load_plan(directory: str | pathlib.Path) -> packing.Plan:
  return packing.load_plan(pathlib.Path(directory) / _PLAN)
