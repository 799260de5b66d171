"""Command lines and exit statuses, shared by all programs."""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import runpy
import signal
import sys
from collections.abc import Callable

import jax
from absl import app, flags, logging

from training.errors import ConfigError, field_value, wrong_type
from training.stopping import signals

_EXAMPLES = {"config": "configs/quickstart.py", "workdir": "runs/mine"}  # values of flags


class Stopped(Exception):
  """The run cannot continue; the message says why and what to do. Exit status 1."""


class Terminated(Exception):
  """A signal stopped the run, which has saved its state. Exit status 130 or 143."""


class Parser(argparse.ArgumentParser):
  """Reports a wrong command line in one line that names --help; exit status 2."""

  def error(self, message):
    message = " ".join(message.split()).rstrip(".")
    self.exit(2, f"error: {message}. See {self.prog} --help.\n")


def positive(text: str) -> int:
  """Parses a whole number of at least 1; for the `type` of an argparse option.

  Example:
    >>> positive("3")
    3
    >>> positive("0")
    Traceback (most recent call last):
    argparse.ArgumentTypeError: expected a whole number of at least 1, found 0
  """
  if not text.isdecimal() or int(text) < 1:
    raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {text}")
  return int(text)


def run(
  main: Callable[[], None],
  *,
  mistakes: tuple[type[Exception], ...],
  as_flags: Callable[[list[str]], list[str]] = lambda words: words,
):
  """Runs a command; reports a user's mistake in one line, with exit status 2.

  Args:
    main: called after the flags are parsed.
    mistakes: types of exceptions that report a user's mistake.
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
    except mistakes as error:
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


def typed_fields() -> list[str]:
  """The fields of --config that the command line sets."""
  from ml_collections import config_flags  # here, since not every command has a config

  return list(config_flags.get_override_values(flags.FLAGS["config"]))


def _explain(error: Exception, argv: list[str]) -> str:
  """A message for a --config that cannot be used, or the first wrong --config.FIELD=VALUE,
  or missing flags; otherwise the error's own.

  The errors of absl and ml_collections name neither the full field nor the expected type,
  nor what to do.
  """
  text = str(error.args[0] if isinstance(error, KeyError) else error)
  words = [word.lstrip("-") for word in argv[1:]]
  if "config" in words[:-1]:  # its value is the next word
    place = words.index("config")
    words[place : place + 2] = [f"config={words[place + 1]}"]
  files = [word for word in words if word.startswith("config=")]
  if files and (fault := _fault_of(files[-1].removeprefix("config="))):
    return fault
  if missing := sorted(re.findall(r"--(\w+) must have a value", text)):
    given = " ".join(f"--{name}={_EXAMPLES.get(name, '...')}" for name in missing)
    return f"Expected more flags. Add them, such as {given}; see --help."
  if not files or not any(word.startswith("config.") for word in words):
    return text
  from ml_collections import config_flags

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
      default = field_value(alone["config"].value, name, where="--config")
      if f"--{word}: " in text:  # absl names the flag whose value it cannot parse
        return str(wrong_type(name, value, default, where="--config"))
  except ConfigError as unknown:
    return str(unknown)
  except Exception:  # the config file itself is wrong, and `error` says so
    return text
  return text


def _fault_of(config: str) -> str | None:
  """What is wrong with a --config by itself, FILE or FILE:ARGUMENT; None if nothing is."""
  path, *argument = config.split(":", 1)
  if not pathlib.Path(path).is_file():
    return f"There is no config file {path!r}. Give one, such as {_EXAMPLES['config']}."
  try:
    made = runpy.run_path(path)["get_config"](*argument)
  except Exception as error:  # a config file may fail in any way
    own = isinstance(error, ConfigError) or type(error) is LookupError
    reason = str(error) if own else f"{type(error).__name__}: {error}"
    return f"--config={config} cannot be used: {reason}"
  return None if made else f"--config={config} cannot be used: get_config() returns {made}."


def _exit_with(status: int, message: str):
  print(f"{sys.argv[0]}: {' '.join(message.split())}", file=sys.stderr)
  sys.exit(status)
