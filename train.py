"""Trains a packed BERT.

  python train.py --config=configs/quickstart.py --workdir=runs/quickstart

Any field of the config can be set on the command line, such as
--config.train.steps=100. The unpacked baseline is --config.packing.algorithm=none; the
paper's ablations are --config.model.attention_mask=none and
--config.model.position_reset=False. Run again on the same folder, training goes on where
it stopped.
"""

import json
import os
import pathlib
import sys
from contextlib import closing

if not sys.stderr.isatty():  # in a log, a bar of the pipeline is a new line at each change
  os.environ.setdefault("TQDM_MININTERVAL", "15")

import jax
import numpy as np
from absl import flags
from ml_collections import config_flags

import packing
import pipeline
from model import weights
from training import command, files, flops, initial, plots, report, workdir
from training.checkpoint import Checkpoints
from training.compilations import CompilationCounter
from training.config import (
  ConfigError,
  make_optimizer,
  make_schedule,
  validate,
)
from training.evaluation import evaluate
from training.metrics import Meter, MetricsLog
from training.parameters import count_parameters, parameters_digest
from training.progress import Progress
from training.step import TrainingProgram, make_mesh, put_batch
from training.throughput import packed_against_unpacked

_CONFIG = config_flags.DEFINE_config_file(
  "config", help_string="A config file, such as configs/quickstart.py.", lock_config=True
)
_WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.", required=True)
flags.mark_flag_as_required("config")


def main():
  config, folder = _CONFIG.value, pathlib.Path(_WORKDIR.value)

  # ---- config ------------------------------------------------------------------------
  mesh = make_mesh()
  validate(config, algorithms=list(packing.ALGORITHMS), num_devices=mesh.size)
  workdir.check(folder, config)
  if (folder / "summary.json").exists():
    summary = json.loads((folder / "summary.json").read_text())
    print(f"{folder} is finished; for another run give another --workdir.\n")
    print(report.summary_table(summary))
    return
  # What a run was begun with is in its checkpoints.
  given = None if weights.steps(folder) else initial.open_weights(config)

  # ---- input: text to sequences, sequences to packs ------------------------------------
  dataset = pipeline.prepare_dataset(config)
  process = {"host": jax.process_index(), "hosts": jax.process_count()}
  loader = pipeline.make_loader(config, dataset.train, dataset.vocabulary, **process)
  held_out = pipeline.make_loader(config, dataset.held_out, dataset.vocabulary, **process)
  plan = loader.plan
  print(
    f"{plan.num_sequences:,} sequences in {plan.num_packs:,} packs of {plan.row_length} "
    f"tokens: packing factor {plan.packing_factor:.3f}, efficiency {plan.efficiency:.2%}, "
    f"at most {plan.packing_depth} sequences a pack"
  )

  # ---- model and optimizer ---------------------------------------------------------------
  if given:
    initial.check_vocabulary(given, dataset.vocabulary)
  model_config = initial.model_config(
    config, workdir=folder, vocab_size=len(dataset.vocabulary), given=given
  )
  params = initial.initial_params(given, model_config) if given else None
  program = TrainingProgram(
    model_config,
    make_optimizer(config, packing_factor=plan.packing_factor),
    mesh=mesh,
    seed=config.seed,
    loss_unit=config.train.loss_unit,
  )
  steps = config.train.steps
  learning_rates = np.asarray(jax.jit(jax.vmap(make_schedule(config)))(np.arange(steps)))
  compilations = CompilationCounter()
  rows, row_length = config.train.batch_size, plan.row_length
  mlm_slots = (
    loader.masking.max_masked(row_length, plan.packing_depth) if loader.masking else 0
  )
  peak = flops.peak_of(
    list(mesh.devices.flat), dtype=config.model.dtype, given=config.train.peak_flops
  )

  # ---- loop ----------------------------------------------------------------------------
  def evaluate_held_out(params) -> dict:
    return evaluate(
      program,
      params,
      held_out.evaluation_batches(),
      unigram_token=dataset.manifest["most_frequent_token"],
    )

  with (
    workdir.claimed(folder, config, dataset=dataset.manifest["sha256"]),
    Checkpoints(folder, keep=config.train.keep_checkpoints) as checkpoints,
  ):
    first_step = max(checkpoints.steps, default=0)
    if first_step:
      print(f"going on from step {first_step}")
      state = checkpoints.restore(first_step, program.abstract_state())
    else:
      weights.describe(
        folder,
        model_config,
        head="pretraining",
        vocabulary=weights.Vocabulary(tuple(dataset.vocabulary)),
      )
      state = program.init(params)
      del params
    with (
      MetricsLog(folder, first_step=first_step) as log,
      Progress("training", total=steps, done=first_step) as progress,
      closing(loader.iterate(first_step)) as batches,  # its state is the step
    ):
      meter = Meter(
        log.last_train_line,
        packs=rows,
        tokens=rows * row_length,
        flops_per_step=flops.training_flops(
          model_config,
          rows=rows,
          row_length=row_length,
          mlm_slots=mlm_slots,
          max_sequences=plan.packing_depth,
        ),
        peak_flops=peak.flops,
      )
      target = config.train.target_mlm_accuracy
      held_out_lines = files.read_json_lines(folder / "eval.jsonl")
      reached = bool(target and report.target_reached(held_out_lines, target=target))
      step = first_step
      while step < steps and not reached:
        step += 1
        with meter.waiting_for("input"):
          batch = put_batch(next(batches), mesh)
        with meter.waiting_for("compute"):  # a CPU may run the step before it returns
          state, values = program.train_step(state, batch)
        meter.add(values)
        progress.update()
        if step % config.train.log_every == 0 or step == steps:
          line = meter.line(
            learning_rate=float(learning_rates[step - 1]),
            compilations=compilations.count(program.train_step_name),
          )
          if not np.isfinite([line["loss"], line["parameter_norm"]]).all():
            raise command.Stopped(
              f"The loss is {line['loss']} and the norm of the parameters "
              f"{line['parameter_norm']} at step {step}, or up to {config.train.log_every} "
              "steps before. Try another --workdir with a lower "
              f"--config.optimizer.learning_rate. {folder} keeps its checkpoints of steps "
              f"{checkpoints.steps}."
            )
          log.train(step, line)
          progress.line(step, line)
        if step % config.train.eval_every == 0 or step == steps:
          with meter.paused():
            held_out_line = evaluate_held_out(state["params"]) | {
              "seconds": line["seconds"],
              "sequences_trained": line["sequences"],
            }
            log.evaluation(step, held_out_line)
          reached = 0 < target <= held_out_line["mlm_accuracy"]
        if step % config.train.checkpoint_every == 0 or step == steps or reached:
          with meter.paused():
            checkpoints.save(step, state)

    # ---- report --------------------------------------------------------------------------
    unpacked = pipeline.make_loader(
      config, dataset.train, dataset.vocabulary, algorithm="none", **process
    )
    train_lines = files.read_json_lines(folder / "metrics.jsonl")
    eval_lines = files.read_json_lines(folder / "eval.jsonl")
    summary = report.run_summary(train_lines, eval_lines) | {
      "epochs": step / loader.batches_per_epoch,
      "packs": plan.num_packs,
      "packing_factor": plan.packing_factor,
      "efficiency": plan.efficiency,
      "packing_depth": plan.packing_depth,
      "padding_tokens": plan.num_padding_tokens,
      "unpacked_padding_tokens": unpacked.plan.num_padding_tokens,
      "sequences": plan.num_sequences,
      "parameters": count_parameters(state["params"]),
      "parameters_digest": parameters_digest(state["params"]),
      "devices": f"{mesh.size} x {jax.devices()[0].device_kind}",
      "jax": jax.__version__,
      "xla_flags": os.environ.get("XLA_FLAGS", ""),
      "peak_flops": peak.flops,
      "peak_flops_source": peak.source,
    }
    if target:
      summary["target_mlm_accuracy"] = target
      summary |= report.target_reached(eval_lines, target=target) or {}
    if config.train.throughput_rounds:
      with closing(loader.iterate()) as packs, closing(unpacked.iterate()) as padded:
        summary |= packed_against_unpacked(
          program, packs, padded, rounds=config.train.throughput_rounds
        )
    plots.plot_packing(
      folder / "plots" / "packing.png",
      dataset.train.lengths,
      loader.first_rows(plots.PACKS_SHOWN),
      efficiency=plan.efficiency,
    )
    plots.plot_learning_curve(
      folder / "plots" / "learning_curve.png", train_lines, eval_lines
    )
    files.write_json(folder / "summary.json", summary)
    print(f"\n{report.summary_table(summary)}\n\nwritten to {folder}: summary.json, plots/")


if __name__ == "__main__":
  command.run(main, mistakes=(packing.InputError, ConfigError, weights.WeightsError))
