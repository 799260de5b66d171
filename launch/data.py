"""From the settings of a run to its data."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import jax

import packing
from launch.parts import PREPARED, AtomRows, Data, PackedRows, PaddedAtomRows
from launch.plans import held_out_plan, held_out_stores, make_plan
from launch.settings import RunSettings
from packing import InputError
from packing.errors import check
from packing.files import read_json
from pipeline.batches.atom_loader import AtomLoader
from pipeline.batches.loader import PackedLoader, RowLoader
from pipeline.batches.masking import Masking
from pipeline.batches.online import OnlineBatches, Reader, ShuffledSequences
from pipeline.batches.streamed import StreamedSequences
from pipeline.batches.windows import WindowLoader
from pipeline.dataset import MANIFEST, PreparedDataset, open_dataset
from pipeline.preparation.prepare import prepare
from pipeline.settings import DatasetSettings
from pipeline.sources.streams import check_stream
from pipeline.store import SequenceStore
from pipeline.tasks.registry import find_task, is_masked, score
from training import processes
from training.evaluation import HeldOut


def prepare_dataset(data: Data) -> PreparedDataset:
  """Prepares the dataset of a run, or opens it if it is prepared already.

  Raises:
    InputError: the source cannot be used, nothing is held out, or the directory holds a
      dataset that does not fit the run.
  """
  check_data(data)
  if data.source != PREPARED:
    return prepare(data.directory, data.dataset)
  dataset = open_dataset(data.directory)
  check_prepared(data, dataset.manifest["settings"])
  return dataset


def check_data(data: Data):
  """Checks where the data of a run come from, before any work.

  Raises:
    InputError: there is no such stream, nothing is held out, or the task cannot be made.
  """
  if data.stream:
    check_stream(data.stream)
  if data.source != PREPARED:
    fraction = data.held_out_fraction
    expected = "a fraction to evaluate on, or a config.data.held_out_source"
    is_held_out = bool(fraction or data.held_out_source)
    check(is_held_out, "config.data.held_out_fraction", fraction, expected)
    find_task(data.dataset)


def check_prepared(data: Data, settings: Mapping):
  """Checks that a run can use a dataset that was prepared before.

  Args:
    data: of the run.
    settings: the settings in the dataset's manifest.

  Raises:
    InputError: the task or the length differ, or a field that the run sets; nothing was
      held out, or the manifest is damaged.
  """
  there, directory = _settings(settings), data.directory
  set_by_run = [x for x in ("labels", "cross_documents") if getattr(data, x)]
  for name in ("task", "max_sequence_length", *set_by_run):
    found, ours = getattr(there, name), getattr(data, name)
    expected = f"{ours!r}, as in the config, or another --config.data.directory"
    check(found == ours, f"The {name} of {directory}", found, expected)
  if not (there.held_out_fraction or there.held_out_source):
    raise InputError(
      f"{directory} was prepared without held-out documents, on which a run is evaluated. "
      "Prepare it in another folder, with held_out_fraction or held_out_source."
    )


def dataset_settings(data: Data) -> DatasetSettings:
  """The settings of a run's dataset; those in its manifest for the source "prepared".

  Raises:
    InputError: the manifest is missing or damaged.
  """
  if data.source != PREPARED:
    return data.dataset
  path = pathlib.Path(data.directory) / MANIFEST
  what = "the dataset's manifest, the only record of how it was made; restore it"
  return _settings(read_json(path, what=what).get("settings", {}))


def _settings(fields: Mapping) -> DatasetSettings:
  try:
    return DatasetSettings(**fields)
  except InputError:
    raise
  except (TypeError, ValueError, AttributeError) as error:
    raise InputError(
      f"The settings of the dataset are damaged ({error}). Restore its manifest, or "
      "prepare the dataset again."
    ) from error


def make_held_out(
  run: RunSettings, dataset: PreparedDataset, *, pooling: str = ""
) -> list[HeldOut]:
  """The held-out sets that a run is evaluated on; of their rows, this process's.

  Args:
    run: its settings.
    dataset: its dataset.
    pooling: of the vectors of pairs.

  Raises:
    InputError: nothing was held out.
    Stopped: this process packs them in another way than process 0.
  """
  task, sets = run.data.task, []
  options: dict[str, Any] = {}
  if pooling:
    options["temperature"] = run.pair_loss(pooling).temperature
  if task == "tagging":
    options["labels"] = dataset.labels
  for name, store in held_out_stores(dataset).items():
    loader: RowLoader
    if task == "text":  # scored in one way, whatever the layout of training
      loader = WindowLoader(
        store, row_length=run.data.max_sequence_length, batch_size=run.train.rows_at_once
      )
    else:
      plan = held_out_plan(run.rows, store, seed=run.seed)
      loader = make_loader(run, store, dataset.vocabulary, plan=plan)
    loader = loader.for_process(jax.process_index(), jax.process_count())
    has_score = task != "text" and not is_masked(task)
    sets.append(
      HeldOut(
        loader.evaluation_batches,
        loader.num_evaluation_batches,
        functools.partial(score, task, store, **options) if has_score else None,
        prefix="" if name == "held_out" else f"{name}_",
        pooling=pooling,
      )
    )
  return sets


def make_loader(
  run: RunSettings,
  store: SequenceStore,
  vocabulary: list[str],
  *,
  plan: packing.Plan | None = None,
  batch_size: int | None = None,
  devices: int = 1,
  task: str | None = None,
) -> RowLoader:
  """The batches of a store as rows of the run, masked if the task masks tokens.

  Args:
    run: its settings.
    store: the sequences.
    vocabulary: tokens in the order of their ids.
    plan: from `make_plan`; made if not given.
    batch_size: rows of a batch; by default, as many as the run computes at once.
    devices: how many share a batch, over all processes; for `PackedRows.balance`.
    task: of the dataset, which decides whether tokens are masked; by default, the run's.
  """
  rows, batch_size = run.rows, batch_size or run.train.rows_at_once
  if isinstance(rows, AtomRows):
    return AtomLoader(
      store,
      layout=rows.layout,
      row_length=rows.max_sequence_length,
      atom_size=rows.atom_size,
      batch_size=batch_size,
      seed=run.seed,
      loss_on_padding=isinstance(rows, PaddedAtomRows) and rows.loss_on_padding,
    )
  return PackedLoader(
    store,
    make_plan(rows, store, seed=run.seed) if plan is None else plan,
    batch_size=batch_size,
    masking=_masking(run, vocabulary, task),
    seed=run.seed,
    balance=rows.balance if isinstance(rows, PackedRows) else "none",
    devices=devices,
  )


def read_batches(
  run: RunSettings, dataset: PreparedDataset, plan: packing.Plan, *, batch_size: int
) -> OnlineBatches:
  """Batches that are packed while sequences are read; endless unless a stream ends.

  Each process reads and packs its own part. All end after the same batch.

  Args:
    run: its settings.
    dataset: its dataset; with `data.stream`, its vocabulary.
    plan: of the first epoch, or of a sample of the stream.
    batch_size: rows of a batch, over all processes; the batches have this process's part.

  Raises:
    InputError: there is no such stream.
  """
  count = jax.process_count()
  reader: Reader = ShuffledSequences(dataset.train, seed=run.seed)
  if stream := run.data.stream:
    reader = StreamedSequences(stream, dataset_settings(run.data), dataset.tokenizer)
  return OnlineBatches(
    reader,
    plan,
    batch_size=batch_size,
    masking=_masking(run, dataset.vocabulary),
    process_index=jax.process_index(),
    process_count=count,
    agree=processes.Agreement(),
  )


def shared_out(stream: str, shards: int | None, *, parts: int, count: int) -> str:
  """How several processes share a stream, in a sentence or two.

  Args:
    stream: its name.
    shards: how many it has; None if it does not say.
    parts: in which it is read, a multiple of `count`.
    count: of the processes.

  Example:
    >>> print(shared_out("hf:news", 8, parts=4, count=4).partition(". ")[0])
    Each of 4 processes reads 2 of the 8 shards of hf:news
  """
  ends = "The run ends when the first process has none left."
  if not shards or shards < parts:
    found = f"{shards or 'no'} shard{'' if shards == 1 else 's'}"
    return (
      f"{stream} has {found}, so each of {count} processes reads all documents and uses "
      f"one of every {count}. With {parts} shards or more, each would read only its own. "
      f"{ends}"
    )
  of_parts = [len(range(part, shards, parts)) for part in range(parts)]
  each = parts // count
  own = sorted({sum(of_parts[first : first + each]) for first in range(0, parts, each)})
  number = " or ".join(map(str, own))
  return (
    f"Each of {count} processes reads {number} of the {shards} shards of {stream}. {ends}"
  )


def _masking(
  run: RunSettings, vocabulary: list[str], task: str | None = None
) -> Masking | None:
  if not is_masked(task or run.data.task):
    return None
  return Masking.for_vocabulary(vocabulary, rate=run.data.mask_rate, seed=run.seed)


def make_audit_loader(
  run: RunSettings, dataset: PreparedDataset, *, process_count: int
) -> PackedLoader:
  """A loader to audit, of the sequences to train on.

  The dataset decides the task, and so whether tokens are masked.

  Raises:
    InputError: run and dataset differ in length, or the run packs online or by atoms.
  """
  settings = dataset.manifest["settings"]
  length, longest = run.data.max_sequence_length, settings["max_sequence_length"]
  expected = f"{longest}, as in {dataset.directory}"
  check(length == longest, "config.data.max_sequence_length", length, expected)
  expected = "packed, since the audit does not cover rows with parts of documents"
  layout, is_planned = run.rows.layout, isinstance(run.rows, PackedRows)
  check(not isinstance(run.rows, AtomRows), "config.data.layout", layout, expected)
  expected = "another, since packs made while reading follow no plan to audit"
  check(is_planned, "config.packing.algorithm", "online", expected)
  loader = make_loader(
    run,
    dataset.train,
    dataset.vocabulary,
    devices=process_count,
    task=settings["task"],
  )
  assert isinstance(loader, PackedLoader)
  return loader.for_process(0, process_count)
