"""Command lines and exit statuses, shared by all programs."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable

import jax
from absl import app, flags, logging

from launch.door import read_config
from model import AttentionError, weights
from packing import InputError
from training.errors import ConfigError, Stopped, Terminated
from training.stopping import signals

MISTAKES = InputError, AttentionError, weights.WeightsError  # of the user
_EXAMPLES = {"config": "configs/quickstart.py", "workdir": "runs/mine"}  # values of flags


def run(
  main: Callable[[], None],
  *,
  as_flags: Callable[[list[str]], list[str]] = lambda words: words,
):
  """Runs a command; reports a user's mistake in one line, with exit status 2.

  Args:
    main: called after the flags are parsed.
    as_flags: converts the words of the command line to flags, before they are parsed.
  """

  def parse(argv: list[str]) -> list[str]:
    try:
      argv[1:] = as_flags(argv[1:])  # in place: ml_collections reads sys.argv
      left = flags.FLAGS(argv)
      if "config" in flags.FLAGS and flags.FLAGS["config"].value is not None:
        flags.FLAGS["config"].value.to_dict()  # fails only now if the file is missing
    except SystemExit:  # --help was shown
      sys.exit(0)
    except Exception as error:  # a config file may fail in any way
      _exit_with(2, _explain(error, argv))
    if len(left) > 1:
      _exit_with(2, f"Expected --name=value, found {' '.join(left[1:])!r}. See --help.")
    return left

  def guarded(_):
    # Orbax logs each file that it writes, and long errors before it raises them.
    logging.set_verbosity(logging.FATAL)
    try:
      main()
    except MISTAKES as error:
      _exit_with(2, str(error))
    except (Stopped, OSError) as error:
      _exit_with(1, str(error))
    except Terminated as error:
      _exit_with(128 + (signals.heard or signal.SIGTERM), str(error))
    except jax.errors.JaxRuntimeError as error:
      if jax.process_count() == 1:
        raise
      failed = f"This process or another one failed: {str(error).splitlines()[0]}"
      remedy = "Run the same commands again to resume from the last checkpoint."
      print(f"{sys.argv[0]}: {failed} {remedy}", file=sys.stderr, flush=True)
      os._exit(1)  # in a normal exit, JAX would wait for the other processes and abort
    except KeyboardInterrupt:
      signals.leave()

  app.run(guarded, flags_parser=parse)


def _explain(error: Exception, argv: list[str]) -> str:
  """What is wrong with --config and its fields, or which flags are missing.

  absl and ml_collections name neither the whole field nor its type, nor what to do.
  """
  words = [word.lstrip("-") for word in argv[1:]]
  if "config" in words[:-1]:  # its value is the next word
    place = words.index("config")
    words[place : place + 2] = [f"config={words[place + 1]}"]
  files = [word.partition("=")[2] for word in words if word.startswith("config=")]
  fields = [f"--{word}" for word in words if word.startswith("config.") and "=" in word]
  try:
    if files:
      read_config(files[-1], fields)
  except ConfigError as fault:
    return str(fault)
  text = str(error.args[0] if isinstance(error, KeyError) else error)
  if missing := sorted(re.findall(r"--(\w+) must have a value", text)):
    given = " ".join(f"--{name}={_EXAMPLES.get(name, '...')}" for name in missing)
    names = " and ".join(f"--{name}" for name in missing)
    return f"{names} must be given. Add, for example, {given}; see --help."
  return text


def _exit_with(status: int, message: str):
  print(f"{sys.argv[0]}: {' '.join(message.split())}", file=sys.stderr)
  sys.exit(status)
