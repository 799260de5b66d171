"""python -m packing: pack, compare, analyze."""

from __future__ import annotations

import argparse
import sys

from packing.commands import analyze, compare, pack
from packing.commands.program import Parser, fail, print_result
from packing.errors import InputError

_COMMANDS = {"pack": pack, "compare": compare, "analyze": analyze}


def main(arguments: list[str] | None = None) -> int:
  """Runs one command; returns the exit status."""
  options = _parser().parse_args(arguments)
  try:
    text = options.run(options)
  except InputError as error:
    return fail(2, str(error))
  except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
    return 130
  return print_result(text, options.status)


def _parser() -> Parser:
  parser = Parser(
    prog="python -m packing",
    description="Packs sequences of different lengths into rows of one length, and proves "
    "how close each plan is to the fewest rows possible.",
  )
  commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
  for name, module in _COMMANDS.items():
    command = commands.add_parser(
      name,
      help=module.HELP,
      description=module.HELP[0].upper() + module.HELP[1:] + ".",
      epilog=module.EXAMPLES,
      formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=module.run, status=0)
    module.add_arguments(command)
  return parser


if __name__ == "__main__":
  sys.exit(main())
