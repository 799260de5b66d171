"""Trains a packed BERT, on masked text or on a task, or a packed GPT-2 on text.

  python train.py --config=configs/quickstart.py --workdir=runs/quickstart
  python train.py --config=configs/glue.py:cola --workdir=runs/cola \\
      --config.model.init_from=runs/quickstart

Any field of the config can be set on the command line, such as
--config.train.duration='2 epochs'. The unpacked baseline is
--config.packing.algorithm=none; the paper's ablations are
--config.model.attention_mask=none and --config.model.position_reset=False. Run again on
the same folder, training goes on where it stopped; on Ctrl-C or SIGTERM it ends the step,
saves and leaves, with status 130 or 143. Several processes run the same command, each with
--coordinator=HOST:PORT --processes=N --process=I.
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
import sys
from typing import Any

from training.stopping import signals

if __name__ == "__main__":  # not in processes that make batches, which import this too
  signals.listen()
  print("train.py: loading JAX and other libraries ...", file=sys.stderr, flush=True)
if not sys.stderr.isatty():  # in a log, a progress bar is a new line at each change
  os.environ.setdefault("TQDM_MININTERVAL", "15")

import jax
import numpy as np
from absl import flags
from ml_collections import ConfigDict, config_flags

import packing
import pipeline
from model import weights
from pipeline.batches.loader import BatchIterator
from training import command, init_from, plots, processes
from training.checkpoint import Checkpoints
from training.config import ConfigError, make_optimizer, make_schedule, validate
from training.evaluation import evaluate
from training.mesh import gather, make_mesh, put_batch
from training.recipe import Recipe, resolve, table
from training.record import files, report, workdir
from training.record.compilations import CompilationCounter
from training.record.flops import Peak, peak_of, training_flops
from training.record.metrics import Meter, MetricsLog
from training.record.parameters import count_parameters, parameters_digest
from training.record.profiling import Profile
from training.record.progress import Progress
from training.record.throughput import packed_against_unpacked
from training.record.watch import Watch
from training.step import State, TrainingProgram

_CONFIG = config_flags.DEFINE_config_file(
  "config", help_string="A config file, such as configs/quickstart.py.", lock_config=True
)
_WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.", required=True)
_ALLOW_CHANGED_CONFIG = flags.DEFINE_bool(
  "allow_changed_config", False, "Go on with another config than the run was begun with."
)
flags.mark_flag_as_required("config")


@dataclasses.dataclass(frozen=True)
class Run:
  """What a run is made of."""

  config: ConfigDict
  folder: pathlib.Path
  dataset: pipeline.PreparedDataset
  plans: dict[str, packing.Plan]
  unpacked_recipe: Recipe
  recipe: Recipe
  program: TrainingProgram
  params: Any  # to start from; None to draw them
  peak: Peak
  compilations: CompilationCounter

  @property
  def plan(self) -> packing.Plan:
    """Of the training sequences."""
    return self.plans["train"]

  def loader(self, store=None, *, plan=None, batch_size=None) -> pipeline.RowLoader:
    """Of the training sequences, if not of others; of this process's rows."""
    return pipeline.make_loader(
      self.config,
      self.dataset.train if store is None else store,
      self.dataset.vocabulary,
      plan=plan,
      batch_size=batch_size,
      process_index=jax.process_index(),
      process_count=jax.process_count(),
    )


def main():
  config, folder = _CONFIG.value, pathlib.Path(_WORKDIR.value)
  signals.kept = functools.partial(kept, folder)
  processes.start()
  validate(
    config,
    algorithms=list(packing.ALGORITHMS),
    tasks=pipeline.TASK_HEADS,
    num_devices=jax.device_count(),
    typed=command.typed_fields(),
  )
  changed = processes.first(
    lambda: workdir.check(folder, config, allow_changes=_ALLOW_CHANGED_CONFIG.value)
  )
  if not changed and (told := processes.first(lambda: outcome(folder))):
    processes.tell(
      f"{folder} is finished. To start another run, give another --workdir. To extend "
      f"this one, give more steps and --allow_changed_config.\n\n{told}"
    )
    return
  with contextlib.ExitStack() as held:
    processes.first(lambda: held.enter_context(workdir.claimed(folder)))
    checkpoints = held.enter_context(
      Checkpoints(
        folder, keep=config.train.keep_checkpoints, keep_every=config.train.keep_every
      )
    )
    run = prepare(config, folder)
    finish(run, *train(run, checkpoints))


def outcome(folder: pathlib.Path) -> str | None:
  """What a run that is finished came to; None of one that is not."""
  summary = workdir.read_summary(folder)
  try:
    return None if summary is None else report.summary_table(summary)
  except (KeyError, TypeError, ValueError) as error:
    damaged = f"WARNING: {folder / 'summary.json'} is damaged ({error!r})"
    print(f"{damaged}; it will be written again.", file=sys.stderr, flush=True)
    return None


def kept(folder: pathlib.Path) -> str:
  """What the same command begins with, for someone who stopped it."""
  if steps := weights.steps(folder):
    return f"Run the same command again to go on from step {max(steps)}."
  return "No checkpoint is saved yet: the same command starts from the beginning."


def prepare(config: ConfigDict, folder: pathlib.Path) -> Run:
  """Text to sequences, sequences to packs, and the model and the optimizer for them."""
  if config.train.compilation_cache:
    jax.config.update("jax_compilation_cache_dir", config.train.compilation_cache)
  # What a run was begun with is in its checkpoints.
  head = pipeline.TASK_HEADS[config.data.task]
  given = None if weights.steps(folder) else init_from.open_weights(config, head=head)
  dataset = processes.first_then_all(lambda: pipeline.prepare_dataset(config))
  processes.first(lambda: workdir.check_dataset(folder, dataset.manifest["sha256"]))
  plans = kept_plans(config, folder, dataset)
  plan = plans["train"]
  processes.tell(
    f"{plan.num_sequences:,} sequences in {plan.num_packs:,} packs of {plan.row_length} "
    f"tokens: packing factor {plan.packing_factor:.3f}, efficiency {plan.efficiency:.2%}, "
    f"at most {plan.packing_depth} sequences a pack\n"
  )
  mesh = make_mesh(fsdp=config.train.fsdp)
  processes.connect(mesh)
  unpacked_recipe, recipe = resolve(
    config,
    packing_factor=plan.packing_factor,
    num_sequences=plan.num_sequences,
    num_tokens=plan.histogram.num_tokens,
    num_devices=mesh.size,
    typed=command.typed_fields(),
  )
  processes.tell(f"{table(unpacked_recipe, recipe)}\n")
  if given:
    init_from.check_vocabulary(given, dataset.vocabulary)
  model_config = init_from.model_config(
    config,
    workdir=folder,
    vocab_size=len(dataset.vocabulary),
    given=given,
    head=head,
    labels=dataset.labels,
  )
  params = given and init_from.initial_params(
    given, model_config, head=head, labels=dataset.labels, seed=config.seed
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
    config,
    folder,
    dataset,
    plans,
    unpacked_recipe,
    recipe,
    program,
    params,
    peak_of(jax.devices(), dtype=config.model.dtype, given=config.train.peak_flops),
    CompilationCounter(),
  )


def kept_plans(
  config: ConfigDict, folder: pathlib.Path, dataset: pipeline.PreparedDataset
) -> dict[str, packing.Plan]:
  """Made once, by the first process; read by all of them, now and at every later start."""

  def keep():
    begun = workdir.has_begun(folder)
    if (made := pipeline.keep_plans(config, dataset, folder, begun=begun)) and begun:
      print(
        f"WARNING: {', '.join(made)}: an earlier version kept no plan, so it was made "
        "again. If that version packed otherwise, rows differ from here on.",
        file=sys.stderr,
        flush=True,
      )

  processes.first(keep)
  plans = pipeline.read_plans(config, dataset, folder)
  digests = {name: pipeline.plan_sha256(plan) for name, plan in plans.items()}
  if digests != processes.first(lambda: digests):
    raise command.Stopped(
      f"This process reads other plans in {folder} than process 0. Give all processes the "
      "same folder as --workdir."
    )
  return plans


def begin(
  run: Run, checkpoints: Checkpoints, batches: BatchIterator
) -> tuple[State, int, dict[str, Any]]:
  """The state and the step to resume from; the batches are moved there.

  Also what the checkpoint holds of the run besides.
  """
  restored = checkpoints.restore_newest(run.program.abstract_state())
  if restored:
    position = restored.run["input"]
    if position["batch_size"] != run.recipe.rows:
      raise ConfigError(
        f"The config comes to {run.recipe.rows} rows a step; the run in {run.folder} was "
        f"begun with {position['batch_size']}, which its position in the data counts. Keep "
        "train.batch_size, train.micro_batch_size and packing as they were, on as many "
        "devices, or give another --workdir."
      )
    if restored.step > run.recipe.steps:
      raise ConfigError(
        f"The config comes to {run.recipe.steps} steps; the run in {run.folder} has made "
        f"{restored.step}. Give more with --config.train.steps, or another --workdir."
      )
    try:
      batches.set_state(position)
    except packing.InputError as error:
      raise ConfigError(
        f"{run.folder / 'plans' / 'train.json'} is not what the checkpoint of step "
        f"{restored.step} was saved with. {error} Or give another --workdir."
      ) from error
    processes.tell(f"going on from step {restored.step}")
    found = restored.state, restored.step, restored.run
  else:
    found = run.program.init(run.params), 0, {}
  processes.first(functools.partial(record, run))
  return found


def record(run: Run):
  """Writes down what the run, and the parameters in its checkpoints, are made from."""
  workdir.record(run.folder, run.config, run.dataset.manifest["sha256"])
  weights.describe(
    run.folder,
    run.program.config,
    head=run.program.head,
    vocabulary=weights.Vocabulary(tuple(run.dataset.vocabulary)),
    labels=run.dataset.labels,
  )


def train(run: Run, checkpoints: Checkpoints) -> tuple[State, int]:
  """From the newest checkpoint to the last step, or to where the config ends it.

  Returns:
    The state, and how many lines `metrics.jsonl` lacks.
  """
  config, program, row_length = run.config, run.program, run.plan.row_length
  steps, rows = run.recipe.steps, run.recipe.rows
  processes.tell("compiling ...")
  rates = np.asarray(jax.jit(jax.vmap(make_schedule(run.recipe)))(np.arange(steps)))
  loader = run.loader(plan=run.plan, batch_size=rows)
  held_out = pipeline.make_held_out(
    config,
    run.dataset,
    plans=run.plans,
    process_index=jax.process_index(),
    process_count=jax.process_count(),
  )
  flops = training_flops(
    program.config,
    rows=rows,
    row_length=row_length,
    mlm_slots=loader.max_masked,
    max_sequences=run.plan.packing_depth,
    head=program.head,
  )
  with contextlib.closing(loader.iterate()) as batches:
    state, step, saved = begin(run, checkpoints, batches)
    with (
      MetricsLog(run.folder, first_step=step, state=saved.get("log")) as log,
      Progress("training", total=steps, done=step) as progress,
      Profile(run.folder, first_step=step, steps=config.profile) as profile,
      signals.deferred(),
    ):
      meter = Meter(
        log.last_train_line,
        packs=rows,
        tokens=rows * row_length,
        flops_per_step=flops,
        peak_flops=run.peak.flops,
        window=config.train.log_every,
        state=saved.get("meter"),
      )
      watch = Watch(run.folder, skips=config.train.skip_bad_steps)
      checkpoints.best, ended = judge(run, log.evaluations)
      while step < steps and not ended:
        step += 1
        profile.before(step)
        with meter.waiting_for("input"):
          batch = next(batches)
          on_devices = put_batch(batch, program.mesh)
        with meter.waiting_for("compute"):  # a CPU may run the step before it returns
          state, values = program.train_step(state, on_devices)
        meter.add(values)
        watch.add(step, batch["sequence_ids"], values)
        with meter.waiting_for("compute"):
          watch.check(but=1)  # the step before: this one is under way
        progress.update()
        stopping = processes.asked_to_stop(step)
        logging = step % config.train.log_every == 0 or step == steps
        if logging or stopping:
          with meter.waiting_for("compute"):
            watch.check()
        if logging:
          line = meter.line(compilations=run.compilations.count(program.train_step_name))
          line["learning_rate"] = float(rates[step - int(line["skipped"]) - 1])
          log.train(step, line)
          progress.line(step, line)
        if step % config.train.eval_every == 0 or step == steps:
          with meter.paused():
            found = evaluate(
              program,
              state["params"],
              held_out,
              unigram_token=run.dataset.manifest["most_frequent_token"],
            )
          watch.check_evaluation(step, report.sum_of_losses(found))
          trained = {"seconds": line["seconds"], "sequences_trained": line["sequences"]}
          log.evaluation(step, found | trained)
          checkpoints.best, ended = judge(run, log.evaluations)
        ending = step in (steps, checkpoints.best) or ended or stopping
        if step % config.train.checkpoint_every == 0 or ending:
          measured = meter.state()
          with meter.paused():
            position = {"input": batches.get_state(), "config": config.to_dict()}
            position |= {"log": log.get_state(), "meter": measured}
            checkpoints.save(step, state, position)
        if stopping:
          checkpoints.wait()
          raise command.Terminated(
            f"Asked to stop: saved step {step} of {steps} in {run.folder}. Run the same "
            "command again to go on."
          )
      checkpoints.wait()
  return state, log.missing


def judge(run: Run, evaluations: list[dict]) -> tuple[int | None, bool]:
  """`best_step` and `has_ended`, as the first process finds them.

  All processes save and stop together, so a last bit must not part them.
  """
  best, ended = processes.first(
    lambda: (best_step(run, evaluations), has_ended(run, evaluations))
  )
  return best, ended


def best_step(run: Run, evaluations: list[dict]) -> int | None:
  """The step whose checkpoint is kept for its evaluation, if the config asks for it."""
  best = report.best_of(evaluations, metric=report.metric_of(run.program.head))
  return best["step"] if best and run.config.train.keep_best else None


def has_ended(run: Run, evaluations: list[dict]) -> bool:
  """Whether the run reached its target, or gets no better."""
  return target_reached(run, evaluations) is not None or report.out_of_patience(
    evaluations,
    metric=report.metric_of(run.program.head),
    patience=run.config.train.patience,
  )


def target_reached(run: Run, evaluations: list[dict]) -> dict[str, float] | None:
  """Where the run reached its target, if it has one and did."""
  target = run.config.train.target_mlm_accuracy
  return report.target_reached(evaluations, target=target) if target else None


def finish(run: Run, state: State, missing_lines: int):
  """Figures, pictures and the summary."""
  config, plan, program = run.config, run.plan, run.program
  params = gather(state["params"], program.mesh)
  found = {
    "skipped_steps": int(state["skipped"]),
    "missing_lines": missing_lines,
    "parameters": count_parameters(params),
    "parameters_digest": processes.first(functools.partial(parameters_digest, params)),
  }
  del state, params
  unpacked_plan = pipeline.make_plan(config, run.dataset.train, algorithm="none")
  loader = run.loader(plan=plan, batch_size=run.recipe.rows)
  unpacked = run.loader(plan=unpacked_plan, batch_size=run.recipe.rows)
  if config.train.throughput_rounds:
    with (
      contextlib.closing(loader.iterate()) as packs,
      contextlib.closing(unpacked.iterate()) as padded,
    ):
      found |= packed_against_unpacked(
        program, packs, padded, rounds=config.train.throughput_rounds
      )
  processes.first(lambda: write_report(run, loader, unpacked_plan, found))


def write_report(
  run: Run, loader: pipeline.RowLoader, unpacked_plan: packing.Plan, found: dict
):
  """`summary.json` and the pictures, from the lines of the run and what was found."""
  folder, plan, metric = run.folder, run.plan, report.metric_of(run.program.head)
  train_lines = files.read_json_lines(folder / "metrics.jsonl")
  eval_lines = files.read_json_lines(folder / "eval.jsonl")
  summary = report.run_summary(train_lines, eval_lines, metric=metric) | {
    "task": run.config.data.task,
    "recipe": {"unpacked": run.unpacked_recipe.as_dict(), "packed": run.recipe.as_dict()},
    "epochs": train_lines[-1]["step"] / loader.batches_per_epoch,
    "packs": plan.num_packs,
    "plan_sha256": pipeline.plan_sha256(plan),
    "packing_factor": plan.packing_factor,
    "efficiency": plan.efficiency,
    "packing_depth": plan.packing_depth,
    "padding_tokens": plan.num_padding_tokens,
    "unpacked_padding_tokens": unpacked_plan.num_padding_tokens,
    "sequences": plan.num_sequences,
    "target_mlm_accuracy": run.config.train.target_mlm_accuracy,
    **(target_reached(run, eval_lines) or {}),
    "peak_flops": run.peak.flops,
    "peak_flops_source": run.peak.source,
    "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
    "processes": jax.process_count(),
    "jax": jax.__version__,
    "xla_flags": os.environ.get("XLA_FLAGS", ""),
    **found,
  }
  plots.plot_packing(
    folder / "plots" / "packing.png",
    run.dataset.train.lengths,
    loader.first_rows(plots.PACKS_SHOWN),
    efficiency=plan.efficiency,
  )
  curve = folder / "plots" / "learning_curve.png"
  is_regression = run.program.head == "sequence_classification" and not run.dataset.labels
  plots.plot_learning_curve(
    curve,
    train_lines,
    eval_lines,
    metric=metric,
    loss="squared error" if is_regression else "loss in nats",
  )
  files.write_json(folder / "summary.json", summary)
  print(f"\n{report.summary_table(summary)}\n\nwritten to {folder}: summary.json, plots/")


if __name__ == "__main__":
  command.run(main, mistakes=(packing.InputError, ConfigError, weights.WeightsError))
