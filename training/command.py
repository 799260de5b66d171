"""How commands meet the command line."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable

import jax
from absl import app, flags, logging

from training.stopping import signals


class Stopped(Exception):
  """The run cannot go on; the message says why and what to do. Exit status 1."""


class Terminated(Exception):
  """The run was asked to stop and has saved its state. Exit status 130 or 143."""


class Parser(argparse.ArgumentParser):
  """Tells a mistake in one line, with exit status 2, and where to read on."""

  def error(self, message):
    self.exit(2, f"error: {' '.join(message.split())}. See {self.prog} --help.\n")


def run(main: Callable[[], None], *, mistakes: tuple[type[Exception], ...]):
  """Runs a command: a user's mistake is one line and exit status 2, not a traceback.

  Args:
    main: called after the flags are parsed.
    mistakes: exceptions that stand for a user's mistake.
  """

  def parse(argv: list[str]) -> list[str]:
    try:
      left = flags.FLAGS(argv)
    except SystemExit:  # --help was shown
      sys.exit(0)
    except Exception as error:  # a config file may fail in any way
      _leave(2, str(error.args[0] if isinstance(error, KeyError) else error))
    if len(left) > 1:
      _leave(2, f"Expected --name=value, found {' '.join(left[1:])!r}. See --help.")
    return left

  def guarded(_):
    # Orbax tells of each file it writes, and of errors on pages before it raises them.
    logging.set_verbosity(logging.FATAL)
    try:
      main()
    except mistakes as error:
      _leave(2, str(error))
    except (Stopped, OSError) as error:
      _leave(1, str(error))
    except Terminated as error:
      _leave(128 + (signals.heard or signal.SIGTERM), str(error))
    except jax.errors.JaxRuntimeError as error:
      if jax.process_count() == 1:
        raise
      told = f"This process or another was lost: {str(error).splitlines()[0]}"
      again = "Run the same commands again to go on from the last checkpoint."
      print(f"{sys.argv[0]}: {told} {again}", file=sys.stderr, flush=True)
      os._exit(1)  # at an ordinary exit JAX waits for the others, and aborts
    except KeyboardInterrupt:
      signals.leave()

  app.run(guarded, flags_parser=parse)


def _leave(status: int, message: str):
  print(f"{sys.argv[0]}: {' '.join(message.split())}", file=sys.stderr)
  sys.exit(status)
