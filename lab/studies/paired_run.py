"""One run of a paired study: an arm with a seed, in a process of its own.

  python -m lab.studies.paired_run --config=configs/quickstart.py --config.seed=0 \\
      --config.packing.adjust=reduce_batch --batches=unpacked --out=unpacked.json

Runs of one seed start from the same weights and see the same packs in the same order:
step t of R rows has the packs R * t to R * (t + 1) - 1 of one stream. --batches says how
sequences become batches (`streams.stream`); the recipe is that of the packed run. The
JSON file is written at the end. --keep also writes a Hugging Face directory beside it,
from which --config.model.init_from can start.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

import packing
import pipeline
from lab.statistics import spread_of
from lab.studies.streams import CUT, stream
from lab.studies.study import Arm, Results, worker
from launch import init_from
from launch.data import make_held_out, make_loader, prepare_dataset
from launch.fields import check
from launch.plans import make_plan
from launch.recipe import Recipe, make_optimizer, resolve
from launch.record.metrics import means
from launch.record.parameters import parameters_digest
from launch.record.progress import Progress
from model import hf, weights
from packing.files import write_text
from pipeline.tokenizer import TOKENIZER_FILE
from training.errors import Stopped
from training.evaluation import evaluate_pretraining
from training.mesh import make_mesh, put_batch
from training.step import State, TrainingProgram

POINTS = 100  # of a learning curve
EVALUATED = (6, 9, 14, 21, 31, 45, 67, 100)  # of these points
EARLY = 2  # the index of the evaluation by which early convergence is judged
EARLY_SHARE = EVALUATED[EARLY] / POINTS  # the share of its sequences seen by then


class Schedule(NamedTuple):
  """How long a run is, in steps."""

  recipe: Recipe  # of the optimizer; its rows are packed rows
  rows: int  # of a batch; in "unpacked" batches they vary
  points: Sequence[int]  # the last step of each point of the learning curve
  evaluated: Sequence[int]  # the points at which the model is evaluated


def make_schedule(config: ConfigDict, plan: packing.Plan, *, batches: str) -> Schedule:
  """Steps in which all arms see the same packs, and the steps at which they are compared.

  All arms see the packs of the config's steps with the config's rows, however
  `reduce_batch` rounds. Arms with other rows see as many sequences, and arms whose rows are
  full as many tokens, except in the last step. `batches` is one of `streams.BATCHES`.

  Raises:
    ConfigError: a value that no recipe can have, or no paired run.
  """
  micro, algorithm = config.train.micro_batch_size, config.packing.algorithm
  check(not micro, "train.micro_batch_size", micro, "0, as rows of unpacked steps vary")
  planned = "another, since all arms follow one plan"
  check(algorithm != "online", "packing.algorithm", algorithm, planned)
  if batches in CUT:
    expected = f"False with batches={batches}, whose rows cut through pairs"
    check(not config.model.next_sentence, "model.next_sentence", True, expected)
  before, recipe = resolve(
    config,
    packing_factor=plan.packing_factor,
    num_sequences=plan.num_sequences,
    num_tokens=plan.histogram.num_tokens,
  )
  whole = max(1, round(before.steps / plan.packing_factor))  # steps with the config's rows
  packs = whole * before.rows
  rows, steps = recipe.rows, packs // recipe.rows
  if batches in ("constant", "sorted"):
    rows = round(recipe.rows * plan.packing_factor)
    steps = round(packs * plan.packing_factor / rows)
  elif batches in CUT:
    steps = round(steps * plan.efficiency)

  def step_of(point: int) -> int:
    return round(whole * point / POINTS) * steps // whole

  points = sorted({step_of(point) for point in range(1, POINTS + 1)} - {0})
  evaluated = sorted({step_of(point) for point in EVALUATED} - {0})
  return Schedule(dataclasses.replace(recipe, steps=steps), rows, points, evaluated)


def run(arm: Arm, config: ConfigDict, *, keep_in: pathlib.Path) -> dict[str, Any]:
  """Trains and evaluates.

  The config already has the fields of `arm`. Kept parameters replace the content of the
  folder `keep_in`.

  Returns:
    `recipe`, `plan` and `parameters_digest`; `curve`, for each point the counters at its
    end and means over its steps; `evaluations`, each with `step`, the counters and two
    results of `evaluate_pretraining`: `own`, with the model as it was trained, and `alone`,
    with each sequence isolated; and `sequences_a_step`, with the `mean` and the number of
    `steps` by number of sequences.

  Raises:
    ConfigError, InputError: a value that cannot be used.
    Stopped: a loss is not finite.
  """
  dataset = prepare_dataset(config)
  plan = make_plan(config, dataset.train)
  recipe, rows, points, evaluated = make_schedule(config, plan, batches=arm.batches)
  loader = make_loader(
    config, dataset.train, dataset.vocabulary, plan=plan, batch_size=recipe.rows
  )
  assert isinstance(loader, pipeline.PackedLoader)  # the task masks tokens
  given = init_from.open_weights(config)
  model = init_from.run_model_config(
    config, workdir=keep_in, vocab_size=len(dataset.vocabulary), stored=given
  )
  program = make_program(config, model, recipe)
  params = None  # random
  if given:
    init_from.check_vocabulary(given, dataset.vocabulary)
    params = init_from.initial_params(given, model, seed=config.seed)
  programs = {"own": program}
  isolated: dict[str, Any] = {"attention_mask": "segment", "position_reset": True}
  alone = dataclasses.replace(
    model, **{name: x for name, x in isolated.items() if hasattr(model, name)}
  )
  if alone != model:
    programs["alone"] = make_program(config, alone, recipe)
  (held_out,) = make_held_out(config, dataset)
  held_out_batches = list(held_out.batches())
  unigram = dataset.manifest["most_frequent_token"]

  counts: list[int] = []
  curve: list[dict[str, Any]] = []
  evaluations: list[dict[str, Any]] = []
  totals = {"sequences": 0, "real_tokens": 0}
  of_steps = stream(loader, arm.batches, rows=rows)
  name = f"{arm.name}, seed {config.seed}"
  paused = fit(
    program, of_steps, steps=recipe.steps, pauses=points, params=params, name=name
  )
  for step, state, values in paused:
    counts += [int(x["sequences"]) for x in values]
    totals = {name: n + sum(int(x[name]) for x in values) for name, n in totals.items()}
    curve.append({"step": step} | totals | means(values))
    if step in evaluated:
      results = {
        name: evaluate_pretraining(
          one, state["params"], held_out_batches, unigram_token=unigram
        )
        for name, one in programs.items()
      }
      results = {"alone": results["own"]} | results
      evaluations.append({"step": step} | totals | results)
  if arm.keep:
    shutil.rmtree(keep_in, ignore_errors=True)
    by_json = dataset.tokenizer.by_json
    vocabulary = weights.Vocabulary(tuple(dataset.vocabulary), by_json=by_json)
    hf.export_model(model, state["params"], keep_in, vocabulary=vocabulary)
    if by_json:
      write_text(keep_in / TOKENIZER_FILE, dataset.tokenizer.definition)
  depths = np.array([len(strategy) for strategy in plan.strategies])
  return {
    "recipe": recipe.as_dict(),
    "plan": {
      "packing_factor": plan.packing_factor,
      "sequences_a_pack_sd": spread_of(depths, plan.repeat_counts),
    },
    "parameters_digest": parameters_digest(jax.device_get(state["params"])),
    "curve": curve,
    "evaluations": evaluations,
    "sequences_a_step": {
      "mean": float(np.mean(counts)),
      "steps": {str(n): k for n, k in sorted(collections.Counter(counts).items())},
    },
  }


def fit(
  program: TrainingProgram,
  batches: Iterable,
  *,
  steps: int,
  pauses: Collection[int],
  params: Any = None,
  name: str,
) -> Iterator[tuple[int, State, list[dict[str, Any]]]]:
  """Trains from `params`, or from random parameters if there are none.

  Yields:
    After each step in `pauses`: its number, the state, and the totals that `train_step`
    returned for each step since the last pause, on the host.

  Raises:
    Stopped: a loss is not finite.
  """
  state, values = program.init(params), []
  with Progress(name, total=steps) as progress:
    for step, batch in zip(range(1, steps + 1), batches, strict=False):
      state, totals = program.train_step(state, put_batch(batch, program.mesh))
      values.append(totals)
      progress.update()
      if step not in pauses:
        continue
      values = jax.device_get(values)
      if not all(x["finite"] for x in values):
        raise Stopped(
          f"{name}: the loss is not finite by step {step}. Set a lower learning rate."
        )
      yield step, state, values
      values = []
      progress.line(step, {})


def make_program(config: ConfigDict, model, recipe: Recipe) -> TrainingProgram:
  """The training program of a run, on one device."""
  return TrainingProgram(
    model,
    make_optimizer(config, recipe),
    mesh=make_mesh(1),
    seed=config.seed,
    loss_unit=config.train.loss_unit,
  )


# --------------------------------------------------------- what is read from finished runs


def held_out(
  results: Results, metric: str = "mlm_loss", *, at: int = -1, way: str = "own"
) -> list[Any]:
  """A metric of `evaluate_pretraining` for each seed; `at` is the evaluation's index."""
  return [run["evaluations"][at][way][metric] for run in results]


def in_training(results: Results) -> list[float]:
  """Each seed's masked-token loss in training, over the last 10 points of its curve."""
  return [float(np.mean([x["mlm_loss"] for x in run["curve"][-10:]])) for run in results]


if __name__ == "__main__":
  worker(run)
