"""Evaluates a checkpoint of a run on the held-out documents.

  python eval.py --config=configs/quickstart.py --workdir=runs/quickstart

Takes the newest checkpoint, or the one of --step, also while training goes on. The result
is printed, as JSON with --json. Give --config.packing.algorithm=none to evaluate unpacked,
and --config.model.attention_impl=... to evaluate on a machine of another kind.
"""

import dataclasses
import json
import math
import os
import pathlib
import sys

if not sys.stderr.isatty():  # in a log, a bar of the pipeline is a new line at each change
  os.environ.setdefault("TQDM_MININTERVAL", "15")

import jax
import optax
from absl import flags
from ml_collections import ConfigDict, config_flags

import packing
import pipeline
from model import weights
from training import command, processes, report, workdir
from training.config import ConfigError, validate
from training.evaluation import evaluate
from training.mesh import make_mesh, replicated
from training.progress import Progress
from training.step import TrainingProgram

_CONFIG = config_flags.DEFINE_config_file(
  "config", help_string="A config file, such as configs/quickstart.py.", lock_config=True
)
_WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.", required=True)
_STEP = flags.DEFINE_integer("step", None, "Of the checkpoint; the newest if not given.")
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object.")
flags.mark_flag_as_required("config")

# How a run computed, not what: another machine may evaluate it in its own way.
_NOT_OF_THE_WEIGHTS = (
  "model.attention_impl",
  "model.remat",
  "model.init_from",
  "model.dropout_rate",
  "model.attention_dropout_rate",
)


def main():
  config, folder = _CONFIG.value, pathlib.Path(_WORKDIR.value)
  processes.start()
  mesh = make_mesh()
  processes.connect(mesh)
  validate(
    for_evaluation(config, num_devices=mesh.size),
    algorithms=list(packing.ALGORITHMS),
    num_devices=mesh.size,
  )
  workdir.check_same(
    folder, config, groups=("seed", "data", "model"), but=_NOT_OF_THE_WEIGHTS
  )
  # The first process chooses: while training goes on, there may be a newer one each moment.
  step = processes.first(lambda: weights.open_folder(folder, step=_STEP.value).step)
  stored = weights.open_folder(folder, step=step, sharding=replicated(mesh))

  dataset = processes.first_then_all(lambda: pipeline.prepare_dataset(config))
  workdir.check_dataset(folder, dataset.manifest["sha256"])
  held_out = pipeline.make_loader(
    for_evaluation(config, num_devices=mesh.size),
    dataset.held_out,
    dataset.vocabulary,
    host=jax.process_index(),
    hosts=jax.process_count(),
  )
  program = TrainingProgram(
    dataclasses.replace(
      stored.config, attention_impl=config.model.attention_impl, remat=config.model.remat
    ),
    optax.identity(),  # not run
    mesh=mesh,
    seed=config.seed,
  )
  batches = held_out.num_evaluation_batches
  with Progress("evaluating", total=batches, unit="batches") as progress:
    result = {"step": stored.step} | evaluate(
      program,
      stored.load(),
      progress.over(held_out.evaluation_batches()),
      unigram_token=dataset.manifest["most_frequent_token"],
    )
  processes.tell(json.dumps(result) if _JSON.value else report.evaluation_table(result))


def for_evaluation(config: ConfigDict, *, num_devices: int) -> ConfigDict:
  """The config with what devices of another number can compute at once, and no split."""
  config = config.copy_and_resolve_references()
  rows = config.train.micro_batch_size or config.train.batch_size
  config.train.batch_size = math.ceil(rows / num_devices) * num_devices
  config.train.micro_batch_size = 0
  config.train.fsdp = 1
  return config


if __name__ == "__main__":
  command.run(main, mistakes=(packing.InputError, ConfigError, weights.WeightsError))
