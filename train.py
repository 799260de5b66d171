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
import functools
import os
import pathlib
import sys
from typing import Any

from training import compiler, memory
from training.stopping import Verdict, signals

memory.one_pool()
flags_added = compiler.set_flags()
if __name__ == "__main__":
  signals.listen()
  print("train.py: loading JAX and other libraries ...", file=sys.stderr, flush=True)
if not sys.stderr.isatty():  # in a log, each update of a progress bar is a new line
  os.environ.setdefault("TQDM_MININTERVAL", "15")

import jax
from absl import flags
from ml_collections import config_flags

from launch import command, summary, workdir
from launch.data import check_data
from launch.door import settings_of_flags
from launch.machine import check_machine
from launch.prepare_run import TrainingRun, prepare_run
from launch.recipe.adjustment import learning_rates, make_optimizer
from launch.record import report, trackers
from launch.record.compilations import CompilationCounter
from launch.record.parameters import count_parameters, parameters_digest
from launch.record.recorder import Profile, Recorder
from model import weights
from training import processes
from training.checkpoint import Checkpoints
from training.evaluation import evaluate
from training.mesh import gather
from training.step import State, TrainingProgram

config_flags.DEFINE_config_file(
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


# --------------------------------------------------------------------------------- the run


def main():
  settings, folder = settings_of_flags(), pathlib.Path(_WORKDIR.value)
  signals.resume_hint = functools.partial(resume_hint, folder)
  memory.keep()
  compiler.keep_programs()
  processes.start()
  check_machine(settings, num_devices=jax.device_count())
  check_data(settings.data)
  allow_changes = _ALLOW_CHANGED_CONFIG.value
  changed = processes.on_first(
    lambda: workdir.check_folder(folder, settings.given, allow_changes=allow_changes)
  )
  if not changed and (results := processes.on_first(lambda: report.finished(folder))):
    processes.print_on_first(
      f"The run in {folder} is finished. To start another run, give another --workdir. To "
      "extend this one, give --allow_changed_config and more steps, or another value of "
      f"the field that ended it early.\n\n{results}"
    )
    return
  with contextlib.ExitStack() as held:
    processes.on_first(lambda: held.enter_context(workdir.claimed(folder)))
    tracked = held.enter_context(trackers.opened(folder, settings))
    checkpoints = held.enter_context(
      Checkpoints(folder, keep=settings.train.keep_checkpoints)
    )
    run = prepare_run(settings, folder)
    added = f"; XLA_FLAGS has {flags_added}" if flags_added else ""
    processes.print_on_first(f"{run.computation}{added}\n")
    program = make_program(run)
    summary.finish(run, program, train(run, program, checkpoints, tracked))


def resume_hint(folder: pathlib.Path) -> str:
  """A sentence that says where the same command would resume."""
  if steps := weights.steps(folder):
    return f"Run the same command again to resume from step {max(steps)}."
  return "No checkpoint is saved yet: the same command starts from the beginning."


# -------------------------------------------------------------------------------- the step


def make_program(run: TrainingRun) -> TrainingProgram:
  """The compiled step of [B, S] rows, which `training.step` has in full.

  logits    of masked tokens, of each sequence, or of each next token, by the task's head;
            of pairs, a vector for each text
  loss      cross-entropy, or a regression's squared error, summed over sequences, tokens
            or packs (`loss_unit`), divided by their number in the whole batch: by
            default, a pack counts as its sequences would alone; of pairs, that of
            choosing each anchor's positive among all of the step
  gradient  summed over micro-batches and devices, then scaled down to `clip_norm`
  update    LAMB: Adam's direction plus weight decay, scaled by norm(parameter) /
            norm(update) for each tensor; or AdamW, or SGD with momentum
  rate      rises linearly, then falls; for packed rows, the recipe adjusts it or the
            betas, as `packing.adjust` says
  state     parameters, moments, step and dropout key; a step that is not finite ends the
            run
  """
  settings = run.settings
  return TrainingProgram(
    run.model,
    make_optimizer(settings.optimizer, run.recipe),
    mesh=run.mesh,
    seed=settings.seed,
    head=run.head,
    loss_unit=settings.train.loss_unit,
    pair_loss=run.pair_loss(),
    accumulate=run.recipe.accumulation,
  )


# -------------------------------------------------------------- the start, or a checkpoint


def begin(
  run: TrainingRun, program: TrainingProgram, checkpoints: Checkpoints, batches
) -> tuple[State, int, dict[str, Any]]:
  """Resumes from the newest checkpoint, if any; sets the batches to its position.

  Returns:
    The state, its step, and what else the checkpoint holds.
  """
  restored = checkpoints.restore_newest(program.abstract_state())
  # Read here, so that no copy of the parameters remains during training.
  params = run.initial_params() if restored is None else None
  processes.print_on_first("compiling ...")
  if restored is None:
    start: tuple[State, int, dict] = program.init(params), 0, {}
  else:
    position = restored.run["input"]
    if restored.parts:
      position |= {"of_parts": restored.parts}
    run.resume(batches, restored.step, position)
    processes.print_on_first(f"resuming from step {restored.step}")
    start = restored.state, restored.step, restored.run
  run.say_how_read(batches)
  processes.on_first(run.describe)
  return start


# -------------------------------------------------------------------------------- the loop


def train(
  run: TrainingRun,
  program: TrainingProgram,
  checkpoints: Checkpoints,
  tracked: trackers.Trackers,
) -> dict[str, Any]:
  """Trains until the last step, or until the evaluations end the run.

  Returns:
    Figures for the summary: the peak rate of the devices, the seconds of training, and
    figures of the last state, which is not kept.
  """
  options, steps = run.settings.train, run.recipe.steps
  compilations = CompilationCounter()
  cost, held_out = run.cost(), run.held_out()
  unigram_token = run.dataset.manifest["most_frequent_token"]
  with contextlib.closing(run.batches()) as batches:
    state, step, saved = begin(run, program, checkpoints, batches)
    with (
      Recorder(
        run.folder,
        learning_rates=learning_rates(run.settings.optimizer, run.recipe),
        cost=cost,
        first_step=step,
        saved=saved,
        trackers=tracked,
      ) as record,
      Profile(run.folder, first_step=step, steps=_PROFILE.value) as profile,
      signals.deferred(),
    ):
      verdict = run.verdict(record.log.evaluations)
      saved_step, stopping = step, False

      def log():
        record.line(step, compilations=compilations.count(program.train_step_name))

      def save():
        record.check()
        resumable = record.state()
        with record.meter.paused():
          best = verdict.best_step if options.keep_best else None
          position: dict[str, Any] = {**batches.get_state()}
          of_parts = position.pop("of_parts", None)  # differs between processes
          checkpoints.save(step, state, resumable | {"input": position}, best, of_parts)

      def evaluated() -> Verdict:
        with record.meter.paused():
          result = evaluate(program, state["params"], held_out, unigram_token=unigram_token)
        record.evaluation(step, result)
        return run.verdict(record.log.evaluations)

      # A changed config may end a run at a step that was not evaluated.
      is_at_end = step == steps or verdict.ended
      if is_at_end and [line["step"] for line in record.log.evaluations[-1:]] != [step]:
        verdict = evaluated()
        save()

      while step < steps and not verdict.ended:
        step += 1
        profile.before(step)
        with record.meter.waiting_for("input"):
          batch = next(batches, None)
          if batch is None:  # a stream ended
            step -= 1
            break
          on_devices = program.put_batch(batch)
        with record.meter.waiting_for("compute"):  # on a CPU, this may run the step at once
          state, values = program.train_step(state, on_devices)
        record.end(step, batch["sequence_ids"], values)
        last, stopping = step == steps, processes.asked_to_stop(step)

        if step % options.log_every == 0 or last or stopping:
          log()
        if step % options.eval_every == 0 or last:
          verdict = evaluated()
        ending = last or stopping or verdict.ended
        is_best = options.keep_best and step == verdict.best_step
        if step % options.checkpoint_every == 0 or ending or is_best:
          save()
          saved_step = step
        if stopping:
          break
      ended_early = step < steps and not verdict.ended
      if ended_early and step > saved_step:  # the stream ended
        if record.meter.has_steps:
          log()
        save()
      checkpoints.wait()
      if ended_early or stopping:
        raise run.interrupted(step, asked=stopping)
      if step < steps:
        processes.print_on_first(
          f"The run ends at step {step:,} of {steps:,}: {verdict.ended}.\n"
        )
    seconds = record.log.last_train_line["seconds"]
  params = gather(state["params"], program.mesh)
  return {
    "peak_flops": cost.peak.flops,
    "peak_flops_source": cost.peak.source,
    "seconds": seconds,
    "steps": int(state["step"]),
    "parameters": count_parameters(params),
    "parameters_digest": processes.on_first(lambda: parameters_digest(params)),
  }


if __name__ == "__main__":
  command.run(main)
