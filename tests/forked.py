"""Runs Python programs in processes that have imported their libraries already.

The imports of train.py take longer than many of its steps. The fork server of
multiprocessing imports `tests.preloaded` once for each worker of pytest, and forks for each
program, which has an environment, a folder, standard streams and an exit status of its own.
What libraries read of the environment when they are imported is the server's, except JAX's
options.
"""

from __future__ import annotations

import ast
import atexit
import multiprocessing.context
import os
import pathlib
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import resource_tracker

_LIMIT = 600  # seconds, after which a program is ended
multiprocessing.set_forkserver_preload(["tests.preloaded", "pytest"])


def run(arguments: Sequence[object], **options) -> subprocess.CompletedProcess:
  """As `subprocess.run([sys.executable, *arguments], capture_output=True, text=True)`.

  Args: as of `Process`.
  """
  process = Process(arguments, **options)
  printed = process.communicate()
  return subprocess.CompletedProcess(process.args, process.returncode, *printed)


class Process(multiprocessing.context.ForkServerProcess):
  """A program that runs; as much of `subprocess.Popen` as tests use.

  Args:
    arguments: a program and its arguments, or "-m", a module and its arguments.
    cwd: the folder to run it in; this one if None.
    env: the environment; this process's if None.
    new_session: whether signals to the terminal's processes do not reach it.

  Attributes:
    output: the file of what it prints.
  """

  def __init__(self, arguments, *, cwd=None, env=None, new_session=False):
    super().__init__()
    self.args = [str(word) for word in arguments]
    self._place = cwd or os.getcwd(), dict(os.environ if env is None else env)
    self._new_session = new_session
    self._streams = self._make_streams()
    self.start()

  def _make_streams(self):
    """What it reads, and where it prints and where its errors go."""
    folder = pathlib.Path(tempfile.mkdtemp())
    self.output, self._errors = folder / "out", folder / "err"
    self.output.touch()
    return os.devnull, self.output, self._errors

  @property
  def returncode(self) -> int | None:
    return self.exitcode

  def poll(self) -> int | None:
    return self.exitcode

  def communicate(self) -> tuple[str, str]:
    """Waits for its end; what it printed, and its errors. Once."""
    self.join()
    printed = self.output.read_text(), self._errors.read_text()
    shutil.rmtree(self.output.parent)
    return printed

  def send_signal(self, number: int):
    if self.exitcode is None:
      os.kill(self.pid, number)

  def run(self):
    """In the new process, which turns into the program."""
    signal.alarm(_LIMIT)
    resource_tracker._resource_tracker._fd = None  # type: ignore[attr-defined]  # its own
    if self._new_session:
      os.setsid()
    read, *written = self._streams
    os.dup2(os.open(read, os.O_RDONLY), 0)
    for number, path in enumerate(written, 1):
      os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), number)
    folder, env = self._place
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    _configure_jax(env)
    is_module = self.args[0] == "-m"
    sys.argv = self.args[is_module:]
    program = pathlib.Path(sys.argv[0])
    first = os.getcwd() if is_module else str(program.absolute().parent)
    more = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:1] = [first, *more]
    try:
      if is_module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
      else:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
      threading._shutdown()  # type: ignore[attr-defined]  # as at the end of any program
      atexit._run_exitfuncs()


class Command(Process):
  """As `subprocess.Popen` of a Python command, as `launch.sweep.jobs` starts it.

  Args:
    command: the interpreter, and `arguments` of `Process`.
    stdin: a pipe, which stays open until `stdin` is closed.
    stdout: an open file, to which is appended.
    stderr: goes where `stdout` goes.
    env, start_new_session: `env` and `new_session` of `Process`.
  """

  def __init__(self, command, *, stdin, stdout, stderr, env, start_new_session):
    assert command[0] == sys.executable
    assert (stdin, stderr) == (subprocess.PIPE, subprocess.STDOUT)
    self._pipe = pathlib.Path(tempfile.mkdtemp()) / "in"
    os.mkfifo(self._pipe)
    self._log = stdout.name
    super().__init__(command[1:], env=env, new_session=start_new_session)
    self.stdin = self._pipe.open("wb")  # the program begins when this is open
    shutil.rmtree(self._pipe.parent)

  def wait(self, timeout: float | None = None):
    """Waits for its end; raises TimeoutExpired as `subprocess.Popen` does."""
    self.join(timeout)
    if self.exitcode is None:
      raise subprocess.TimeoutExpired(self.args, timeout or 0)

  def _make_streams(self):
    return self._pipe, self._log, self._log


def _configure_jax(env: Mapping[str, str]):
  """JAX read the environment of the server when it was imported."""
  import jax

  for name, value in env.items():
    option = name.lower()
    if name.startswith("JAX_") and option in jax.config.values:
      is_text = isinstance(jax.config.values[option], str | None)
      jax.config.update(option, value if is_text else ast.literal_eval(value.capitalize()))
