"""python -m pipeline audit: its arguments, and the config of a run without train.py."""

from __future__ import annotations

import argparse
import json
import sys

import ml_collections
from absl import flags
from ml_collections import config_flags

import packing
from packing.errors import check_integer
from pipeline import config as config_lib
from pipeline.batches.audit import audit, report
from pipeline.batches.loader import PackedLoader
from pipeline.dataset import open_dataset
from pipeline.tasks.table import is_masked

EXAMPLES = """examples:
  python -m pipeline audit data/quickstart --config configs/quickstart.py
  python -m pipeline audit data/quickstart --config configs/quickstart.py \\
      --config.packing.algorithm=optimal --epoch 3 --hosts 4 --json

Each sequence once, each token where it belongs, every field as it should be; exit status 1
and the first thing that is wrong otherwise. Tokens are masked where the dataset was
prepared for pretraining or sentences.
"""


def add_arguments(command: argparse.ArgumentParser):
  """Adds them. Those that begin with --config. are left to `options.overrides`."""
  command.add_argument("directory", metavar="DIR", help="a prepared dataset")
  command.add_argument(
    "--config",
    required=True,
    metavar="F.py",
    help="the run's config; a field is set with --config.a.b=VALUE, as for train.py",
  )
  command.add_argument(
    "--split",
    choices=("train", "held_out"),
    default="train",
    help="train: an epoch of training; held_out: the evaluation (default: train)",
  )
  command.add_argument("--epoch", type=int, default=0, metavar="N", help="default: 0")
  command.add_argument(
    "--hosts", type=int, default=1, metavar="H", help="join the blocks of H (default: 1)"
  )


def run(options: argparse.Namespace) -> tuple[int, str]:
  """Audits, and returns the exit status and what to print.

  Raises:
    InputError: the dataset or the config cannot be used.
    AuditError: something is wrong.
  """
  check_integer("--epoch", options.epoch, at_least=0)
  config = _read_config(options.config, options.overrides)
  dataset = open_dataset(options.directory)
  settings = dataset.manifest["settings"]
  longest = settings["max_sequence_length"]
  if config.data.max_sequence_length != longest:
    raise packing.InputError(
      f"{options.directory} was prepared with max_sequence_length={longest}; the config "
      f"has {config.data.max_sequence_length}. Name the config it was prepared for, or "
      f"pass --config.data.max_sequence_length={longest}."
    )
  if config.data.layout != "packed":
    raise packing.InputError(
      f"data.layout is {config.data.layout!r}; expected 'packed'. Rows of atoms hold parts "
      "of documents, which this does not audit. That each token is used once an epoch is "
      "tested in tests/pipeline/batches/test_atoms.py."
    )
  store = getattr(dataset, options.split)
  loader = config_lib.make_loader(
    config,
    store,
    dataset.vocabulary,
    masked=is_masked(settings["task"]),
    process_count=options.hosts,
  )
  assert isinstance(loader, PackedLoader)
  result = audit(loader, epoch=options.epoch if options.split == "train" else None)
  if options.json:
    return 0, json.dumps(result)
  return 0, report(result, loader.plan.certificate())


def _read_config(path: str, overrides: list[str]) -> ml_collections.ConfigDict:
  """A config file with fields set on the command line, read as train.py reads it."""
  values = flags.FlagValues()
  config = config_flags.DEFINE_config_file("config", lock_config=True, flag_values=values)
  given = sys.argv
  sys.argv = ["audit", f"--config={path}", *overrides]  # where ml_collections looks
  try:
    values(sys.argv)
    config.value["data"]  # a file that is not there is told only now
  except Exception as error:  # a config file may fail in any way
    told = str(error.args[0] if isinstance(error, KeyError) else error)
    raise packing.InputError(
      f"{path} cannot be used as --config: {' '.join(told.split())}"
    ) from error
  finally:
    sys.argv = given
  return config.value
