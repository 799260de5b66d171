"""python -m pipeline: audit."""

from __future__ import annotations

import argparse
import json
import sys

from absl import flags
from ml_collections import config_flags

import packing
from packing.errors import whole
from pipeline import config as config_lib
from pipeline.audit import AuditError, audit, report
from pipeline.dataset import open_dataset

_AUDIT_EXAMPLES = """examples:
  python -m pipeline audit data/quickstart --config configs/quickstart.py
  python -m pipeline audit data/quickstart --config configs/quickstart.py \\
      --config.packing.algorithm=optimal --epoch 3 --hosts 4 --json

Each sequence once, each token where it belongs, every field as it should be; exit status 1
and the first thing that is wrong otherwise.
"""


def main(arguments: list[str] | None = None) -> int:
  """Runs one command; returns the exit status."""
  parser = _parser()
  options, rest = parser.parse_known_args(arguments)
  options.overrides = [text for text in rest if text.startswith("--config.")]
  if len(options.overrides) < len(rest) or (rest and "config" not in options):
    parser.error(f"Expected options of {options.command}, found {' '.join(rest)!r}.")
  try:
    status, text = options.run(options)
  except packing.InputError as error:
    return _failed(2, f"error: {error}")
  except AuditError as error:
    return _failed(1, f"audit failed: {error}")
  except KeyboardInterrupt:
    return _failed(130, "interrupted")
  print(text)
  return status


def _failed(status: int, message: str) -> int:
  print(" ".join(message.split()), file=sys.stderr)
  return status


class _Parser(argparse.ArgumentParser):
  """Says what is wrong in one line, as for all mistakes, and where to read on."""

  def error(self, message):
    self.exit(2, f"error: {' '.join(message.split())}\nSee {self.prog} --help.\n")


def _parser() -> argparse.ArgumentParser:
  parser = _Parser(
    prog="python -m pipeline", description="Text to packed batches, and proof of them."
  )
  commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
  for name, add, run, text, epilog in (
    (
      "audit",
      _add_audit,
      _audit,
      "proof that an epoch's batches are right",
      _AUDIT_EXAMPLES,
    ),
  ):
    command = commands.add_parser(
      name,
      help=text,
      description=text[0].upper() + text[1:] + ".",
      epilog=epilog,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,  # --config.a.b is no --config
    )
    command.set_defaults(run=run)
    add(command)
    command.add_argument("--json", action="store_true", help="print one JSON object")
  return parser


def _add_audit(command):
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


def _audit(options) -> tuple[int, str]:
  whole("--epoch", options.epoch, at_least=0)
  config = _read_config(options.config, options.overrides)
  dataset = open_dataset(options.directory)
  longest = dataset.manifest["settings"]["max_sequence_length"]
  if config.data.max_sequence_length != longest:
    raise packing.InputError(
      f"{options.directory} was prepared with max_sequence_length={longest}; the config "
      f"has {config.data.max_sequence_length}. Name the config it was prepared for, or "
      f"pass --config.data.max_sequence_length={longest}."
    )
  store = getattr(dataset, options.split)
  loader = config_lib.make_loader(config, store, dataset.vocabulary, hosts=options.hosts)
  result = audit(loader, epoch=options.epoch if options.split == "train" else None)
  if options.json:
    return 0, json.dumps(result)
  return 0, report(result, loader.plan.certificate())


def _read_config(path: str, overrides: list[str]):
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


if __name__ == "__main__":
  sys.exit(main())
