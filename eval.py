"""Evaluates a checkpoint of a run on the held-out documents.

  python eval.py --config=configs/quickstart.py --workdir=runs/quickstart

Takes the newest checkpoint, or the one of --step, also while training goes on. The result
is printed, as JSON with --json. Give --config.packing.algorithm=none to evaluate unpacked.
"""

import json
import os
import pathlib
import sys

if not sys.stderr.isatty():  # in a log, a progress bar is a new line at each change
  os.environ.setdefault("TQDM_MININTERVAL", "15")

import tqdm
from absl import flags
from ml_collections import config_flags

import packing
import pipeline
from training import command, report, workdir
from training.checkpoint import Checkpoints
from training.config import ConfigError, bert_config, make_optimizer, validate
from training.evaluation import evaluate
from training.step import TrainingProgram, make_mesh

_CONFIG = config_flags.DEFINE_config_file(
  "config", help_string="A config file, such as configs/quickstart.py.", lock_config=True
)
_WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.", required=True)
_STEP = flags.DEFINE_integer("step", None, "Of the checkpoint; the newest if not given.")
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object.")
flags.mark_flag_as_required("config")


def main():
  config, folder = _CONFIG.value, pathlib.Path(_WORKDIR.value)
  mesh = make_mesh()
  validate(config, algorithms=list(packing.ALGORITHMS), num_devices=mesh.size)
  workdir.check_same(folder, config, groups=("seed", "data", "model"))

  dataset = pipeline.prepare_dataset(config)
  workdir.check_dataset(folder, dataset.manifest["sha256"])
  held_out = pipeline.make_loader(config, dataset.held_out, dataset.vocabulary)
  program = TrainingProgram(
    bert_config(config, vocab_size=len(dataset.vocabulary)),
    make_optimizer(config, packing_factor=1.0),  # for the shape of its state alone
    mesh=mesh,
    seed=config.seed,
  )
  with Checkpoints(folder / "checkpoints", keep=None) as checkpoints:
    steps = checkpoints.steps
    step = max(steps, default=None) if _STEP.value is None else _STEP.value
    if step not in steps:
      found = ", ".join(map(str, steps)) or "none"
      raise ConfigError(
        f"Expected a checkpoint{'' if step is None else f' of step {step}'} in {folder}; "
        f"there are {found}. Train first, or choose one with --step."
      )
    params = checkpoints.restore(step, program.abstract_state())["params"]
  result = {"step": step} | evaluate(
    program,
    params,
    tqdm.tqdm(
      held_out.evaluation_batches(),
      "evaluating",
      held_out.num_evaluation_batches,
      unit=" batches",
    ),
    unigram_token=dataset.manifest["most_frequent_token"],
  )
  print(json.dumps(result) if _JSON.value else report.evaluation_table(result))


if __name__ == "__main__":
  command.run(main, mistakes=(packing.InputError, ConfigError))
