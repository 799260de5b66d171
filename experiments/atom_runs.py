"""Runs of the atom-size study: one compiled step for all arms of a row length."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import jax
import optax
from ml_collections import ConfigDict

import packing
import pipeline
from configs import gpt2_atoms
from pipeline import atoms
from pipeline.batches import PackedBatch
from pipeline.loader import RowLoader
from training.command import Stopped
from training.config import gpt2_config, validate
from training.evaluation import evaluate_causal
from training.files import write_json
from training.mesh import make_mesh, put_batch
from training.optimizer import adamw
from training.progress import Progress
from training.step import TrainingProgram

FORMAT = 1  # of the files; one of another format is made anew
TOKENS = 512  # of a step: rows times their length, the same for all row lengths
EPOCHS = 3
EVALUATIONS = 3  # of an epoch
SAMPLE = 16  # evaluations but the last read one of so many held-out batches
WARMUP_STEPS = 100
QUICK_STEPS = 120  # in place of all epochs
# Beside those of configs/gpt2_atoms.py.
OVERRIDES: dict[str, Any] = {
  "data.vocab_size": 2048,
  "model.size": "tiny",
  "model.dropout_rate": 0.0,
  "model.attention_dropout_rate": 0.0,
  "optimizer.learning_rate": 2e-3,  # of 1e-3, 2e-3, 4e-3 the best for concat with seed 0
  "optimizer.weight_decay": 0.01,
  "packing.max_sequences_per_pack": 8,
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
    ConfigError, InputError: the text cannot be used.
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
    return found if found.get("run") == self._identity(arm, seed) else None

  def run(self, arm: Arm, seed: int) -> dict[str, Any]:
    """Trains, evaluates and writes the file, unless it is there.

    Returns:
      `run`, what it was; `rows`, of an epoch, and `steps_per_epoch`; `nats`, the mean loss
      of each step, and `targets`, the tokens that were predicted; `evaluations`, each with
      `step`, `seconds` of training from the end of the first step on, and `perplexity` and
      `tokens` of a sample of the held-out text; and `held_out`, the same for all of it at
      the end.

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
    rate = optax.warmup_constant_schedule(0.0, opt.learning_rate, opt.warmup_steps)
    optimizer = adamw(
      rate,
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
      gpt2_config(config, vocab_size=len(self.dataset.vocabulary)),
      optimizer,
      mesh=make_mesh(1),
      seed=seed,
      head="causal",
      loss_unit=config.train.loss_unit,
    )

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

  def _identity(self, arm: Arm, seed: int) -> dict[str, Any]:
    return {
      "format": FORMAT,
      "arm": dataclasses.asdict(arm),
      "seed": seed,
      "config": self.config(arm, seed).to_dict(),
      "quick": self.quick,
      "dataset": self.dataset.manifest["sha256"],
    }

  def _train(self, arm: Arm, seed: int) -> dict[str, Any]:
    loader, program = self.loader(arm, seed), self.program
    per_epoch = loader.batches_per_epoch
    steps = QUICK_STEPS if self.quick else round(EPOCHS * per_epoch)
    parts = EVALUATIONS * EPOCHS
    evaluated = {round(steps * n / parts) for n in range(1, parts + 1)} - {0}
    drawn = self._program_of(seed=seed, optimizer=optax.identity()).init()["params"]
    state = program.init(drawn)
    values: list[Any] = []
    evaluations: list[dict[str, Any]] = []
    title = f"{self.row_length}: {arm.name}, seed {seed}"

    def evaluate(every: int) -> dict[str, Any]:
      found = evaluate_causal(program, state["params"], self.held_out[::every])
      return {name: found[name] for name in ("perplexity", "tokens")}

    seconds, start = 0.0, time.perf_counter()
    with (
      contextlib.closing(loader.iterate()) as batches,
      Progress(title, total=steps) as progress,
    ):
      for step, batch in enumerate(itertools.islice(batches, steps), start=1):
        ready = put_batch(with_loss_mask(batch), program.mesh)
        state, told = program.train_step(state, ready)
        values.append((told["causal_loss"], told["finite"]))
        progress.update()
        if step == 1:  # which may compile
          jax.block_until_ready(state)
          start = time.perf_counter()
        if step not in evaluated:
          continue
        values = jax.device_get(values)
        seconds += time.perf_counter() - start
        if not all(finite for _, finite in values):
          raise Stopped(f"{title}: the loss is not finite; use a lower learning rate.")
        evaluations.append({"step": step, "seconds": seconds} | evaluate(SAMPLE))
        progress.line(step, {"perplexity": evaluations[-1]["perplexity"]})
        start = time.perf_counter()
    losses = [loss for loss, _ in values]
    return {
      "rows": loader.num_rows,
      "steps_per_epoch": per_epoch,
      "nats": [float(x.total / max(x.units, 1)) for x in losses],
      "targets": [int(x.units) for x in losses],
      "evaluations": evaluations,
      "held_out": evaluate(SAMPLE if self.quick else 1),
    }


def with_loss_mask(batch: PackedBatch) -> PackedBatch:
  """Packs predict all their tokens; said in words, they have the fields of atoms.

  Args:
    batch: of any layout.
  """
  return {"loss_mask": batch["segment_ids"] > 0} | batch
