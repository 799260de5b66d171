"""A run: what its settings stand for, prepared before training, and where it resumes."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

import packing
from launch import computation, init_from, workdir
from launch.data import (
  make_held_out,
  make_loader,
  prepare_dataset,
  read_batches,
  shared_out,
)
from launch.parts import OnlineRows, Packs
from launch.plans import KEPT, kept_plan, row_lengths
from launch.recipe.adjustment import Recipe, resolve
from launch.recipe.table import table
from launch.record.flops import Cost, attended_pairs, peak_of, training_flops
from launch.record.version import code_version
from launch.settings import RunSettings
from launch.shares import count_shares, shares_line
from model import ModelConfig, weights
from model.hf.pooling import Pooling, write_pooling
from model.hf.tokenizer import gives_pair_types
from model.losses import PairLoss
from model.models import metric_of
from packing.files import write_text
from pipeline import OnlineBatches, PreparedDataset, RowLoader, StreamedSequences
from pipeline.batches.loader import BatchIterator
from pipeline.tokenizer import TOKENIZER_FILE
from training import processes
from training.errors import ConfigError, Stopped, Terminated
from training.evaluation import HeldOut
from training.mesh import make_mesh
from training.stopping import Verdict, judge, signals


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingRun:
  """All that training needs; made by `prepare_run`."""

  settings: RunSettings
  folder: pathlib.Path
  dataset: PreparedDataset
  plan: packing.Plan  # for the training sequences
  unpacked_recipe: Recipe
  recipe: Recipe
  mesh: Mesh
  shares: dict[str, Any] | None  # what each of several devices gets, by `count_shares`
  computation: computation.Computation
  stored: weights.StoredModel | None  # the weights to start from; None: at random
  pooling: Pooling | None  # of the vectors of pairs
  code: dict[str, str | None]  # from `code_version`

  @property
  def head(self) -> str:
    """What the model learns; a key of `model.MODELS`."""
    return self.settings.head

  @property
  def model(self) -> ModelConfig:
    """The model's config, with the names of a dtype and an implementation of attention."""
    return self.computation.config

  def loader(self, plan: packing.Plan) -> RowLoader:
    """A loader of a plan's batches; it makes this process's rows of them."""
    store, vocabulary = self.dataset.train, self.dataset.vocabulary
    rows, devices = self.recipe.rows, self.mesh.size
    loader = make_loader(
      self.settings, store, vocabulary, plan=plan, batch_size=rows, devices=devices
    )
    return loader.for_process(jax.process_index(), jax.process_count())

  def batches(self) -> BatchIterator | OnlineBatches:
    """This process's rows of each step."""
    if isinstance(self.settings.rows, OnlineRows):
      rows = self.recipe.rows
      return read_batches(self.settings, self.dataset, self.plan, batch_size=rows)
    return self.loader(self.plan).iterate()

  def say_how_read(self, batches: BatchIterator | OnlineBatches):
    """Prints how several processes share a stream; to be called once its place is set."""
    stream, count = self.settings.data.stream, jax.process_count()
    if stream and count > 1 and isinstance(batches, OnlineBatches):
      assert isinstance(batches.reader, StreamedSequences)
      shards, parts = batches.reader.num_shards, batches.num_parts
      processes.print_on_first(shared_out(stream, shards, parts=parts, count=count))

  def held_out(self) -> list[HeldOut]:
    """This process's part of what the run is evaluated on."""
    mode = self.pooling.mode if self.pooling else ""
    return make_held_out(self.settings, self.dataset, pooling=mode)

  def pair_loss(self) -> PairLoss:
    """The loss of a run of pairs; others do not use it."""
    return self.settings.pair_loss(self.pooling.mode if self.pooling else "mean")

  def cost(self) -> Cost:
    """What a step has to compute, and the devices' peak rate."""
    peak = peak_of(jax.devices(), dtype=self.model.dtype.name)
    rows, pairs = self.recipe.rows, None
    if isinstance(self.settings.rows, Packs):
      texts = self.dataset.train.texts
      lengths = texts.lengths.astype(np.int64) if texts else None
      pairs = attended_pairs(self.model, self.plan, rows=rows, texts=lengths)
    flops = training_flops(
      self.model,
      rows=rows,
      row_length=self.plan.row_length,
      mlm_slots=self.loader(self.plan).max_masked,
      max_sequences=self.plan.packing_depth,
      head=self.head,
      pairs=pairs,
    )
    return Cost(rows, rows * self.plan.row_length, flops, peak)

  def initial_params(self) -> weights.Params | None:
    """The parameters that the config starts from; None: at random."""
    if self.stored is None:
      return None
    return init_from.initial_params(
      self.stored,
      self.model,
      head=self.head,
      labels=self.dataset.labels,
      seed=self.settings.seed,
    )

  def verdict(self, evaluations: list[dict]) -> Verdict:
    """That of process 0, so that all processes save and stop at the same step."""
    verdict = functools.partial(
      judge,
      evaluations,
      metric=metric_of(self.head),
      target=self.settings.train.target_mlm_accuracy,
      patience=self.settings.train.patience,
    )
    return Verdict(*processes.on_first(verdict))

  def resume(self, batches: BatchIterator | OnlineBatches, step: int, position: dict):
    """Sets the batches to their position at a checkpoint.

    Raises:
      ConfigError: the run's rows, steps or plan do not fit the checkpoint.
    """
    rows, steps = self.recipe.rows, self.recipe.steps
    if position["batch_size"] != rows:
      raise ConfigError(
        f"The config comes to {rows} rows a step; the run has {position['batch_size']}. "
        "Keep its batch size, packing and number of devices, or start a new run from its "
        f"weights: --config.model.init_from={self.folder} with another --workdir."
      )
    if step > steps:
      field = "duration" if self.settings.train.duration else "steps"
      raise ConfigError(
        f"The run is at step {step}; its recipe comes to {steps} steps. Raise "
        f"--config.train.{field}, or give another --workdir."
      )
    try:
      batches.set_state(position)
    except packing.InputError as error:
      source = self.settings.data.stream or self.folder / KEPT
      raise ConfigError(
        f"{source} does not fit the checkpoint of step {step}. {error}"
      ) from error

  def describe(self):
    """Writes what the run is made from, and a description of its model."""
    dataset = self.dataset
    workdir.record(self.folder, self.settings.given, dataset.manifest["sha256"])
    by_json = dataset.tokenizer.by_json
    weights.describe(
      self.folder,
      self.model,
      head=self.head,
      vocabulary=weights.Vocabulary(tuple(dataset.vocabulary), by_json=by_json),
      labels=dataset.labels,
    )
    if self.pooling:
      write_pooling(self.folder, self.pooling, width=self.model.hidden_size)
    if by_json:  # predict.py splits text by it
      write_text(self.folder / TOKENIZER_FILE, dataset.tokenizer.definition)

  def interrupted(self, step: int, *, asked: bool) -> Exception:
    """Why training ends before its last step, and how it resumes.

    Args:
      step: the last one.
      asked: whether a process was asked to stop, this one or another.
    """
    saved = "nothing is saved yet"
    if step:
      saved = f"saved step {step} of {self.recipe.steps} in {self.folder}"
    asked = asked or signals.heard is not None
    if not asked and (stream := self.settings.data.stream):
      remedy = "Give fewer steps, or a longer stream, in another --workdir."
      return Stopped(f"{stream} ended: {saved}. {remedy}")
    return Terminated(f"Asked to stop: {saved}. Run the same command again to resume.")


def prepare_run(run: RunSettings, folder: pathlib.Path) -> TrainingRun:
  """Prepares the dataset, the plan, the recipe and the model, and prints them.

  Args:
    run: its settings, which the machine can run.
    folder: its folder.

  Raises:
    InputError: they cannot be made, or do not fit what the folder holds; or the folder
      has checkpoints, but no `model.json` beside them.
  """
  say, head = processes.print_on_first, run.head
  has_checkpoint = bool(weights.steps(folder))  # it continues from its own weights
  stored = None if has_checkpoint else init_from.open_weights(run)
  pooling = None
  if head == "encoder":
    trained = weights.open_folder(folder) if has_checkpoint else stored
    pooling = init_from.pooling_of(run, trained)
  dataset = processes.on_first_then_others(lambda: prepare_dataset(run.data))
  processes.on_first(lambda: workdir.check_dataset(folder, dataset.manifest["sha256"]))
  is_recorded = workdir.has_begun(folder)
  plan = kept_plan(run.rows, dataset.train, folder, seed=run.seed, begun=is_recorded)
  say(
    f"{plan.num_sequences:,} sequences in {plan.num_packs:,} packs of {plan.row_length} "
    f"tokens: packing factor {plan.packing_factor:.3f}, efficiency {plan.efficiency:.2%}, "
    f"at most {plan.packing_depth} sequences a pack\n"
  )
  counts: dict[str, Any] = {}
  if run.data.stream:
    say(
      f"These figures are of a sample. Training reads {run.data.stream}, each document "
      "once, so there are no epochs.\n"
    )
  else:
    counts = {
      "num_sequences": plan.num_sequences,
      "num_tokens": plan.histogram.num_tokens,
    }
  mesh = make_mesh(fsdp=run.train.fsdp)
  processes.connect(mesh)
  before, recipe = resolve(
    run.train,
    run.optimizer,
    packing_factor=plan.packing_factor,
    num_devices=mesh.size,
    **counts,
  )
  say(f"{table(before, recipe)}\n")
  if stored:
    if stored.step:
      say(f"starting from step {stored.step} of {stored.directory}\n")
    init_from.check_vocabulary(stored, dataset.vocabulary)
    init_from.check_splitting(stored, dataset.tokenizer)
  begun = weights.read_description(folder).config if has_checkpoint else None
  model_config = init_from.run_model_config(
    run,
    vocab_size=len(dataset.vocabulary),
    stored=stored,
    begun=begun,
    labels=dataset.labels,
    pair_types=gives_pair_types(dataset.tokenizer.path.parent),
  )
  lengths = row_lengths(run.rows, dataset)
  computed = computation.of_run(run, model_config, lengths, begun=begun)
  computed.check_all_processes()
  shares = None
  if mesh.size > 1:
    count = functools.partial(
      count_shares,
      run,
      dataset,
      plan,
      rows=recipe.rows,
      steps=recipe.steps,
      devices=mesh.size,
    )
    shares = processes.on_first(count)
    say(f"{shares_line(shares)}\n")
  return TrainingRun(
    settings=run,
    folder=folder,
    dataset=dataset,
    plan=plan,
    unpacked_recipe=before,
    recipe=recipe,
    mesh=mesh,
    shares=shares,
    computation=computed,
    stored=stored,
    pooling=pooling,
    code=processes.on_first(code_version),
  )
