"""From a run's config to its data."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ml_collections
import numpy as np
from absl import flags
from ml_collections import config_flags

import packing
from packing import InputError
from packing.errors import check_integer, short_repr
from packing.files import read_json
from pipeline.batches import atoms
from pipeline.batches.atom_loader import AtomLoader
from pipeline.batches.loader import BatchIterator, PackedLoader, RowLoader
from pipeline.batches.masking import Masking
from pipeline.batches.online import OnlineBatches, Reader, ShuffledSequences
from pipeline.batches.packed import PackedBatch
from pipeline.batches.plans import ONLINE, held_out_stores, make_plan
from pipeline.batches.streamed import StreamedSequences
from pipeline.batches.windows import WindowLoader
from pipeline.dataset import MANIFEST, PreparedDataset, open_dataset
from pipeline.preparation.prepare import prepare
from pipeline.settings import DatasetSettings
from pipeline.sources.streams import check_stream
from pipeline.store import SequenceStore
from pipeline.tasks.table import find_task, is_masked, score

PREPARED = "prepared"  # the data.source of a run that uses data.directory as it is
# Fields of `data` that say how a run uses a dataset, not how the dataset is made.
_OF_THE_RUN = (
  *("directory", "mask_rate", "layout", "atom_size", "loss_on_padding", "stream"),
)


def read_config(path: str, overrides: Sequence[str] = ()) -> ml_collections.ConfigDict:
  """Reads a config file as train.py does.

  Args:
    path: the file.
    overrides: such as "--config.train.steps=100".

  Raises:
    InputError: the file cannot be read, or an override fits no field.
  """
  if not pathlib.Path(path.split(":", 1)[0]).is_file():
    raise InputError(
      f"There is no config file {path!r}. Give one, such as configs/quickstart.py."
    )
  values, arguments = flags.FlagValues(), ["config", f"--config={path}", *overrides]
  try:
    config = config_flags.DEFINE_config_file(
      "config", lock_config=True, flag_values=values, sys_argv=arguments
    )
    values(arguments)
    config.value["data"]  # fails only now if the file is missing
  except Exception as error:  # a config file may fail in any way
    message = str(error.args[0] if isinstance(error, KeyError) else error)
    raise InputError(
      f"{path} cannot be used as --config: {' '.join(message.split())}"
    ) from error
  return config.value


def prepare_dataset(config: ml_collections.ConfigDict) -> PreparedDataset:
  """Prepares the dataset of a config, or opens it if it is prepared already.

  Raises:
    InputError: the source cannot be used, nothing is held out, or the directory holds a
      dataset that does not fit the config.
  """
  data = config.data
  settings = check_data(data)
  if data.source != PREPARED:
    return prepare(data.directory, settings)
  dataset = open_dataset(data.directory)
  check_prepared(data, dataset.manifest["settings"])
  return dataset


def check_data(data: Mapping) -> DatasetSettings:
  """Checks the config's `data` before any work; the dataset need not be there.

  Returns:
    The settings of the dataset, if the run prepares it.

  Raises:
    InputError: a value cannot be used.
  """
  if data["stream"]:
    check_stream(data["stream"])
  settings = _settings({k: v for k, v in data.items() if k not in _OF_THE_RUN})
  if data["source"] != PREPARED:
    if not (data["held_out_fraction"] or data["held_out_source"]):
      raise InputError(
        "config.data.held_out_fraction is 0 and config.data.held_out_source is empty; "
        "expected one of them, because a run is evaluated on held-out documents."
      )
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
  settings = dataclasses.asdict(_settings(settings))
  directory = data["directory"]
  for name in ("task", "max_sequence_length", *(["labels"] if data["labels"] else [])):
    if settings[name] != data[name]:
      raise InputError(
        f"{directory} was prepared with {name} {settings[name]!r}; expected "
        f"{data[name]!r}. Name another --config.data.directory, or change the config."
      )
  if not (settings["held_out_fraction"] or settings["held_out_source"]):
    raise InputError(
      f"{directory} was prepared without held-out documents, which a run needs for its "
      "evaluation. Prepare it in another folder, with held_out_fraction or "
      "held_out_source."
    )


def settings_of(data: Mapping) -> DatasetSettings:
  """The dataset settings of a config; those in the manifest for source "prepared".

  Args:
    data: the config's `data`.

  Raises:
    InputError: a value cannot be used, or the manifest is missing or damaged.
  """
  if data["source"] == PREPARED:
    path = pathlib.Path(data["directory"]) / MANIFEST
    what = "the dataset's manifest, the only record of how it was made; restore it"
    return _settings(read_json(path, what=what).get("settings", {}))
  return _settings({k: v for k, v in data.items() if k not in _OF_THE_RUN})


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


class HeldOut(NamedTuple):
  """Held-out sequences as batches, and how to score a model's outputs for them.

  Attributes:
    batches: returns this process's batches. Over all processes, each sequence occurs once.
    num_batches: how many there are.
    score: takes the head's output for each sequence, as `tasks.table.score` does. None for
      tasks with masked tokens, and for text, whose batches hold windows; see
      `WindowLoader`.
    prefix: put before the name of each score.
  """

  batches: Callable[[], Iterator[PackedBatch]]
  num_batches: int
  score: Callable[[Sequence[np.ndarray]], dict[str, float]] | None
  prefix: str


def make_held_out(
  config: ml_collections.ConfigDict,
  dataset: PreparedDataset,
  *,
  plans: Mapping[str, packing.Plan] | None = None,
  process_index: int = 0,
  process_count: int = 1,
) -> list[HeldOut]:
  """The held-out sets that a run is evaluated on.

  Args:
    config: of the run.
    dataset: its dataset.
    plans: from `read_plans`; missing plans are made.
    process_index, process_count: this process's number and how many there are.

  Raises:
    InputError: nothing was held out.
  """
  task, sets = config.data.task, []
  for name, store in held_out_stores(dataset).items():
    loader: RowLoader
    if task == "text":  # scored in one way, whatever the layout of training
      loader = WindowLoader(
        store, row_length=config.data.max_sequence_length, batch_size=_batch_size(config)
      )
    else:
      plan = (plans or {}).get(name)
      loader = make_loader(config, store, dataset.vocabulary, plan=plan)
    loader = loader.for_process(process_index, process_count)
    has_score = task != "text" and not is_masked(task)
    sets.append(
      HeldOut(
        loader.evaluation_batches,
        loader.num_evaluation_batches,
        functools.partial(score, task, store) if has_score else None,
        prefix="" if name == "held_out" else f"{name}_",
      )
    )
  return sets


def make_loader(
  config: ml_collections.ConfigDict,
  store: SequenceStore,
  vocabulary: list[str],
  *,
  plan: packing.Plan | None = None,
  batch_size: int | None = None,
  devices: int = 1,
  process_index: int = 0,
  process_count: int = 1,
) -> RowLoader:
  """The batches of a store in the config's layout, masked if the task masks tokens.

  Args:
    config: of the run.
    store: the sequences.
    vocabulary: tokens in the order of their ids.
    plan: from `make_plan`; made if not given.
    batch_size: rows of a batch; by default, as many as the config computes at once.
    devices: how many share a batch, over all processes; for `packing.balance`.
    process_index, process_count: this process's number and how many there are, such as
      jax.process_index() and jax.process_count().

  Raises:
    InputError: a value of the config cannot be used.
  """
  seed = check_integer("config.seed", config.seed, at_least=0, at_most=2**32 - 1)
  if batch_size is None:
    batch_size = _batch_size(config)
  loader: RowLoader
  if config.data.layout in atoms.LAYOUTS:
    loader = AtomLoader(
      store,
      layout=config.data.layout,
      row_length=config.data.max_sequence_length,
      atom_size=config.data.atom_size,
      batch_size=batch_size,
      seed=seed,
      loss_on_padding=config.data.loss_on_padding,
    )
  else:
    loader = PackedLoader(
      store,
      make_plan(config, store) if plan is None else plan,
      batch_size=batch_size,
      masking=_masking(config, vocabulary),
      seed=seed,
      balance=config.packing.balance,
      devices=devices,
    )
  return loader.for_process(process_index, process_count)


def make_batches(
  config: ml_collections.ConfigDict,
  dataset: PreparedDataset,
  *,
  plan: packing.Plan,
  batch_size: int,
  devices: int,
  process_index: int,
  process_count: int,
) -> BatchIterator | OnlineBatches:
  """The batches of a run, endless unless a stream ends; see `make_loader`.

  Raises:
    InputError: there is no such stream, or several processes read one.
  """
  processes: dict[str, Any] = {
    "process_index": process_index,
    "process_count": process_count,
  }
  if config.packing.algorithm != ONLINE:
    loader = make_loader(
      config,
      dataset.train,
      dataset.vocabulary,
      plan=plan,
      batch_size=batch_size,
      devices=devices,
      **processes,
    )
    return loader.iterate()
  reader: Reader = ShuffledSequences(dataset.train, seed=config.seed)
  if config.data.stream:
    if process_count > 1:
      raise InputError(
        f"config.data.stream is {short_repr(config.data.stream)} with {process_count} "
        "processes; expected one process, which feeds all devices of its machine."
      )
    reader = StreamedSequences(
      config.data.stream, settings_of(config.data), dataset.tokenizer
    )
  return OnlineBatches(
    reader,
    plan,
    batch_size=batch_size,
    masking=_masking(config, dataset.vocabulary),
    **processes,
  )


def _masking(config: ml_collections.ConfigDict, vocabulary: list[str]) -> Masking | None:
  if not is_masked(config.data.task):
    return None
  return Masking.for_vocabulary(vocabulary, rate=config.data.mask_rate, seed=config.seed)


def make_audit_loader(
  config: ml_collections.ConfigDict,
  dataset: PreparedDataset,
  *,
  split: str,
  process_count: int,
) -> PackedLoader:
  """A loader to audit, of the split "train" or "held_out".

  The dataset decides the task, and so whether tokens are masked.

  Raises:
    InputError: config and dataset differ in length, or the config packs online or by
      atoms.
  """
  settings = dataset.manifest["settings"]
  longest = settings["max_sequence_length"]
  if config.data.max_sequence_length != longest:
    raise InputError(
      f"{dataset.directory} was prepared with max_sequence_length={longest}; the config "
      f"has {config.data.max_sequence_length}. Name the config it was prepared for, or "
      f"pass --config.data.max_sequence_length={longest}."
    )
  if config.packing.algorithm == ONLINE:
    raise InputError(
      "packing.algorithm is 'online'; expected another: packs made while reading follow no "
      "plan to audit. tests/pipeline/batches/test_online.py checks that each sequence "
      "occurs once."
    )
  if config.data.layout != "packed":
    raise InputError(
      f"data.layout is {config.data.layout!r}; expected 'packed'. Rows of atoms hold parts "
      "of documents, which the audit does not cover. tests/pipeline/batches/test_atoms.py "
      "checks that each token is used once an epoch."
    )
  config.data.task = settings["task"]
  loader = make_loader(
    config,
    getattr(dataset, split),
    dataset.vocabulary,
    devices=process_count,
    process_count=process_count,
  )
  assert isinstance(loader, PackedLoader)
  return loader


def _batch_size(config: ml_collections.ConfigDict) -> int:
  """Rows that a run computes at once."""
  return config.train.micro_batch_size or config.train.batch_size
