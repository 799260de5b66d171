"""python -m pipeline: audit."""

from __future__ import annotations

import argparse
import sys

import packing
from pipeline import audit_command
from pipeline.audit import AuditError


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
  for name, module, text in (
    ("audit", audit_command, "proof that an epoch's batches are right"),
  ):
    command = commands.add_parser(
      name,
      help=text,
      description=text[0].upper() + text[1:] + ".",
      epilog=module.EXAMPLES,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,  # --config.a.b is no --config
    )
    command.set_defaults(run=module.run)
    module.add_arguments(command)
    command.add_argument("--json", action="store_true", help="print one JSON object")
  return parser


if __name__ == "__main__":
  sys.exit(main())
