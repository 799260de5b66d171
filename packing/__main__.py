"""python -m packing: pack, compare, analyze."""

from __future__ import annotations

import argparse
import sys

from packing.commands import analyze, compare, pack
from packing.errors import InputError

_COMMANDS = {"pack": pack, "compare": compare, "analyze": analyze}


def main(arguments: list[str] | None = None) -> int:
  """Runs one command; returns the exit status."""
  options = _parser().parse_args(arguments)
  try:
    text = options.run(options)
  except InputError as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
    return 130
  except MemoryError:
    print(
      "error: There is not enough memory for this problem. Use fewer lengths, a larger "
      "--length-multiple, or algorithm lpfhp.",
      file=sys.stderr,
    )
    return 2
  if sys.stdout is None:
    print("error: Cannot write the result: standard output is closed.", file=sys.stderr)
    return 1
  try:
    print(text, flush=True)
  except BrokenPipeError:
    sys.stderr.close()  # the reader stopped reading
    return 1
  except OSError as error:
    print(f"error: Cannot write the result: {error.strerror}.", file=sys.stderr)
    sys.stdout = None  # nothing more can be written
    return 1
  return options.status


class _Parser(argparse.ArgumentParser):
  """Reports a usage error in one line, like every other error, and points to --help."""

  def error(self, message):
    message = " ".join(message.split())
    if len(message) > 300:
      message = message[:297] + "..."
    self.exit(2, f"error: {message}\nSee {self.prog} --help.\n")


def _parser() -> argparse.ArgumentParser:
  parser = _Parser(
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
