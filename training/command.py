"""How commands meet the command line."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable

import jax
from absl import app, flags, logging
from ml_collections import config_flags

from training.errors import ConfigError
from training.fields import field, wrong_type
from training.stopping import signals


class Stopped(Exception):
  """The run cannot go on; the message says why and what to do. Exit status 1."""


class Terminated(Exception):
  """The run was asked to stop and has saved its state. Exit status 130 or 143."""


class Parser(argparse.ArgumentParser):
  """Tells a mistake in one line, with exit status 2, and where to read on."""

  def error(self, message):
    self.exit(2, f"error: {' '.join(message.split())}. See {self.prog} --help.\n")


def run(
  main: Callable[[], None],
  *,
  mistakes: tuple[type[Exception], ...],
  as_flags: Callable[[list[str]], list[str]] = lambda words: words,
):
  """Runs a command: a user's mistake is one line and exit status 2, not a traceback.

  Args:
    main: called after the flags are parsed.
    mistakes: exceptions that stand for a user's mistake.
    as_flags: makes flags of the words of the command line that are none.
  """

  def parse(argv: list[str]) -> list[str]:
    try:
      argv[1:] = as_flags(argv[1:])  # in place: ml_collections reads sys.argv
      left = flags.FLAGS(argv)
    except SystemExit:  # --help was shown
      sys.exit(0)
    except Exception as error:  # a config file may fail in any way
      _leave(2, _explained(error, argv))
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


def typed_fields() -> list[str]:
  """The fields of --config that the command line sets."""
  return list(config_flags.get_override_values(flags.FLAGS["config"]))


def positional(words: list[str]) -> list[str]:
  """The words that are neither a flag nor the value of one.

  Example:
    >>> positional(["--seed=3", "runs/cola"])
    ['runs/cola']
  """
  return [
    word
    for before, word in zip(["", *words], words, strict=False)
    if not word.startswith("-") and not _awaits_value(before)
  ]


def _awaits_value(word: str) -> bool:
  if not word.startswith("-") or "=" in word:
    return False
  name = word.lstrip("-")
  known = [flags.FLAGS[n] for n in (name, name.removeprefix("no")) if n in flags.FLAGS]
  return not any(flag.boolean for flag in known)


def _explained(error: Exception, argv: list[str]) -> str:
  """What is wrong with the first wrong --config.FIELD=VALUE; else what the error says.

  ml_collections names neither the whole field nor what it expects.
  """
  text = str(error.args[0] if isinstance(error, KeyError) else error)
  words = [word.lstrip("-") for word in argv[1:]]
  files = [word for word in words if word.startswith("config=")]
  if not files or not any(word.startswith("config.") for word in words):
    return text
  alone = flags.FlagValues()
  config_flags.DEFINE_config_file(
    "config", flag_values=alone, sys_argv=["", f"--{files[0]}"]
  )
  try:
    alone(["", f"--{files[0]}"])
    for word in words:
      name, _, value = word.removeprefix("config.").partition("=")
      if not word.startswith("config."):
        continue
      found = field(alone["config"].value, name, where="--config")
      if f"--{word}: " in text:  # absl names the flag whose value it cannot parse
        return str(wrong_type(name, value, found, where="--config"))
  except ConfigError as unknown:
    return str(unknown)
  except Exception:  # the file itself is wrong, which the error says
    return text
  return text


def _leave(status: int, message: str):
  print(f"{sys.argv[0]}: {' '.join(message.split())}", file=sys.stderr)
  sys.exit(status)
