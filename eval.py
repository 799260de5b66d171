"""Evaluates a checkpoint on held-out documents, or on the dev set of a task.

  python eval.py runs/quickstart
  python eval.py --config=configs/glue.py:cola --workdir=FOLDER \\
      --config.model.init_from=FOLDER

Takes the newest checkpoint of a run, or the one of --step, also during training; or
a model that was imported, or a Hugging Face directory, which need a --config. The result is
printed, as JSON with --json. Give --config.packing.algorithm=none to evaluate unpacked, and
--config.model.attention_impl=... to evaluate on a machine of another kind.
"""

import dataclasses
import json
import math
import os
import pathlib
import sys

from training import memory

memory.one_pool()
if not sys.stderr.isatty():  # in a log, each change of a progress bar is a new line
  os.environ.setdefault("TQDM_MININTERVAL", "15")

import jax
from absl import flags
from ml_collections import ConfigDict, config_flags

import packing
import pipeline
from model import MODELS, weights
from training import command, init_from, processes
from training.config.rules import validate
from training.errors import ConfigError
from training.evaluation import evaluate
from training.mesh import gather, make_mesh, replicated
from training.record import report, saved_config, workdir
from training.record.progress import Progress
from training.step import ModelProgram

_CONFIG = config_flags.DEFINE_config_file(
  "config",
  help_string="A config file, such as configs/quickstart.py; the run's own if not given.",
  lock_config=True,
)
_WORKDIR = flags.DEFINE_string("workdir", None, "The model's folder.", required=True)
_STEP = flags.DEFINE_string("step", None, "Of the run; or best; the newest if not given.")
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object.")
flags.mark_flag_as_required("config")

# How a run computed, not what it learned: another machine may compute in its own way.
_NOT_OF_THE_WEIGHTS = (
  "model.attention_impl",
  "model.remat",
  "model.dtype",
  "model.init_from",
  "model.dropout_rate",
  "model.attention_dropout_rate",
)


def main():
  config, folder = _CONFIG.value, pathlib.Path(_WORKDIR.value)
  if config.train.keep_memory:
    memory.keep()
  processes.start()
  mesh = make_mesh()
  processes.connect(mesh)
  validate(
    for_evaluation(config, num_devices=mesh.size),
    algorithms=pipeline.ALGORITHMS,
    tasks=pipeline.TASK_HEADS,
    num_devices=mesh.size,
  )
  head = pipeline.TASK_HEADS[config.data.task]
  if workdir.is_run(folder):
    stored = open_run(config, folder, sharding=replicated(mesh))
  else:
    stored = open_model(config, folder, head=head)

  dataset = processes.first_then_all(lambda: pipeline.prepare_dataset(config))
  workdir.check_dataset(folder, dataset.manifest["sha256"])
  if not workdir.is_run(folder):
    init_from.check_vocabulary(stored, dataset.vocabulary)
    init_from.check_labels(stored, dataset.labels)
  held_out = pipeline.make_held_out(
    for_evaluation(config, num_devices=mesh.size),
    dataset,
    plans=kept_plans(config, folder, dataset),
    process_index=jax.process_index(),
    process_count=jax.process_count(),
  )
  here = {name: config.model[name] for name in ("attention_impl", "remat", "dtype")}
  program = ModelProgram(dataclasses.replace(stored.config, **here), mesh=mesh, head=head)
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
  if not math.isfinite(result["loss"]):
    raise command.Stopped(
      f"The held-out loss is {result['loss']}; expected a number. Choose another "
      "checkpoint with --step, or compute with --config.model.dtype=float32."
    )
  processes.tell(json.dumps(result) if _JSON.value else report.evaluation_table(result))


def as_flags(words: list[str]) -> list[str]:
  """Turns a folder into --workdir, and adds a run's own config as --config."""
  folders, words = command.split(words)
  if len(folders) > 1:
    raise ConfigError(f"Expected one folder, found {' '.join(folders)!r}.")
  named = [w.partition("=")[2] for w in words if w.lstrip("-").startswith("workdir=")]
  if folders and named:
    raise ConfigError(f"The folder is {folders[0]!r} and --workdir={named[0]}; give one.")
  words = [*(f"--workdir={folder}" for folder in folders), *words]
  has_config = any(w.lstrip("-").partition("=")[0] in ("config", "help") for w in words)
  if has_config or not (folders or named):
    return words
  folder = pathlib.Path(*folders, *named)
  if not workdir.is_run(folder):
    raise ConfigError(
      f"{folder} does not hold a run, so its config is not known. Give "
      "--config=configs/..., such as configs/classification.py."
    )
  saved_config.get_config(str(folder))  # absl would show a traceback
  return [f"--config={saved_config.FILE}:{folder}", *words]


def kept_plans(config: ConfigDict, folder: pathlib.Path, dataset) -> dict:
  """The plans in the run's folder; {} for other models and older runs."""
  if not workdir.is_run(folder):
    return {}
  return pipeline.read_plans(config, dataset, folder, held_out_only=True)


def open_run(config: ConfigDict, folder: pathlib.Path, *, sharding) -> weights.StoredModel:
  """Opens a checkpoint of a run with this data and model."""
  workdir.check_same(
    folder, config, groups=("seed", "data", "model"), ignore=_NOT_OF_THE_WEIGHTS
  )
  # Process 0 chooses: during training, a newer one may appear at any moment.
  wanted = _STEP.value
  step = processes.first(lambda: workdir.choose_step(folder, wanted))
  return weights.open_folder(folder, step=step, sharding=sharding)


def open_model(
  config: ConfigDict, folder: pathlib.Path, *, head: str
) -> weights.StoredModel:
  """Opens a model that is not a run's."""
  if _STEP.value is not None:
    raise ConfigError(
      f"--step is {_STEP.value!r}, but {folder} is no run and holds one model. Leave it "
      "out."
    )
  config = config.copy_and_resolve_references()
  config.model.init_from = str(folder)
  stored = init_from.open_weights(config, head=head)
  assert stored is not None
  if stored.head != head:
    needed = MODELS[stored.config.FAMILY][head].__name__
    raise ConfigError(
      f"{folder} holds a {stored.kind.__name__}; config.data.task="
      f"{config.data.task} needs a {needed}. Train one from it first: "
      f"train.py with --config.model.init_from={folder}."
    )
  positions, length = stored.config.max_position_embeddings, config.data.max_sequence_length
  if length > positions:
    raise ConfigError(
      f"{folder} has {positions} positions, config.data.max_sequence_length is {length}. "
      f"Give --config.data.max_sequence_length={positions} and another "
      "--config.data.directory."
    )
  return stored


def for_evaluation(config: ConfigDict, *, num_devices: int) -> ConfigDict:
  """The config with a batch size for this number of devices, without FSDP or trackers."""
  config = config.copy_and_resolve_references()
  rows = config.train.micro_batch_size or config.train.batch_size
  config.train.batch_size = math.ceil(rows / num_devices) * num_devices
  config.train.micro_batch_size = 0
  config.train.fsdp = 1
  config.train.trackers = ""
  return config


if __name__ == "__main__":
  command.run(
    main,
    mistakes=(packing.InputError, ConfigError, weights.WeightsError),
    as_flags=as_flags,
  )
