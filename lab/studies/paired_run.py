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
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import packing
import pipeline
from lab.statistics import spread_of
from lab.studies.streams import CUT, stream
from lab.studies.study import Arm, Results, worker
from launch import computation, init_from
from launch.data import make_held_out, make_loader, prepare_dataset
from launch.options import check_option
from launch.parts import OnlineRows
from launch.plans import make_plan, row_lengths
from launch.recipe.adjustment import Recipe, make_optimizer, resolve
from launch.record.metrics import means
from launch.record.parameters import parameters_digest
from launch.record.progress import Progress
from launch.settings import RunSettings
from model import hf, weights
from model.hf.tokenizer import gives_pair_types
from packing.files import write_text
from pipeline.batches.packed import PackedBatch
from pipeline.tokenizer import TOKENIZER_FILE
from training.errors import Stopped
from training.evaluation import evaluate_pretraining
from training.mesh import make_mesh
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


def make_schedule(
  run: RunSettings,
  plan: packing.Plan,
  *,
  batches: str,
  evaluated: Sequence[int] = EVALUATED,
) -> Schedule:
  """Steps in which all arms see the same packs, and the steps at which they are compared.

  All arms see the packs of the config's steps with the config's rows, however
  `reduce_batch` rounds. Arms with other rows see as many sequences, and arms whose rows are
  full as many tokens, except in the last step. `batches` is one of `streams.BATCHES`;
  `evaluated` are some of the `POINTS`.

  Raises:
    ConfigError: a value that no recipe can have, or no paired run.
  """
  micro = run.train.micro_batch_size
  check_option(
    not micro, "train.micro_batch_size", micro, "0, as rows of unpacked steps vary"
  )
  planned = "another, since all arms follow one plan"
  is_planned = not isinstance(run.rows, OnlineRows)
  check_option(is_planned, "packing.algorithm", "online", planned)
  if batches in CUT:
    expected = f"False with batches={batches}, whose rows cut through pairs"
    next_sentence = getattr(run.model.config, "next_sentence", False)
    check_option(not next_sentence, "model.next_sentence", True, expected)
  before, recipe = resolve(
    run.train,
    run.optimizer,
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
  compared = sorted({step_of(point) for point in evaluated} - {0})
  return Schedule(dataclasses.replace(recipe, steps=steps), rows, points, compared)


class PairedRun:
  """A run of an arm, prepared.

  Args:
    arm: how sequences become batches.
    settings: of the run; they already have the fields of the arm.
    folder: of its parameters, if they are kept.
    evaluated: the points of the learning curve at which the model is evaluated.

  Raises:
    ConfigError, InputError, AttentionError: a value that cannot be used.
  """

  def __init__(
    self,
    arm: Arm,
    settings: RunSettings,
    *,
    folder: pathlib.Path,
    evaluated: Sequence[int] = EVALUATED,
  ):
    self._arm, self._folder = arm, folder
    self._name = f"{arm.name}, seed {settings.seed}"
    self._dataset = dataset = prepare_dataset(settings.data)
    self._plan = plan = make_plan(settings.rows, dataset.train, seed=settings.seed)
    self.schedule = make_schedule(settings, plan, batches=arm.batches, evaluated=evaluated)
    recipe = self.schedule.recipe
    loader = make_loader(
      settings, dataset.train, dataset.vocabulary, plan=plan, batch_size=recipe.rows
    )
    assert isinstance(loader, pipeline.PackedLoader)  # the task masks tokens
    self._loader = loader
    lengths = row_lengths(settings.rows, dataset)
    given = init_from.open_weights(settings)
    model = init_from.run_model_config(
      settings,
      vocab_size=len(dataset.vocabulary),
      stored=given,
      pair_types=gives_pair_types(dataset.tokenizer.path.parent),
    )
    self._computation = computation.of_run(settings, model, lengths, begun=None)
    program = make_program(settings, self._computation.config, recipe)
    self._params = None  # random
    if given:
      init_from.check_vocabulary(given, dataset.vocabulary)
      init_from.check_splitting(given, dataset.tokenizer)
      self._params = init_from.initial_params(given, model, seed=settings.seed)
    self._programs = {"own": program}
    isolated: dict[str, Any] = {"attention_mask": "segment", "position_reset": True}
    alone = dataclasses.replace(
      model, **{name: x for name, x in isolated.items() if hasattr(model, name)}
    )
    if alone != model:
      alone = computation.of_run(settings, alone, lengths, begun=None).config
      self._programs["alone"] = make_program(settings, alone, recipe)
    (held_out,) = make_held_out(settings, dataset)
    self._held_out = list(held_out.batches())

  def compile(self):
    """Makes a step and an evaluation that do not count, so that `train` only computes."""
    program = self._programs["own"]
    state = program.init(self._params)
    state, _ = program.train_step(state, program.put_batch(next(self._batches())))
    self._evaluate(state)

  def train(self) -> Iterator[tuple[dict[str, Any], State]]:
    """Trains and evaluates.

    Yields:
      After each evaluation the result so far, and the state. The result has `computation`,
      in words; `recipe`; `plan`; `curve`, for each point the counters at its end and means
      over its steps; `evaluations`, each with `step`, the counters and two results of
      `evaluate_pretraining`: `own`, with the model as it was trained, and `alone`, with
      each sequence isolated; and `sequences_a_step`, with the `mean` and the number of
      `steps` by number of sequences. The counter `seconds` is without evaluations and
      without what the caller does in between.

    Raises:
      Stopped: a loss is not finite.
    """
    recipe, _, points, evaluated = self.schedule
    counts: list[int] = []
    curve: list[dict[str, Any]] = []
    evaluations: list[dict[str, Any]] = []
    totals, seconds = {"sequences": 0, "real_tokens": 0}, 0.0
    depths = np.array([len(strategy) for strategy in self._plan.strategies])
    program = self._programs["own"]
    paused = fit(
      program,
      self._batches(),
      steps=recipe.steps,
      pauses=points,
      state=program.init(self._params),
      name=self._name,
    )
    start = time.perf_counter()
    for step, state, values in paused:
      counts += [int(x["sequences"]) for x in values]
      totals = {name: n + sum(int(x[name]) for x in values) for name, n in totals.items()}
      seconds += time.perf_counter() - start
      counters = {"step": step, **totals, "seconds": seconds}
      curve.append(counters | means(values))
      if step in evaluated:
        evaluations.append(counters | self._evaluate(state))
        yield (
          {
            "computation": str(self._computation),
            "recipe": recipe.as_dict(),
            "plan": {
              "packing_factor": self._plan.packing_factor,
              "sequences_a_pack_sd": spread_of(depths, self._plan.repeat_counts),
            },
            "curve": curve,
            "evaluations": evaluations,
            "sequences_a_step": {
              "mean": float(np.mean(counts)),
              "steps": {str(n): k for n, k in sorted(collections.Counter(counts).items())},
            },
          },
          state,
        )
      start = time.perf_counter()

  def keep(self, state: State):
    """Writes the parameters into the run's folder, whose content they replace."""
    shutil.rmtree(self._folder, ignore_errors=True)
    tokenizer, words = self._dataset.tokenizer, tuple(self._dataset.vocabulary)
    vocabulary = weights.Vocabulary(words, by_json=tokenizer.by_json)
    model = self._computation.config
    hf.export_model(model, state["params"], self._folder, vocabulary=vocabulary)
    if tokenizer.by_json:
      write_text(self._folder / TOKENIZER_FILE, tokenizer.definition)

  def _batches(self) -> Iterator[PackedBatch]:
    return stream(self._loader, self._arm.batches, rows=self.schedule.rows)

  def _evaluate(self, state: State) -> dict[str, Any]:
    unigram = self._dataset.manifest["most_frequent_token"]
    results = {
      name: evaluate_pretraining(
        program, state["params"], self._held_out, unigram_token=unigram
      )
      for name, program in self._programs.items()
    }
    return {"alone": results["own"]} | results


def run(arm: Arm, settings: RunSettings, *, keep_in: pathlib.Path) -> dict[str, Any]:
  """Trains to the end; returns the result of `PairedRun`, and `parameters_digest`.

  Kept parameters replace the content of the folder `keep_in`. Raises as `PairedRun`.
  """
  made = PairedRun(arm, settings, folder=keep_in)
  for result, state in made.train():  # noqa: B007
    pass
  if arm.keep:
    made.keep(state)
  digest = parameters_digest(jax.device_get(state["params"]))
  return result | {"parameters_digest": digest}


def fit(
  program: TrainingProgram,
  batches: Iterable,
  *,
  steps: int,
  pauses: Collection[int],
  state: State | None = None,
  name: str,
) -> Iterator[tuple[int, State, list[dict[str, Any]]]]:
  """Trains from a state, or from random parameters if there is none.

  Yields:
    After each step in `pauses`: its number, the state, and the totals that `train_step`
    returned for each step since the last pause, on the host.

  Raises:
    Stopped: a loss is not finite.
  """
  state, values = state or program.init(), []
  with Progress(name, total=steps) as progress:
    for step, batch in zip(range(1, steps + 1), batches, strict=False):
      state, totals = program.train_step(state, program.put_batch(batch))
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


def make_program(run: RunSettings, model, recipe: Recipe) -> TrainingProgram:
  """The training program of a run, on one device."""
  return TrainingProgram(
    model,
    make_optimizer(run.optimizer, recipe),
    mesh=make_mesh(1),
    seed=run.seed,
    loss_unit=run.train.loss_unit,
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
