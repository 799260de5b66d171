"""Trains a packed BERT or ModernBERT, on masked text or on a task, or a packed GPT-2.

  python train.py --config=configs/quickstart.py --workdir=runs/quickstart
  python train.py --config=configs/glue.py:cola --workdir=runs/cola \\
      --config.model.init_from=runs/quickstart

Any field of the config can be set on the command line, such as
--config.train.duration='2 epochs'. The unpacked baseline is
--config.packing.algorithm=none; the paper's ablations are
--config.model.attention_mask=none and --config.model.position_reset=False. The same command
on the same folder resumes where training stopped. On Ctrl-C or SIGTERM, training finishes
the step, saves and exits with status 130 or 143. Several processes run the same command,
each with --coordinator=HOST:PORT --processes=N --process=I.
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from training import compiler, memory
from training.stopping import signals

memory.one_pool()
flags_added = compiler.set_flags()
if __name__ == "__main__":
  signals.listen()
  print("train.py: loading JAX and other libraries ...", file=sys.stderr, flush=True)
if not sys.stderr.isatty():  # in a log, each update of a progress bar is a new line
  os.environ.setdefault("TQDM_MININTERVAL", "15")

import jax
import numpy as np
from absl import flags
from ml_collections import ConfigDict, config_flags

import packing
import pipeline
from model import SKIPPING, AttentionError, ModelConfig, weights
from model.attention import window_pairs
from model.attention.kernels import is_local
from model.masks import pairs_within
from model.models import metric_of
from pipeline.batches.loader import BatchIterator
from pipeline.tokenizer import TOKENIZER_FILE
from training import command, computation, init_from, processes
from training.checkpoint import Checkpoints
from training.config import make_optimizer, make_schedule
from training.config.rules import check_fields, validate
from training.errors import ConfigError
from training.evaluation import evaluate
from training.mesh import gather, make_mesh, put_batch
from training.recipe import Recipe, resolve
from training.recipe.table import table
from training.record import plots, report, trackers, workdir
from training.record.compilations import CompilationCounter
from training.record.files import write_text
from training.record.flops import peak_of, training_flops
from training.record.parameters import count_parameters, parameters_digest
from training.record.recorder import Profile, recording
from training.record.throughput import packed_against_unpacked
from training.step import State, TrainingProgram
from training.stopping import Verdict, judge

_CONFIG = config_flags.DEFINE_config_file(
  "config", help_string="A config file, such as configs/quickstart.py.", lock_config=True
)
_WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.", required=True)
flags.register_validator(
  "workdir",
  lambda folder: folder != "",
  "expected a folder, found an empty text. Name one, such as runs/mine.",
)
_ALLOW_CHANGED_CONFIG = flags.DEFINE_bool(
  "allow_changed_config", False, "Resume a run with a config that differs from its own."
)
_PROFILE = flags.DEFINE_integer(
  "profile", 0, "Steps to profile into the run's folder, after the first 10.", lower_bound=0
)
flags.mark_flag_as_required("config")


def main():
  config, folder = _CONFIG.value, pathlib.Path(_WORKDIR.value)
  signals.resume_hint = functools.partial(resume_hint, folder)
  check_fields(config)
  memory.keep()
  compiler.keep_programs()
  processes.start()
  validate(
    config,
    algorithms=pipeline.ALGORITHMS,
    tasks=pipeline.TASK_HEADS,
    num_devices=jax.device_count(),
    typed=command.typed_fields(),
  )
  pipeline.check_data(config.data)
  changed = processes.on_first(
    lambda: workdir.check(folder, config, allow_changes=_ALLOW_CHANGED_CONFIG.value)
  )
  if not changed and (results := processes.on_first(lambda: finished(folder))):
    processes.print_on_first(
      f"The run in {folder} is finished. To start another run, give another --workdir. To "
      f"extend this one, give more steps and --allow_changed_config.\n\n{results}"
    )
    return
  with contextlib.ExitStack() as held:
    processes.on_first(lambda: held.enter_context(workdir.claimed(folder)))
    tracked = held.enter_context(trackers.opened(folder, config))
    checkpoints = held.enter_context(
      Checkpoints(folder, keep=config.train.keep_checkpoints)
    )
    run = prepare(config, folder)
    finish(run, train(run, checkpoints, tracked))


def resume_hint(folder: pathlib.Path) -> str:
  """A sentence that says where the same command would resume."""
  if steps := weights.steps(folder):
    return f"Run the same command again to resume from step {max(steps)}."
  return "No checkpoint is saved yet: the same command starts from the beginning."


def finished(folder: pathlib.Path) -> str | None:
  """The results of a finished run; None if it is not finished."""
  summary = workdir.read_summary(folder)
  try:
    return None if summary is None else report.summary_table(summary)
  except (KeyError, TypeError, ValueError) as error:
    raise ConfigError(
      f"{folder / 'summary.json'} is damaged ({error!r}). Delete it, and run train.py "
      "again, which writes it."
    ) from error


# ------------------------------------------- text to packs, recipe, model and optimizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  """All that training needs."""

  config: ConfigDict
  folder: pathlib.Path
  dataset: pipeline.PreparedDataset
  plans: dict[str, packing.Plan]
  unpacked_recipe: Recipe
  recipe: Recipe
  program: TrainingProgram
  computation: computation.Computation
  params: Callable[[], Any] | None  # reads the initial parameters; None: at random
  compilations: CompilationCounter

  @property
  def plan(self) -> packing.Plan:
    """The plan for the training sequences."""
    return self.plans["train"]

  @property
  def shape(self) -> dict[str, int]:
    """Besides the plan, what a loader needs: rows a step, and this process's share."""
    return {
      "batch_size": self.recipe.rows,
      "devices": self.program.mesh.size,
      "process_index": jax.process_index(),
      "process_count": jax.process_count(),
    }

  def loader(self, plan: packing.Plan) -> pipeline.RowLoader:
    """A loader of a plan's batches; it makes this process's rows of them."""
    store, vocabulary = self.dataset.train, self.dataset.vocabulary
    return pipeline.make_loader(self.config, store, vocabulary, plan=plan, **self.shape)


def prepare(config: ConfigDict, folder: pathlib.Path) -> Run:
  """Prepares the dataset, the plans, the recipe, the model and the optimizer."""
  head = pipeline.TASK_HEADS[config.data.task]
  # A run that has checkpoints continues from its own weights.
  stored = None if weights.steps(folder) else init_from.open_weights(config, head=head)

  dataset = processes.on_first_then_others(lambda: pipeline.prepare_dataset(config))
  processes.on_first(lambda: workdir.check_dataset(folder, dataset.manifest["sha256"]))
  plans = kept_plans(config, folder, dataset)
  plan = plans["train"]
  processes.print_on_first(
    f"{plan.num_sequences:,} sequences in {plan.num_packs:,} packs of {plan.row_length} "
    f"tokens: packing factor {plan.packing_factor:.3f}, efficiency {plan.efficiency:.2%}, "
    f"at most {plan.packing_depth} sequences a pack\n"
  )
  has_stream = bool(config.data.stream)
  if has_stream:
    processes.print_on_first(
      f"These figures are of a sample. Training reads {config.data.stream}, each document "
      "once, so there are no epochs.\n"
    )

  mesh = make_mesh(fsdp=config.train.fsdp)
  processes.connect(mesh)
  unpacked_recipe, recipe = resolve(
    config,
    packing_factor=plan.packing_factor,
    num_sequences=None if has_stream else plan.num_sequences,
    num_tokens=None if has_stream else plan.histogram.num_tokens,
    num_devices=mesh.size,
    typed=command.typed_fields(),
  )
  processes.print_on_first(f"{table(unpacked_recipe, recipe)}\n")

  if stored:
    if stored.step:
      processes.print_on_first(f"starting from step {stored.step} of {stored.directory}\n")
    init_from.check_vocabulary(stored, dataset.vocabulary)
  model_config = init_from.run_model_config(
    config,
    workdir=folder,
    vocab_size=len(dataset.vocabulary),
    stored=stored,
    head=head,
    labels=dataset.labels,
  )
  begun = weights.read_description(folder).config if weights.steps(folder) else None
  computed = computation.of_run(config, model_config, begun=begun)
  computed.check_all_processes()
  model_config = computed.config
  flags = f"; XLA_FLAGS has {flags_added}" if flags_added else ""
  processes.print_on_first(f"{computed}{flags}\n")
  params = None
  if stored:
    params = functools.partial(
      init_from.initial_params,
      stored,
      model_config,
      head=head,
      labels=dataset.labels,
      seed=config.seed,
    )
  program = TrainingProgram(
    model_config,
    make_optimizer(config, recipe),
    mesh=mesh,
    seed=config.seed,
    head=head,
    loss_unit=config.train.loss_unit,
    accumulate=recipe.accumulation,
    skip_bad_steps=config.train.skip_bad_steps > 0,
  )
  return Run(
    config=config,
    folder=folder,
    dataset=dataset,
    plans=plans,
    unpacked_recipe=unpacked_recipe,
    recipe=recipe,
    program=program,
    computation=computed,
    params=params,
    compilations=CompilationCounter(),
  )


def attended_pairs(
  config: ConfigDict, sizes: ModelConfig, plan: packing.Plan, *, rows: int
) -> int | None:
  """Pairs of tokens that attention computes in a step, on average, over all layers.

  In local layers, these are the pairs within the window.

  Returns:
    None if attention computes all pairs of a row, not only those within sequences.
  """
  skips = sizes.attention_impl in SKIPPING
  if not skips or config.model.attention_mask == "none" or config.data.layout != "packed":
    return None
  lengths = [np.array(strategy) for strategy in plan.strategies]

  def of_a_row(window: int | None) -> float:
    if window is not None and not is_local(sizes.attention_impl):
      return window_pairs(plan.row_length, window)  # xla computes this layer
    each = [pairs_within(x, window).sum() for x in lengths]
    return float(np.average(each, weights=plan.repeat_counts))

  return round(rows * sum(of_a_row(sizes.window_of(i)) for i in range(sizes.num_layers)))


def kept_plans(
  config: ConfigDict, folder: pathlib.Path, dataset: pipeline.PreparedDataset
) -> dict[str, packing.Plan]:
  """The plans in the run's folder: process 0 makes them once, all processes read them."""

  def keep():
    pipeline.keep_plans(config, dataset, folder, begun=workdir.has_begun(folder))

  processes.on_first(keep)
  plans = pipeline.read_plans(config, dataset, folder)
  digests = {name: pipeline.plan_sha256(plan) for name, plan in plans.items()}
  if digests != processes.on_first(lambda: digests):
    raise command.Stopped(
      f"The plans that this process reads in {folder} differ from those of process 0. Give "
      "all processes the same folder as --workdir."
    )
  return plans


# ------------------------------------------------------------------------ the training


def train(run: Run, checkpoints: Checkpoints, tracked: trackers.Trackers) -> dict[str, Any]:
  """Trains until the last step, or until the evaluations end the run.

  Returns:
    Figures for the summary: the peak rate of the devices, the seconds of training, and
    figures of the last state, which is not kept.
  """
  config, program, steps = run.config, run.program, run.recipe.steps
  peak = peak_of(jax.devices(), dtype=program.config.dtype.name)
  held_out = pipeline.make_held_out(
    config,
    run.dataset,
    plans=run.plans,
    process_index=jax.process_index(),
    process_count=jax.process_count(),
  )
  rates = np.asarray(jax.jit(jax.vmap(make_schedule(config, run.recipe)))(np.arange(steps)))
  shape = {"rows": run.recipe.rows, "row_length": run.plan.row_length}
  flops = training_flops(
    program.config,
    **shape,
    mlm_slots=run.loader(run.plan).max_masked,
    max_sequences=run.plan.packing_depth,
    head=program.head,
    pairs=attended_pairs(config, program.config, run.plan, rows=run.recipe.rows),
  )
  made = pipeline.make_batches(config, run.dataset, plan=run.plan, **run.shape)
  with contextlib.closing(made) as batches:
    state, step, saved = begin(run, checkpoints, batches)
    with (
      recording(
        run.folder,
        config,
        learning_rates=rates,
        flops_per_step=flops,
        peak_flops=peak.flops,
        first_step=step,
        saved=saved,
        trackers=tracked,
        **shape,
      ) as record,
      Profile(run.folder, first_step=step, steps=_PROFILE.value) as profile,
      signals.deferred(),
    ):

      def save():
        record.check()
        resumable = {"config": config.to_dict(), **record.state()}
        with record.meter.paused():
          best = verdict.best_step if config.train.keep_best else None
          resumable |= {"input": batches.get_state()}
          checkpoints.save(step, state, resumable, best)

      verdict = judge_run(run, record.log.evaluations)
      saved_step, stopping = step, False
      while step < steps and not verdict.ended:
        step += 1
        profile.before(step)
        with record.meter.waiting_for("input"):
          batch = next(batches, None)
          if batch is None:  # a stream ended
            step -= 1
            break
          on_devices = put_batch(batch, program.mesh)
        with record.meter.waiting_for("compute"):  # on a CPU, this may run the step at once
          state, values = program.train_step(state, on_devices)
        signals.compiled = True
        record.end(step, batch["sequence_ids"], values)
        last, stopping = step == steps, processes.asked_to_stop(step)

        if step % config.train.log_every == 0 or last:
          record.line(step, compilations=run.compilations.count(program.train_step_name))
        if step % config.train.eval_every == 0 or last:
          with record.meter.paused():
            result = evaluate(
              program,
              state["params"],
              held_out,
              unigram_token=run.dataset.manifest["most_frequent_token"],
            )
          record.evaluation(step, result)
          verdict = judge_run(run, record.log.evaluations)
        ending = last or stopping or verdict.ended
        is_best = config.train.keep_best and step == verdict.best_step
        if step % config.train.checkpoint_every == 0 or ending or is_best:
          save()
          saved_step = step
        if stopping:
          break
      ended_early = step < steps and not verdict.ended
      if ended_early and step > saved_step:  # the stream ended
        save()
      checkpoints.wait()
      if ended_early or stopping:
        raise interrupted(run, step)
    figures = {"peak_flops": peak.flops, "peak_flops_source": peak.source}
    figures["seconds"] = record.log.last_train_line["seconds"]
    return figures | figures_of(state, program)


def figures_of(state: State, program: TrainingProgram) -> dict[str, Any]:
  """Figures of the last state, for the summary."""
  params = gather(state["params"], program.mesh)
  return {
    "steps": int(state["step"]),
    "skipped_steps": int(state["skipped"]),
    "parameters": count_parameters(params),
    "parameters_digest": processes.on_first(functools.partial(parameters_digest, params)),
  }


def interrupted(run: Run, step: int) -> Exception:
  """Why training ends before its last step, and how it resumes."""
  saved = f"saved step {step} of {run.recipe.steps} in {run.folder}"
  saved = saved if step else "nothing is saved yet"
  if signals.heard is not None or not run.config.data.stream:
    return command.Terminated(
      f"Asked to stop: {saved}. Run the same command again to resume."
    )
  return command.Stopped(
    f"{run.config.data.stream} ended: {saved}. Give fewer steps, or a longer stream."
  )


def judge_run(run: Run, evaluations: list[dict]) -> Verdict:
  """The verdict of process 0, so that all processes save and stop at the same step."""
  verdict = functools.partial(
    judge,
    evaluations,
    metric=metric_of(run.program.head),
    target=run.config.train.target_mlm_accuracy,
    patience=run.config.train.patience,
  )
  return Verdict(*processes.on_first(verdict))


def begin(
  run: Run, checkpoints: Checkpoints, batches: BatchIterator | pipeline.OnlineBatches
) -> tuple[State, int, dict[str, Any]]:
  """Resumes from the newest checkpoint, if any; sets the batches to its position.

  Returns:
    The state, its step, and what else the checkpoint holds.
  """
  restored = checkpoints.restore_newest(
    run.program.abstract_state(), optimizer=run.config.optimizer.to_dict()
  )
  # Read here, so that no copy of the parameters remains during training.
  params = run.params() if run.params and restored is None else None
  processes.print_on_first("compiling ...")
  if restored is None:
    start: tuple[State, int, dict] = run.program.init(params), 0, {}
  else:
    check_resumable(run, restored.step, restored.run["input"])
    try:
      batches.set_state(restored.run["input"])
    except packing.InputError as error:
      source = run.config.data.stream or run.folder / "plans" / "train.json"
      raise ConfigError(
        f"{source} does not fit the checkpoint of step {restored.step}. {error} Or give "
        "another --workdir."
      ) from error
    processes.print_on_first(f"resuming from step {restored.step}")
    start = restored.state, restored.step, restored.run
  processes.on_first(lambda: describe(run))
  return start


def check_resumable(run: Run, step: int, position: dict):
  """Refuses a config whose steps or rows do not fit the checkpoint's."""
  if position["batch_size"] != run.recipe.rows:
    raise ConfigError(
      f"The config comes to {run.recipe.rows} rows a step; the run in {run.folder} was "
      f"started with {position['batch_size']}, the unit of its position in the data. Keep "
      "train.batch_size, train.micro_batch_size, packing and the number of devices as they "
      "were, or give another --workdir."
    )
  if step > run.recipe.steps:
    raise ConfigError(
      f"The config comes to {run.recipe.steps} steps; the run in {run.folder} has made "
      f"{step}. Give more with --config.train.steps, or give another --workdir."
    )


def describe(run: Run):
  """Writes what the run is made from, and a description of its model."""
  workdir.record(run.folder, run.config, run.dataset.manifest["sha256"])
  weights.describe(
    run.folder,
    run.computation.to_keep,
    head=run.program.head,
    vocabulary=weights.Vocabulary(
      tuple(run.dataset.vocabulary), by_json=run.dataset.tokenizer.by_json
    ),
    labels=run.dataset.labels,
  )
  if run.dataset.tokenizer.by_json:  # predict.py splits text by it
    write_text(run.folder / TOKENIZER_FILE, run.dataset.tokenizer.definition)


# --------------------------------------------------------------------------- the report


def finish(run: Run, figures: dict[str, Any]):
  """Measures the speed-up of packing, and writes the summary and the pictures.

  Args:
    run: the finished run; its state has been freed, since measuring needs a new one.
    figures: from `train`.
  """
  config, plan, program = run.config, run.plan, run.program
  summary = dict(figures)
  steps = summary.pop("steps")
  unpacked_plan = pipeline.make_plan(config, run.dataset.train, algorithm="none")
  loader, unpacked = run.loader(plan), run.loader(unpacked_plan)
  if rounds := config.train.throughput_rounds:
    at_most = summary["seconds"] / 10
    processes.print_on_first(
      f"timing packed against unpacked: at most {rounds} steps of each, {at_most:.1f} s ..."
    )
    with (
      contextlib.closing(loader.iterate()) as packs,
      contextlib.closing(unpacked.iterate()) as padded,
    ):
      summary |= packed_against_unpacked(
        program, packs, padded, rounds=rounds, at_most=at_most
      )
  summary |= {
    "task": config.data.task,
    "dtype": program.config.dtype.name,
    "attention_impl": program.config.attention_impl,
    "computation": str(run.computation),
    "recipe": {"unpacked": run.unpacked_recipe.as_dict(), "packed": run.recipe.as_dict()},
    "stream": config.data.stream,
    "epochs": None if config.data.stream else steps / loader.batches_per_epoch,
    "packs": plan.num_packs,
    "plan_sha256": pipeline.plan_sha256(plan),
    "packing_factor": plan.packing_factor,
    "efficiency": plan.efficiency,
    "packing_depth": plan.packing_depth,
    "padding_tokens": plan.num_padding_tokens,
    "unpacked_padding_tokens": unpacked_plan.num_padding_tokens,
    "sequences": plan.num_sequences,
    "target_mlm_accuracy": config.train.target_mlm_accuracy,
    "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
    "processes": jax.process_count(),
    "jax": jax.__version__,
    "xla_flags": os.environ.get("XLA_FLAGS", ""),
  }
  is_regression = program.head == "sequence_classification" and not run.dataset.labels
  results = processes.on_first(
    lambda: report.write(
      run.folder,
      summary,
      head=program.head,
      lengths=run.dataset.train.lengths,
      segment_ids=loader.first_rows(plots.PACKS_SHOWN),
      loss_name="squared error" if is_regression else "loss in nats",
    )
  )
  processes.print_on_first(f"\n{results}\n\nwritten to {run.folder}: summary.json, plots/")


if __name__ == "__main__":
  mistakes = packing.InputError, ConfigError, AttentionError, weights.WeightsError
  command.run(main, mistakes=mistakes)
