"""Evaluates a checkpoint on held-out documents, or on the dev set of a task.

  python eval.py runs/quickstart
  python eval.py --config=configs/glue.py:cola --workdir=FOLDER \\
      --config.model.init_from=FOLDER

Evaluates a run's best checkpoint if the run keeps it (train.keep_best), otherwise the
newest, or the one that --step names; the run may still be training. An imported model or a
Hugging Face directory needs a --config. Prints the result, as JSON with --json. Give
--config.packing.algorithm=none to evaluate without packing, and
--config.model.attention_impl=... for a machine of another kind.
"""

import dataclasses
import json
import math
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

from training import compiler, memory

memory.one_pool()
compiler.set_flags()
if not sys.stderr.isatty():  # in a log, each update of a progress bar is a new line
  os.environ.setdefault("TQDM_MININTERVAL", "15")

import jax
from absl import flags
from ml_collections import config_flags

from launch import command, computation, init_from, workdir
from launch.data import make_held_out, prepare_dataset
from launch.door import config_of, flat, settings_of
from launch.machine import check_machine
from launch.options import check_option
from launch.plans import row_lengths
from launch.record import report
from launch.record.progress import Progress
from launch.settings import RunSettings
from model import MODELS, weights
from pipeline.tasks.glue import MULTI_LABEL
from training import processes
from training.errors import ConfigError, Stopped
from training.evaluation import evaluate, prediction_config
from training.mesh import gather, make_mesh, replicated
from training.step import ModelProgram

_CONFIG = config_flags.DEFINE_config_file(
  "config",
  help_string="A config file, such as configs/quickstart.py; by default the run's own.",
  lock_config=True,
)
_WORKDIR = flags.DEFINE_string("workdir", None, "The model's folder.", required=True)
_STEP = flags.DEFINE_string(
  "step",
  None,
  "The step of a run's checkpoint, or best; by default the best if the run keeps it "
  "(train.keep_best), otherwise the newest.",
)
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object.")
flags.mark_flag_as_required("config")


def main():
  config, folder = _CONFIG.value, pathlib.Path(_WORKDIR.value)
  # A run on a stream is evaluated without it, so also by other rows.
  run = settings_of(config_of(flat(config) | {"data.stream": ""}))
  memory.keep()
  compiler.keep_programs()
  processes.start()
  mesh = make_mesh()
  processes.connect(mesh)
  computed = for_evaluation(run, num_devices=mesh.size)
  check_machine(computed, num_devices=mesh.size)
  used = ""
  if workdir.is_run(folder):
    stored, why = open_run(flat(config), folder, sharding=replicated(mesh))
    used = f"step {stored.step} of {folder} ({why}), "
  else:
    stored = open_model(computed, folder)
  pooling = init_from.pooling_of(computed, stored).mode if run.pairs else ""
  dataset = processes.on_first_then_others(lambda: prepare_dataset(computed.data))
  named = prediction_config(
    stored.config,
    dtype=run.model.dtype,
    attention_impl=run.model.config.attention_impl,
  )
  how = computation.of(named, row_lengths(computed.rows, dataset))
  how.check_all_processes()
  if processes.is_first():
    print(f"eval.py: {used}{how}", file=sys.stderr)
  program = ModelProgram(how.config, mesh=mesh, head=stored.head)

  workdir.check_dataset(folder, dataset.manifest["sha256"])
  if not workdir.is_run(folder):
    init_from.check_vocabulary(stored, dataset.vocabulary)
    init_from.check_splitting(stored, dataset.tokenizer)
    init_from.check_labels(stored, dataset.labels)
  held_out = make_held_out(computed, dataset, pooling=pooling)
  params = gather(jax.device_get(stored.load()), mesh)  # once, not with each batch
  batches = sum(one.num_batches for one in held_out)
  with Progress("evaluating", total=batches, unit="batches") as progress:
    result = {"step": stored.step} | evaluate(
      program,
      params,
      held_out,
      unigram_token=dataset.manifest["most_frequent_token"],
      over=progress.over,
    )
  if not math.isfinite(loss := report.sum_of_losses(result)):
    raise Stopped(
      f"The held-out loss is {loss}. Try another --step, or --config.model.dtype=float32."
    )
  text = json.dumps(result) if _JSON.value else report.evaluation_table(result)
  processes.print_on_first(text)


def as_flags(words: list[str]) -> list[str]:
  """Converts a folder to --workdir, and adds the run's own config as --config."""
  words = [word for word in words if word not in ("-workdir", "--workdir")]
  has_folder = not all(word.startswith("-") for word in words)
  words = [word if word.startswith("-") else f"--workdir={word}" for word in words]
  named = [w.partition("=")[2] for w in words if w.lstrip("-").startswith("workdir=")]
  if has_folder and len(named) > 1:
    raise ConfigError(
      f"Expected one folder, found {' and '.join(named)}. Give options as --name=value."
    )
  names = [w.lstrip("-").partition("=")[0] for w in words]
  if "config" in names or any(name.startswith("help") for name in names):
    return words
  if not named:
    raise ConfigError("Expected the folder of a run, such as runs/mine. See --help.")
  folder = pathlib.Path(named[-1])
  if not workdir.is_run(folder):
    raise ConfigError(
      f"{folder} holds no run. Give its config, such as --config=configs/classification.py."
    )
  workdir.get_config(str(folder))  # absl would show a traceback
  return [f"--config={workdir.FILE}:{folder}", *words]


def open_run(
  config: Mapping[str, Any], folder: pathlib.Path, *, sharding
) -> tuple[weights.StoredModel, str]:
  """Opens a checkpoint of a run, whose data and model must be those of the config.

  Returns:
    The checkpoint, and why this one, as in `choose_step`.
  """
  workdir.check_same(
    folder,
    config,
    groups=("seed", "data.", "model."),
    ignore=(*workdir.COMPUTATION_FIELDS, "data.directory"),  # which may have moved
    remedy="or leave out --config and these fields: eval.py reads the run's own",
  )
  # Process 0 chooses, since during training a newer checkpoint may appear at any moment.
  wanted = _STEP.value
  step, why = processes.on_first(lambda: weights.choose_step(folder, wanted))
  return weights.open_folder(folder, step=step, sharding=sharding), why


def open_model(run: RunSettings, folder: pathlib.Path) -> weights.StoredModel:
  """Opens a model that does not belong to a run."""
  if _STEP.value is not None:
    raise ConfigError(
      f"--step is {_STEP.value!r}, but {folder} is not a run. Leave out --step."
    )
  head, task = run.head, run.data.task
  model_part = dataclasses.replace(run.model, init_from=str(folder))
  run = dataclasses.replace(run, model=model_part)
  stored = init_from.open_weights(run)
  assert stored is not None
  if head == "encoder":
    stored = weights.encoder_of(stored)
  if stored.head != head:
    needed = MODELS[stored.config.FAMILY][head].__name__
    raise ConfigError(
      f"{folder} holds a {stored.name}, but config.data.task={task} "
      f"needs a {needed}. Train one: train.py with --config.model.init_from={folder}."
    )
  several = getattr(stored.config, "multi_label", False)
  gives = "several classes" if several else "one class"
  expected = f"{MULTI_LABEL!r}" if several else "'classification'"
  expected = f"{expected}, since {folder} was trained to give an example {gives}"
  check_option(several == (task == MULTI_LABEL), "data.task", task, expected)
  init_from.check_length(run, stored.config.max_position_embeddings)
  if head == "pretraining" and not getattr(run.model.config, "next_sentence", True):
    stored = weights.without_next_sentence(stored)
  of_head = ("next_sentence",) if head == "pretraining" else ()
  for name in ("attention_mask", "position_reset", "global_base", *of_head):
    own = getattr(stored.config, name, None)
    given = getattr(run.model.config, name, own)
    check_option(given == own, f"model.{name}", given, f"{own!r}, as in {folder}")
  return stored


def for_evaluation(run: RunSettings, *, num_devices: int) -> RunSettings:
  """The settings with a batch size for this number of devices.

  Without FSDP and trackers. Without the dropout of attention, which evaluation does not
  have, so that any implementation of attention may be used.
  """
  rows = math.ceil(run.train.rows_at_once / num_devices) * num_devices
  config = dataclasses.replace(run.model.config, attention_dropout_rate=0.0)
  return dataclasses.replace(
    run,
    train=dataclasses.replace(
      run.train, batch_size=rows, micro_batch_size=0, fsdp=1, trackers=""
    ),
    model=dataclasses.replace(run.model, config=config),
  )


if __name__ == "__main__":
  command.run(main, as_flags=as_flags)
