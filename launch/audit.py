"""Proves that the batches of a run are right.

  python -m launch.audit data/quickstart --config configs/quickstart.py
  python -m launch.audit data/quickstart --config configs/quickstart.py \\
      --config.packing.algorithm=optimal --epoch 3 --hosts 4 --json

Proves that each sequence occurs once, each token is where it belongs and every field is
right. Otherwise prints the first difference and exits with status 1.
"""

from __future__ import annotations

import argparse
import json
import sys

from launch.data import make_audit_loader
from launch.door import read_settings
from packing import InputError
from packing.commands.program import Parser, fail, print_result
from packing.errors import check_integer
from pipeline.batches.audit import AuditError, audit, report
from pipeline.dataset import open_dataset


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  parser = _parser()
  options, fields = parser.parse_known_args(arguments)
  if wrong := [field for field in fields if not field.startswith("--config.")]:
    parser.error(f"Expected options and --config.FIELD=VALUE, found {' '.join(wrong)!r}.")
  try:
    text = _audit(options, fields)
  except InputError as error:
    return fail(2, str(error))
  except AuditError as error:
    return fail(1, f"audit failed: {error}")
  except OSError as error:
    return fail(1, f"{error}.")
  except KeyboardInterrupt:
    return fail(130, "Stopped. Run the same command again.")
  return print_result(text)


def _parser() -> Parser:
  parser = Parser(
    prog="python -m launch.audit",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  parser.add_argument("directory", metavar="DIR", help="a prepared dataset")
  text = "the run's config; set a field with --config.a.b=VALUE, as for train.py"
  parser.add_argument("--config", required=True, metavar="F.py", help=text)
  parser.add_argument("--epoch", type=int, default=0, metavar="N", help="default: 0")
  text = "join the blocks of H processes (default: 1)"
  parser.add_argument("--hosts", type=int, default=1, metavar="H", help=text)
  parser.add_argument("--json", action="store_true", help="print one JSON object")
  return parser


def _audit(options: argparse.Namespace, fields: list[str]) -> str:
  check_integer("--epoch", options.epoch, at_least=0)
  check_integer("--hosts", options.hosts, at_least=1)
  loader = make_audit_loader(
    read_settings(options.config, fields),
    open_dataset(options.directory, compare_all=True),
    process_count=options.hosts,
  )
  result = audit(loader, epoch=options.epoch)
  return json.dumps(result) if options.json else report(result, loader.plan)


if __name__ == "__main__":
  sys.exit(main())
