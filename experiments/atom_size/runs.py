"""Runs of the atom-size study: one compiled step for all arms of a row length."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

import packing
import pipeline
from configs import gpt2_atoms
from experiments.atom_size.perplexities import SEGMENTS
from experiments.lab.study import agrees
from packing import InputError
from pipeline.batches import atoms
from pipeline.batches.loader import RowLoader
from pipeline.batches.packed import PackedBatch
from training.command import Stopped
from training.config import model_config, validate
from training.evaluation import evaluate_causal
from training.mesh import make_mesh, put_batch
from training.optimizer import adamw
from training.record.files import write_json
from training.record.progress import Progress
from training.step import TrainingProgram

TOKENS = 512  # of a step: rows times their length, the same for all row lengths
EPOCHS = 3
EVALUATIONS = 9  # of a run, on a sample of the held-out text
SAMPLE = 80  # batches of that sample
QUICK = {"steps": 120, "evaluations": 3, "sample": 20}
WARMUP_STEPS = 100
TURNS = 20  # of each arm, when steps are timed
STEPS_A_TURN = 5
# Beside those of configs/gpt2_atoms.py.
OVERRIDES: dict[str, Any] = {
  "data.vocab_size": 2048,
  "model.size": "tiny",
  "model.dropout_rate": 0.0,
  "model.attention_dropout_rate": 0.0,
  "optimizer.learning_rate": 1e-3,  # the best of six for concat with seed 0: LOG.md
  "optimizer.weight_decay": 0.01,
}


@dataclasses.dataclass(frozen=True)
class Arm:
  """How documents become rows.

  Attributes:
    layout: concat, padding or packed.
    atom: in rows; of packed rows, which have none, 1.
    loss_on_padding: whether end tokens that only fill an atom are predicted too.
  """

  layout: str
  atom: float = 1.0
  loss_on_padding: bool = False

  @property
  def name(self) -> str:
    """Of its files."""
    if self.layout == "packed":
      return "packed"
    loss = ",loss_on_padding" if self.loss_on_padding else ""
    return f"{self.layout},atom={self.atom:g}{loss}"


def make_config(
  arm: Arm, *, row_length: int, seed: int, data: Mapping[str, Any]
) -> ConfigDict:
  """The config of a run.

  Args:
    arm: its layout.
    row_length: S, in tokens; divides `TOKENS`.
    seed: of the initial weights and of the order.
    data: fields of the config's `data` that say where the text is, and the directory.

  Raises:
    ConfigError: a value that no run can have.
  """
  config = gpt2_atoms.get_config()
  fields = OVERRIDES | {
    "seed": seed,
    "data.max_sequence_length": row_length,
    "data.layout": arm.layout,
    "data.atom_size": 0 if arm.layout == "packed" else round(arm.atom * row_length),
    "data.loss_on_padding": arm.loss_on_padding,
    "train.batch_size": TOKENS // row_length,
    "train.duration": f"{EPOCHS} epochs",
    "optimizer.warmup": "",
    "optimizer.warmup_steps": WARMUP_STEPS,
  }
  fields |= {f"data.{name}": value for name, value in data.items()}
  config.update_from_flattened_dict(fields)
  validate(
    config, algorithms=list(packing.ALGORITHMS), tasks=pipeline.TASK_HEADS, num_devices=1
  )
  return config


class RowLengthStudy:
  """All runs of one row length: they share the dataset, the step and the held-out text.

  The learning rate stays after a warm-up. So a run does not depend on how long it will be,
  and arms can be compared at any step.

  Args:
    folder: for the dataset, and in `runs` a file for each run.
    row_length: S, in tokens.
    data: fields of the config's `data` that say where the text is.
    quick: whether some steps are enough.

  Raises:
    ConfigError, InputError: the text cannot be used, or is too short.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    row_length: int,
    *,
    data: Mapping[str, Any],
    quick: bool = False,
  ):
    self.folder, self.row_length, self.quick = folder, row_length, quick
    self._data = dict(data) | {"directory": str(folder / "data")}
    config = self.config(Arm("packed"), 0)
    self.dataset = pipeline.prepare_dataset(config)
    self.plan = pipeline.make_plan(config, self.dataset.train)
    self.lengths, _ = atoms.documents(self.dataset.train)  # of documents, in tokens
    self._initial: dict[int, Any] = {}
    tokens = int((self.lengths + 1).sum())
    if not quick and tokens < SEGMENTS * TOKENS:
      raise InputError(
        f"The text has {tokens:,} tokens; expected at least {SEGMENTS * TOKENS:,}, so that "
        f"an epoch has {SEGMENTS} steps of {TOKENS} tokens. Give more text."
      )

  def config(self, arm: Arm, seed: int) -> ConfigDict:
    """Of a run."""
    return make_config(arm, row_length=self.row_length, seed=seed, data=self._data)

  def path(self, arm: Arm, seed: int) -> pathlib.Path:
    """Of the file of a run."""
    return self.folder / "runs" / f"{arm.name},seed={seed}.json"

  def read(self, arm: Arm, seed: int) -> dict[str, Any] | None:
    """What a run found; None where it is not finished, or was another one."""
    try:
      found = json.loads(self.path(arm, seed).read_text())
    except (OSError, ValueError):
      return None
    return found if agrees(found.get("run"), self._identity(arm, seed)) else None

  def run(self, arm: Arm, seed: int) -> dict[str, Any]:
    """Trains, evaluates and writes the file, unless it is there.

    Returns:
      `run`, what it was; `rows`, of an epoch, and `steps_per_epoch`; `nats`, the mean loss
      of each step, and `targets`, the tokens that were predicted; `evaluations`, each with
      `step`, and `perplexity` and `tokens` of a sample of the held-out text; and
      `held_out`, the same for all of it at the end.

    Raises:
      Stopped: the loss is not finite.
      InputError: the documents and the layout do not go together.
    """
    found = self.read(arm, seed)
    if found is None:
      found = {"run": self._identity(arm, seed)} | self._train(arm, seed)
      path = self.path(arm, seed)
      path.parent.mkdir(parents=True, exist_ok=True)
      write_json(path, found)
    return found

  @functools.cached_property
  def program(self) -> TrainingProgram:
    """The step of all arms and seeds, whose batches have the same shapes."""
    config = self.config(Arm("packed"), 0)
    opt = config.optimizer
    peak, steps = opt.learning_rate, opt.warmup_steps
    optimizer = adamw(
      optax.warmup_constant_schedule(peak / steps, peak, steps - 1),
      b1=opt.b1,
      b2=opt.b2,
      eps=opt.eps,
      weight_decay=opt.weight_decay,
      clip_norm=opt.clip_norm,
    )
    return self._program_of(seed=0, optimizer=optimizer)

  def _program_of(self, *, seed: int, optimizer) -> TrainingProgram:
    config = self.config(Arm("packed"), seed)
    return TrainingProgram(
      model_config(config, head="causal", vocab_size=len(self.dataset.vocabulary)),
      optimizer,
      mesh=make_mesh(1),
      seed=seed,
      head="causal",
      loss_unit=config.train.loss_unit,
    )

  def initial_params(self, seed: int):
    """What all arms of a seed start from, on the host."""
    if seed not in self._initial:
      program = self._program_of(seed=seed, optimizer=optax.identity())
      self._initial[seed] = jax.device_get(program.init()["params"])
    return self._initial[seed]

  def loader(self, arm: Arm, seed: int) -> RowLoader:
    """The rows of an arm, with as many slots as packs have."""
    config = self.config(arm, seed)
    if arm.layout == "packed":
      return pipeline.make_loader(
        config, self.dataset.train, self.dataset.vocabulary, plan=self.plan
      )
    return pipeline.AtomLoader(
      self.dataset.train,
      layout=arm.layout,
      row_length=self.row_length,
      atom_size=config.data.atom_size,
      batch_size=config.train.batch_size,
      seed=seed,
      loss_on_padding=arm.loss_on_padding,
      num_slots=self.plan.packing_depth,
    )

  @functools.cached_property
  def held_out(self) -> list[PackedBatch]:
    """Windows of the held-out documents, the same for all arms."""
    (held_out,) = pipeline.make_held_out(self.config(Arm("packed"), 0), self.dataset)
    return list(held_out.batches())

  def seconds_a_step(self, arms: Sequence[Arm]) -> dict[str, list[float]]:
    """Steps of several arms by the clock, in turns; measured once and kept.

    Args:
      arms: to time, with their loaders.

    Returns:
      By the arms' names, the seconds of a step in each turn.
    """
    path, of = self.folder / "seconds.json", self._identity(Arm("packed"), 0)
    if path.exists():
      kept = json.loads(path.read_text())
      if agrees(kept.get("of"), of) and all(arm.name in kept["seconds"] for arm in arms):
        return kept["seconds"]
    state = self.program.init(self.initial_params(0))
    found: dict[str, list[float]] = {arm.name: [] for arm in arms}
    with contextlib.ExitStack() as stack:
      batches = {
        arm: stack.enter_context(contextlib.closing(self.loader(arm, 0).iterate()))
        for arm in arms
      }
      for turn in range(TURNS + 1):
        for arm in arms:
          start = time.perf_counter()
          for batch in itertools.islice(batches[arm], STEPS_A_TURN):
            state, _ = self._step(state, batch)
          jax.block_until_ready(state)
          if turn:  # the first may compile
            taken = time.perf_counter() - start
            found[arm.name].append(taken / STEPS_A_TURN)
    write_json(path, {"of": of, "seconds": found})
    return found

  def _identity(self, arm: Arm, seed: int) -> dict[str, Any]:
    config = self.config(arm, seed).to_dict()
    for name in ("directory", "source", "held_out_source"):
      del config["data"][name]  # where it is; the checksums say what it is
    return {
      "arm": dataclasses.asdict(arm),
      "seed": seed,
      "config": config,
      "learning_rate": "constant after the warm-up",
      "lengths": self._run_lengths(),
      "dataset": self.dataset.manifest["sha256"],
    }

  def _run_lengths(self) -> dict[str, int]:
    """Steps, 0 for those of the epochs; and how often and on what it is evaluated."""
    if self.quick:
      return dict(QUICK)
    return {"steps": 0, "evaluations": EVALUATIONS, "sample": SAMPLE}

  def _step(self, state, batch: PackedBatch):
    ready = put_batch(as_atoms(batch), self.program.mesh)
    return self.program.train_step(state, ready)

  def _train(self, arm: Arm, seed: int) -> dict[str, Any]:
    loader, lengths = self.loader(arm, seed), self._run_lengths()
    per_epoch, parts = loader.batches_per_epoch, lengths["evaluations"]
    steps = lengths["steps"] or round(EPOCHS * per_epoch)
    evaluated = {round(steps * n / parts) for n in range(1, parts + 1)} - {0}
    sample = self.held_out[:: max(1, len(self.held_out) // lengths["sample"])]
    state = self.program.init(self.initial_params(seed))
    values: list[Any] = []
    evaluations: list[dict[str, Any]] = []
    title = f"{self.row_length}: {arm.name}, seed {seed}"

    def evaluate(batches: Sequence[PackedBatch]) -> dict[str, Any]:
      found = evaluate_causal(self.program, state["params"], batches)
      return {name: found[name] for name in ("perplexity", "tokens")}

    with (
      contextlib.closing(loader.iterate()) as batches,
      Progress(title, total=steps) as progress,
    ):
      for step, batch in enumerate(itertools.islice(batches, steps), start=1):
        state, told = self._step(state, batch)
        values.append((told["causal_loss"], told["finite"]))
        progress.update()
        if step not in evaluated:
          continue
        values = jax.device_get(values)
        if not all(finite for _, finite in values):
          raise Stopped(f"{title}: the loss is not finite; use a lower learning rate.")
        evaluations.append({"step": step} | evaluate(sample))
        progress.line(step, evaluations[-1])
    losses = [loss for loss, _ in values]
    return {
      "rows": loader.num_rows,
      "steps_per_epoch": per_epoch,
      "nats": [float(x.total / max(x.units, 1)) for x in losses],
      "targets": [int(x.units) for x in losses],
      "evaluations": evaluations,
      "held_out": evaluate(sample if self.quick else self.held_out),
    }


def as_atoms(batch: PackedBatch) -> PackedBatch:
  """A batch with the fields of one of atoms: packs predict all of their real tokens.

  Args:
    batch: of any layout.
  """
  is_real = batch["segment_ids"] > 0
  return {"loss_mask": is_real, "real_tokens": is_real.sum(1, dtype=np.int32)} | batch
