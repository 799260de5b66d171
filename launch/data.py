"""From a run's config to its data."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

import packing
from launch.plans import held_out_plan, held_out_stores, make_plan
from packing import InputError
from packing.errors import check, check_integer
from packing.files import read_json
from pipeline.batches import atoms
from pipeline.batches.atom_loader import AtomLoader
from pipeline.batches.loader import PackedLoader, RowLoader
from pipeline.batches.masking import Masking
from pipeline.batches.online import OnlineBatches, Reader, ShuffledSequences
from pipeline.batches.plans import ONLINE
from pipeline.batches.streamed import StreamedSequences
from pipeline.batches.windows import WindowLoader
from pipeline.dataset import MANIFEST, PreparedDataset, open_dataset
from pipeline.preparation.prepare import prepare
from pipeline.settings import DatasetSettings
from pipeline.sources.streams import check_stream
from pipeline.store import SequenceStore
from pipeline.tasks.registry import find_task, is_masked, score
from training.errors import ConfigError
from training.evaluation import HeldOut

PREPARED = "prepared"  # the data.source of a run that uses data.directory as it is


def prepare_dataset(config: ConfigDict) -> PreparedDataset:
  """Prepares the dataset of a config, or opens it if it is prepared already.

  Raises:
    InputError: the source cannot be used, nothing is held out, the directory holds a
      dataset that does not fit the config, or labels are none of the next-sentence head.
  """
  data = config.data
  settings = check_data(data)
  if data.source != PREPARED:
    dataset = prepare(data.directory, settings)
  else:
    dataset = open_dataset(data.directory)
    check_prepared(data, dataset.manifest["settings"])
  if data.task == "tokens" and config.model.next_sentence:
    _check_next_sentence(dataset)
  return dataset


def _check_next_sentence(dataset: PreparedDataset):
  """Checks that the label of each sequence, which its source gives, is 0 or 1."""
  for store in (dataset.train, dataset.held_out):
    labels = store.sequence_labels
    if (wrong := np.flatnonzero((labels < 0) | (labels > 1))).size:
      first = int(wrong[0])
      raise InputError(
        f"{dataset.directory}: sequence {first} has the label {labels[first]}; expected 0 "
        "or 1, whether its second sentence is random. If labels mean something else, set "
        "--config.model.next_sentence=False."
      )


def check_data(data: Mapping) -> DatasetSettings:
  """Checks the config's `data` before any work; the dataset need not be there.

  Returns:
    The settings of the dataset, if the run prepares it.

  Raises:
    InputError: a value cannot be used.
  """
  if data["stream"]:
    check_stream(data["stream"])
  settings = config_settings(data)
  if data["source"] != PREPARED:
    fraction, held_out = data["held_out_fraction"], data["held_out_source"]
    expected = "a fraction to evaluate on, or a config.data.held_out_source"
    check(bool(fraction or held_out), "config.data.held_out_fraction", fraction, expected)
    find_task(settings)
  return settings


def check_prepared(data: Mapping, settings: Mapping):
  """Checks that a config can use a dataset that was prepared before.

  Args:
    data: the config's `data`.
    settings: the settings in the dataset's manifest.

  Raises:
    InputError: the task, length or labels differ, nothing was held out, or the manifest is
      damaged.
  """
  there, directory = _settings(settings), data["directory"]
  for name in ("task", "max_sequence_length", *(["labels"] if data["labels"] else [])):
    found = getattr(there, name)
    expected = f"{data[name]!r}, as in the config, or another --config.data.directory"
    check(found == data[name], f"The {name} of {directory}", found, expected)
  if not (there.held_out_fraction or there.held_out_source):
    raise InputError(
      f"{directory} was prepared without held-out documents, on which a run is evaluated. "
      "Prepare it in another folder, with held_out_fraction or held_out_source."
    )


def settings_of(data: Mapping) -> DatasetSettings:
  """The dataset settings of a config; those in the manifest for source "prepared".

  Args:
    data: the config's `data`.

  Raises:
    InputError: a value cannot be used, or the manifest is missing or damaged.
  """
  if data["source"] != PREPARED:
    return config_settings(data)
  path = pathlib.Path(data["directory"]) / MANIFEST
  what = "the dataset's manifest, the only record of how it was made; restore it"
  return _settings(read_json(path, what=what).get("settings", {}))


def config_settings(data: Mapping) -> DatasetSettings:
  """The dataset settings that a config's `data` has.

  Raises:
    ConfigError: a value cannot be used.
  """
  names = {field.name for field in dataclasses.fields(DatasetSettings)}
  try:
    return DatasetSettings(**{k: v for k, v in data.items() if k in names})
  except InputError as error:
    raise ConfigError(f"config.data.{error}") from error


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
  config: ConfigDict, dataset: PreparedDataset, *, pooling: str = ""
) -> list[HeldOut]:
  """The held-out sets that a run is evaluated on; of their rows, this process's.

  Args:
    config: of the run.
    dataset: its dataset.
    pooling: of the vectors of pairs.

  Raises:
    InputError: nothing was held out.
    Stopped: this process packs them in another way than process 0.
  """
  task, sets = config.data.task, []
  options: dict[str, Any] = {"temperature": config.pairs.temperature} if pooling else {}
  if task == "tagging":
    options["labels"] = dataset.labels
  for name, store in held_out_stores(dataset).items():
    loader: RowLoader
    if task == "text":  # scored in one way, whatever the layout of training
      loader = WindowLoader(
        store, row_length=config.data.max_sequence_length, batch_size=_batch_size(config)
      )
    else:
      plan = held_out_plan(config, store)
      loader = make_loader(config, store, dataset.vocabulary, plan=plan)
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
  config: ConfigDict,
  store: SequenceStore,
  vocabulary: list[str],
  *,
  plan: packing.Plan | None = None,
  batch_size: int | None = None,
  devices: int = 1,
) -> RowLoader:
  """The batches of a store in the config's layout, masked if the task masks tokens.

  Args:
    config: of the run.
    store: the sequences.
    vocabulary: tokens in the order of their ids.
    plan: from `make_plan`; made if not given.
    batch_size: rows of a batch; by default, as many as the config computes at once.
    devices: how many share a batch, over all processes; for `packing.balance`.

  Raises:
    InputError: a value of the config cannot be used.
  """
  seed = check_integer("config.seed", config.seed, at_least=0, at_most=2**32 - 1)
  batch_size = batch_size or _batch_size(config)
  if config.data.layout in atoms.LAYOUTS:
    return AtomLoader(
      store,
      layout=config.data.layout,
      row_length=config.data.max_sequence_length,
      atom_size=config.data.atom_size,
      batch_size=batch_size,
      seed=seed,
      loss_on_padding=config.data.loss_on_padding,
    )
  return PackedLoader(
    store,
    make_plan(config, store) if plan is None else plan,
    batch_size=batch_size,
    masking=_masking(config, vocabulary),
    seed=seed,
    balance=config.packing.balance,
    devices=devices,
  )


def read_batches(
  config: ConfigDict, dataset: PreparedDataset, plan: packing.Plan, *, batch_size: int
) -> OnlineBatches:
  """Batches that are packed while sequences are read; endless unless a stream ends.

  Args:
    config: of the run.
    dataset: its dataset; with `data.stream`, its vocabulary.
    plan: of the first epoch, or of a sample of the stream.
    batch_size: rows of a batch, over all processes; these are of this process.

  Raises:
    InputError: there is no such stream, or several processes read one.
  """
  reader: Reader = ShuffledSequences(dataset.train, seed=config.seed)
  if stream := config.data.stream:
    expected = (
      f"a source that several processes can read: a stream is read by one, not "
      f"{jax.process_count()}. Start one process for all devices, or prepare the data"
    )
    check(jax.process_count() == 1, "config.data.stream", stream, expected)
    reader = StreamedSequences(stream, settings_of(config.data), dataset.tokenizer)
  return OnlineBatches(
    reader,
    plan,
    batch_size=batch_size,
    masking=_masking(config, dataset.vocabulary),
    process_index=jax.process_index(),
    process_count=jax.process_count(),
  )


def _masking(config: ConfigDict, vocabulary: list[str]) -> Masking | None:
  if not is_masked(config.data.task):
    return None
  return Masking.for_vocabulary(vocabulary, rate=config.data.mask_rate, seed=config.seed)


def make_audit_loader(
  config: ConfigDict, dataset: PreparedDataset, *, process_count: int
) -> PackedLoader:
  """A loader to audit, of the sequences to train on.

  The dataset decides the task, and so whether tokens are masked.

  Raises:
    InputError: config and dataset differ in length, or the config packs online or by
      atoms.
  """
  settings = dataset.manifest["settings"]
  length, longest = config.data.max_sequence_length, settings["max_sequence_length"]
  expected = f"{longest}, as in {dataset.directory}"
  check(length == longest, "config.data.max_sequence_length", length, expected)
  algorithm, layout = config.packing.algorithm, config.data.layout
  expected = "another, since packs made while reading follow no plan to audit"
  check(algorithm != ONLINE, "config.packing.algorithm", algorithm, expected)
  expected = "packed, since the audit does not cover rows with parts of documents"
  check(layout == "packed", "config.data.layout", layout, expected)
  config.data.task = settings["task"]
  loader = make_loader(config, dataset.train, dataset.vocabulary, devices=process_count)
  assert isinstance(loader, PackedLoader)
  return loader.for_process(0, process_count)


def _batch_size(config: ConfigDict) -> int:
  """Rows that a run computes at once."""
  return config.train.micro_batch_size or config.train.batch_size
