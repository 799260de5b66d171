"""One run of a paired study: an arm with a seed, in a process of its own.

  python -m experiments.paired --config=configs/quickstart.py --config.seed=0 \\
      --config.packing.adjust=reduce_batch --batches=unpacked --out=unpacked.json

Runs of one seed start from the same weights and see the same packs in the same order, so
that step t of R rows has the packs R * t to R * (t + 1) - 1 of one stream. --batches says
how their sequences come: packed; unpacked, those of each packed step, one a row; or
constant, one a row and as many each step. The recipe is that of the packed run. Writes one
JSON file when all is done: the recipe, the learning curve, evaluations and the sequences of
each step; with --keep also a Hugging Face directory beside it, which
--config.model.init_from takes.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import flags
from ml_collections import ConfigDict, config_flags

import packing
import pipeline
from experiments.lab.streams import BATCHES, stream
from model import BertConfig, hf, weights
from training import command, init_from
from training.config import ConfigError, make_optimizer, model_config, validate
from training.evaluation import evaluate_pretraining
from training.mesh import make_mesh, put_batch
from training.recipe import Recipe, resolve
from training.record.files import write_json
from training.record.metrics import Meter
from training.record.parameters import parameters_digest
from training.record.progress import Progress
from training.step import TrainingProgram
from training.sweep import jobs as schedule

FORMAT = 1  # of the file; one of another format is made anew
POINTS = 100  # of a learning curve
EVALUATED = (6, 9, 14, 21, 31, 45, 67, 100)  # of these points
_CURVE = ("step", "sequences", "real_tokens", "loss")  # and what heads have
_HEADS = ("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy")


@dataclasses.dataclass(frozen=True)
class Arm:
  """What runs of a study have in common but for the seed.

  Attributes:
    name: of its files.
    fields: of the config, that differ from what all arms have.
    batches: a key of `streams.BATCHES`.
    keep: whether the parameters are kept.
    starts_from: the arm of the same study, which keeps them, whose parameters runs of the
      same seed start from; "" to draw them.
  """

  name: str
  fields: Mapping[str, Any]
  batches: str = "packed"
  keep: bool = False
  starts_from: str = ""


class Plan(NamedTuple):
  """How long a run is, in steps.

  Attributes:
    recipe: what the optimizer is run with; its rows are packed ones.
    rows: of a batch, but for "unpacked" ones.
    points: the steps that a point of the learning curve ends with.
    evaluated: those of them that are evaluated.
  """

  recipe: Recipe
  rows: int
  points: Sequence[int]
  evaluated: Sequence[int]


def identity(arm: Arm, config: ConfigDict) -> dict[str, Any]:
  """What a file is of: a run is finished if its file has this."""
  return {
    "format": FORMAT,
    "arm": arm.name,
    "batches": arm.batches,
    "keep": arm.keep,
    "config": config.to_dict(),
  }


def plan_run(config: ConfigDict, plan: packing.Plan, *, batches: str) -> Plan:
  """Steps that see the same packs in all arms, and where these are compared.

  All arms see the packs that the config's batch size comes to with as many rows packed,
  whatever rounding `reduce_batch` does; "constant" ones the same number of sequences, but
  for the last step.

  Args:
    config: of the run.
    plan: of its packs.
    batches: a key of `streams.BATCHES`.

  Raises:
    ConfigError: a value that no recipe can have, or that no pairs can.
  """
  if config.train.micro_batch_size:
    raise ConfigError(
      f"config.train.micro_batch_size is {config.train.micro_batch_size}; expected 0, "
      "since unpacked steps have rows of any number."
    )
  before, recipe = resolve(
    config,
    packing_factor=plan.packing_factor,
    num_sequences=plan.num_sequences,
    num_tokens=plan.histogram.num_tokens,
  )
  whole = max(1, round(before.steps / plan.packing_factor))  # steps of the config's rows
  packs = whole * before.rows
  rows, steps = recipe.rows, packs // recipe.rows
  if batches == "constant":
    rows = round(recipe.rows * plan.packing_factor)
    steps = round(packs * plan.packing_factor / rows)
  recipe = dataclasses.replace(recipe, steps=steps)

  def step_of(point: int) -> int:
    return round(whole * point / POINTS) * steps // whole

  points = sorted({step_of(point) for point in range(1, POINTS + 1)} - {0})
  evaluated = sorted({step_of(point) for point in EVALUATED} - {0})
  return Plan(recipe, rows, points, evaluated)


def run(arm: Arm, config: ConfigDict, *, keep_in: pathlib.Path) -> dict[str, Any]:
  """Trains and evaluates.

  Args:
    arm: of the run; its fields are in the config already.
    config: of the run.
    keep_in: the folder for the parameters, if they are kept; what is there goes.

  Returns:
    `dataset`, its checksums; `recipe`, `plan` and `parameters_digest`; `curve`, for each
    point the counters at its end and means over its steps; `evaluations`, each with
    `step`, `sequences` and, as `evaluate_pretraining` gives them, `own`, as the model was
    trained, and `alone`, each sequence by itself; `sequences_a_step`, with `steps` by
    number; and `seconds` of training, without the first step and evaluations.

  Raises:
    ConfigError, InputError: a value that cannot be used.
    Stopped: a loss is not finite.
  """
  dataset = pipeline.prepare_dataset(config)
  plan = pipeline.make_plan(config, dataset.train)
  recipe, rows, points, evaluated = plan_run(config, plan, batches=arm.batches)
  loader = pipeline.make_loader(
    config, dataset.train, dataset.vocabulary, plan=plan, batch_size=recipe.rows
  )
  assert isinstance(loader, pipeline.PackedLoader)  # of a task that masks tokens
  bert = model_config(config, vocab_size=len(dataset.vocabulary))
  assert isinstance(bert, BertConfig)
  params = None  # to be drawn
  if given := init_from.open_weights(config):
    init_from.check_vocabulary(given, dataset.vocabulary)
    params = init_from.initial_params(given, bert, seed=config.seed)
  mesh = make_mesh(1)

  def program_of(config_of_model):
    return TrainingProgram(
      config_of_model,
      make_optimizer(config, recipe),
      mesh=mesh,
      seed=config.seed,
      loss_unit=config.train.loss_unit,
    )

  program = program_of(bert)
  alone = dataclasses.replace(bert, attention_mask="segment", position_reset=True)
  programs = {"own": program}
  if alone != bert:
    programs["alone"] = program_of(alone)
  (held_out,) = pipeline.make_held_out(config, dataset)
  held_out_batches = list(held_out.batches())

  def evaluate(params) -> dict[str, Any]:
    found = {
      name: evaluate_pretraining(
        one, params, held_out_batches, unigram_token=dataset.manifest["most_frequent_token"]
      )
      for name, one in programs.items()
    }
    return {"alone": found["own"]} | found

  state, counts, evaluations = program.init(params), [], []
  curve: list[dict[str, Any]] = []
  kind = arm.batches
  meter = Meter({}, packs=rows, tokens=rows * plan.row_length)
  batches = stream(loader, kind, rows=rows if kind == "constant" else recipe.rows)
  with Progress(arm.name, total=recipe.steps) as progress:
    for step in range(1, recipe.steps + 1):
      batch = next(batches)
      counts.append(int(batch["sequence_mask"].sum()))
      state, values = program.train_step(state, put_batch(batch, mesh))
      meter.add(values)
      progress.update()
      if step != points[len(curve)]:
        continue
      line = meter.line() | {"step": step}
      if not (values["finite"] and np.isfinite(line["loss"])):
        raise command.Stopped(
          f"The loss of {arm.name}, seed {config.seed}, is not finite at step {step}. Set "
          "a lower --config.optimizer.learning_rate."
        )
      curve.append({name: line[name] for name in (*_CURVE, *_HEADS) if name in line})
      if step in evaluated:
        with meter.paused():
          found = evaluate(state["params"])
        evaluations.append({"step": step, "sequences": line["sequences"]} | found)
        progress.line(step, line)
  if arm.keep:
    shutil.rmtree(keep_in, ignore_errors=True)
    vocabulary = weights.Vocabulary(tuple(dataset.vocabulary))
    hf.export_bert(bert, state["params"], keep_in, vocabulary=vocabulary)
  return {
    "dataset": dataset.manifest["sha256"],
    "recipe": recipe.as_dict(),
    "plan": {
      "packs": plan.num_packs,
      "sequences": plan.num_sequences,
      "packing_factor": plan.packing_factor,
      "efficiency": plan.efficiency,
      "packing_depth": plan.packing_depth,
      "sequences_a_pack_sd": _spread_of_packs(plan),
    },
    "parameters_digest": parameters_digest(jax.device_get(state["params"])),
    "curve": curve,
    "evaluations": evaluations,
    "sequences_a_step": _spread(counts),
    "seconds": line["seconds"],
  }


def _spread(counts: Sequence[int]) -> dict[str, Any]:
  return {
    "min": min(counts),
    "mean": float(np.mean(counts)),
    "sd": float(np.std(counts, ddof=1)) if len(counts) > 1 else 0.0,
    "max": max(counts),
    "steps": {str(n): steps for n, steps in sorted(collections.Counter(counts).items())},
  }


def _spread_of_packs(plan: packing.Plan) -> float:
  """Standard deviation of the sequences of a pack."""
  depths = np.array([len(strategy) for strategy in plan.strategies])
  mean = np.average(depths, weights=plan.repeat_counts)
  return float(np.sqrt(np.average((depths - mean) ** 2, weights=plan.repeat_counts)))


def worker(work: Callable[..., dict[str, Any]]):
  """A command that does one piece of work of a study, and writes what it found.

  Args:
    work: as `run`.
  """
  config = config_flags.DEFINE_config_file(
    "config", help_string="A config file.", lock_config=True
  )
  name = flags.DEFINE_string("arm", "run", "What the run is called.")
  batches = flags.DEFINE_enum("batches", "packed", list(BATCHES), "How sequences come.")
  keep = flags.DEFINE_bool("keep", False, "Keep the parameters, beside --out.")
  out = flags.DEFINE_string("out", None, "The JSON file to write.", required=True)
  ends = flags.DEFINE_bool("end_with_parent", False, "End when standard input does.")
  flags.mark_flag_as_required("config")

  def main():
    if ends.value:
      schedule.end_with_parent()
    path = pathlib.Path(out.value)
    arm = Arm(name.value, {}, batches.value, keep.value)
    chosen = config.value.copy_and_resolve_references()
    validate(
      chosen,
      algorithms=list(packing.ALGORITHMS),
      tasks=pipeline.TASK_HEADS,
      num_devices=1,
    )
    if pipeline.TASK_HEADS[chosen.data.task] != "pretraining":
      raise ConfigError(
        f"config.data.task is {chosen.data.task}; expected one that masks tokens."
      )
    path.parent.mkdir(parents=True, exist_ok=True)
    found = work(arm, chosen, keep_in=path.with_suffix(""))
    write_json(path, {"run": identity(arm, chosen)} | found)
    print(f"written to {path}")

  command.run(main, mistakes=(packing.InputError, ConfigError))


if __name__ == "__main__":
  worker(run)
