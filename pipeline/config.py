"""From a run's config to its data."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import ml_collections
import numpy as np

import packing
from packing import InputError
from packing.errors import check_integer, short_repr
from packing.files import read_json
from pipeline.batches import atoms
from pipeline.batches.atom_loader import AtomLoader
from pipeline.batches.loader import PackedLoader, RowLoader
from pipeline.batches.packed import Masking, PackedBatch
from pipeline.batches.plans import held_out_stores, make_plan
from pipeline.batches.windows import WindowLoader
from pipeline.dataset import MANIFEST, PreparedDataset, open_dataset
from pipeline.preparation.prepare import prepare
from pipeline.settings import DatasetSettings
from pipeline.store import SequenceStore
from pipeline.tasks.table import is_masked, score

PREPARED = "prepared"  # the source that stands for what the directory holds already
# Of `data`, what is done with a dataset, not what it is.
_OF_THE_RUN = ("directory", "mask_rate", "layout", "atom_size", "loss_on_padding")
_FLAG = re.compile(r"(?<!\S)--([a-z]+(?:-[a-z]+)*)")  # of python -m pipeline prepare


def prepare_dataset(config: ml_collections.ConfigDict) -> PreparedDataset:
  """Prepares the dataset of a config, or opens it where that is done already.

  Raises:
    InputError: the source cannot be used, or nothing of it is held out; or the directory
      holds a dataset with other settings, or, with source "prepared", none that fits the
      config.
  """
  data = config.data
  settings = _settings({k: v for k, v in data.items() if k not in _OF_THE_RUN})
  if data.source != PREPARED:
    if not (data.held_out_fraction or data.held_out_source):
      raise InputError(
        "config.data.held_out_fraction is 0 and config.data.held_out_source is empty; "
        "expected one of them, for a run is evaluated on what is held out."
      )
    try:
      return prepare(data.directory, settings)
    except InputError as error:
      raise InputError(in_terms_of_config(str(error), data)) from error
  dataset = open_dataset(data.directory)
  check_prepared(data, dataset.manifest["settings"])
  return dataset


def check_prepared(data: Mapping, found: Mapping):
  """Checks that a run of a config can use a dataset that was prepared before.

  Args:
    data: the config's `data`.
    found: the settings in the manifest of the dataset.

  Raises:
    InputError: it has another task, length or labels, or nothing was held out.
  """
  directory = data["directory"]
  for name in ("task", "max_sequence_length", *(["labels"] if data["labels"] else [])):
    if found[name] != data[name]:
      raise InputError(
        f"{directory} was prepared with {name} {found[name]!r}; expected {data[name]!r}. "
        "Name another --config.data.directory, or change the config."
      )
  if not (found["held_out_fraction"] or found["held_out_source"]):
    raise InputError(
      f"{directory} was prepared without held-out documents, on which a run is evaluated. "
      "Prepare it in another folder, with --held-out-fraction or --held-out-source."
    )


def in_terms_of_config(message: str, data: Mapping) -> str:
  """Flags of `python -m pipeline prepare` as train.py calls them.

  Example:
    >>> in_terms_of_config("Give it with --vocab-file.", {"vocab_file": ""})
    'Give it with --config.data.vocab_file.'
  """

  def field(flag: re.Match) -> str:
    name = flag[1].replace("-", "_")
    return f"--config.data.{name}" if name in data else flag[0]

  return _FLAG.sub(field, message)


def settings_of(data: Mapping) -> DatasetSettings:
  """Of the dataset of a config: what its manifest says, where it was prepared before.

  Args:
    data: the config's `data`.

  Raises:
    InputError: a value that cannot be used, fields of another version, or the manifest is
      needed and not there.
  """
  if data["source"] == PREPARED:
    path = pathlib.Path(data["directory"]) / MANIFEST
    what = "the manifest of the dataset, which alone says how it was made; restore it"
    return _settings(read_json(path, what=what).get("settings", {}))
  return _settings({k: v for k, v in data.items() if k not in _OF_THE_RUN})


def _settings(fields: Mapping) -> DatasetSettings:
  known = [field.name for field in dataclasses.fields(DatasetSettings)]
  for name in fields:
    if name not in known:
      raise InputError(
        f"The dataset has the setting {short_repr(name)}; expected some of "
        f"{', '.join(known)}. "
        "It is of another version; use that one."
      )
  return DatasetSettings(**fields)


class HeldOut(NamedTuple):
  """Held-out sequences as batches, and how to judge what a model says of them.

  Attributes:
    batches: gives this host's batches, with each sequence once over all hosts.
    num_batches: how many.
    score: of the head's output for each sequence, see `tasks.Task`; None for masked tokens,
      and for text, of which each batch holds windows; see `windows.WindowLoader`.
    prefix: of the names of its figures.
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
  """What a run of a config is evaluated on.

  Args:
    config: of the run.
    dataset: its dataset.
    plans: from `read_plans`; one that is not among them is made.
    process_index, process_count: this process's number and how many there are.

  Raises:
    InputError: nothing was held out.
  """
  found = []
  for name, store in held_out_stores(dataset).items():
    prefix = "" if name == "held_out" else f"{name}_"
    if config.data.task == "text":  # in one way, whatever the layout of training
      windows = WindowLoader(
        store,
        row_length=config.data.max_sequence_length,
        batch_size=config.train.micro_batch_size or config.train.batch_size,
        process_index=process_index,
        process_count=process_count,
      )
      found.append(HeldOut(windows.batches, windows.num_batches, None, prefix))
      continue
    masked = is_masked(config.data.task)
    loader = make_loader(
      config,
      store,
      dataset.vocabulary,
      plan=(plans or {}).get(name),
      masked=masked,
      process_index=process_index,
      process_count=process_count,
    )
    judge = None if masked else functools.partial(score, config.data.task, store)
    batches = loader.num_evaluation_batches
    found.append(HeldOut(loader.evaluation_batches, batches, judge, prefix))
  return found


def make_loader(
  config: ml_collections.ConfigDict,
  store: SequenceStore,
  vocabulary: list[str],
  *,
  plan: packing.Plan | None = None,
  batch_size: int | None = None,
  masked: bool = True,
  process_index: int = 0,
  process_count: int = 1,
) -> RowLoader:
  """The batches of a store, packed or of the layout that the config says.

  Args:
    config: of the run.
    store: the sequences.
    vocabulary: tokens in the order of their ids.
    plan: from `make_plan`; made if not given.
    batch_size: rows of a batch; if not given, as many as the config computes at once.
    masked: whether tokens are hidden, as for pretraining; of text they never are.
    process_index, process_count: this process's number and how many there are, such as
      jax.process_index() and jax.process_count().

  Raises:
    InputError: a value of the config that cannot be used.
  """
  seed = check_integer("config.seed", config.seed, at_least=0, at_most=2**32 - 1)
  rate = config.data.mask_rate
  if not 0 < rate < 1:
    raise InputError(f"config.data.mask_rate is {rate}; expected a fraction in (0, 1).")
  if batch_size is None:
    batch_size = config.train.micro_batch_size or config.train.batch_size
  if config.data.layout in atoms.LAYOUTS:
    return AtomLoader(
      store,
      layout=config.data.layout,
      row_length=config.data.max_sequence_length,
      atom_size=config.data.atom_size,
      batch_size=batch_size,
      seed=seed,
      loss_on_padding=config.data.loss_on_padding,
      process_index=process_index,
      process_count=process_count,
      workers=config.train.loader_workers,
    )
  if plan is None:
    plan = make_plan(config, store)
  masked = masked and config.data.task != "text"
  masking = Masking.for_vocabulary(vocabulary, rate=rate, seed=seed) if masked else None
  return PackedLoader(
    store,
    plan,
    batch_size=batch_size,
    masking=masking,
    seed=seed,
    assignment=config.packing.assignment,
    process_index=process_index,
    process_count=process_count,
    workers=config.train.loader_workers,
  )
