"""Runs Python programs in processes that have imported their libraries already.

The imports of train.py take longer than many of its steps. A server imports them once for
each worker of pytest, and forks for each program. The program has an environment, a folder,
standard streams and an exit status of its own. What libraries read of the environment when
they are imported is the server's, except JAX's options.
"""

from __future__ import annotations

import ast
import atexit
import functools
import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence

_ROOT = pathlib.Path(__file__).parents[1]
_LIMIT = 600  # seconds, after which a program is ended


def run(
  arguments: Sequence[object],
  *,
  cwd: str | pathlib.Path | None = None,
  env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess:
  """As `subprocess.run([sys.executable, *arguments], capture_output=True, text=True)`.

  Args:
    arguments: a program and its arguments, or "-m", a module and its arguments.
    cwd: the folder to run it in; this one if None.
    env: the environment; this process's if None.
  """
  process = Process(arguments, cwd=cwd, env=env)
  printed = process.communicate()
  return subprocess.CompletedProcess(process.args, process.returncode, *printed)


class Process:
  """A program that runs; as much of `subprocess.Popen` as tests use.

  Args: as of `run`, and
    new_session: whether signals to the terminal's processes do not reach it.

  Attributes:
    output: the file of what it prints.
  """

  returncode: int | None = None

  def __init__(self, arguments, *, cwd=None, env=None, new_session=False):
    self.args = [str(word) for word in arguments]
    self._folder = tempfile.TemporaryDirectory()
    self._streams = [pathlib.Path(self._folder.name, stream) for stream in ("out", "err")]
    self.output, _ = self._streams
    self.output.touch()
    order: dict = {"words": self.args, "cwd": str(cwd or os.getcwd())}
    order |= {"env": dict(os.environ if env is None else env)}
    order |= {"streams": [str(path) for path in self._streams]}
    order |= {"new_session": new_session}
    self.pid = _answer(order)

  def poll(self) -> int | None:
    return self._wait(os.WNOHANG)

  def communicate(self) -> tuple[str, str]:
    """Waits for its end; what it printed, and its errors. Once."""
    self._wait(0)
    printed, errors = (path.read_text() for path in self._streams)
    self._folder.cleanup()
    return printed, errors

  def send_signal(self, number: int):
    if self.poll() is None:
      os.kill(self.pid, number)

  def kill(self):
    self.send_signal(signal.SIGKILL)

  def _wait(self, options: int) -> int | None:
    if self.returncode is None:
      self.returncode = _answer({"pid": self.pid, "options": options})
    return self.returncode


def _answer(order: dict) -> int | None:
  """What the server answers."""
  server = _server()
  server.stdin.write(json.dumps(order) + "\n")
  server.stdin.flush()
  line = server.stdout.readline()
  assert line, "the server of programs ended; see its errors"
  return json.loads(line)


@functools.cache
def _server() -> subprocess.Popen:
  """Ends with this process."""
  server = subprocess.Popen(
    [sys.executable, "-m", "tests.forked"],
    cwd=_ROOT,
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  )
  atexit.register(server.communicate)
  return server


def _serve():
  """Starts what is ordered, and waits for it, line by line."""
  # What the programs import. No device is touched, so that forking is safe.
  os.environ.setdefault("TQDM_MININTERVAL", "15")  # as programs set it; read at import
  import gc

  import tensorboardX  # noqa: F401

  gc.freeze()
  gc.set_threshold(100_000, 50, 50)  # tracing leaves many objects
  for line in sys.stdin:
    order = json.loads(line)
    if "words" in order:
      answer: int | None = os.fork()
      if not answer:
        signal.alarm(_LIMIT)
        _become(**order)
    else:
      ended, status = os.waitpid(order["pid"], order["options"])
      answer = os.waitstatus_to_exitcode(status) if ended else None
    print(json.dumps(answer), flush=True)


def _become(
  words: list[str], cwd: str, env: dict[str, str], streams: list[str], new_session: bool
):
  """Turns this process into the program."""
  if new_session:
    os.setsid()
  os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
  for number, path in enumerate(streams, start=1):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
  os.chdir(cwd)
  os.environ.clear()
  os.environ.update(env)
  _configure_jax(env)
  status = 1
  try:
    status = _run(words)
  except BaseException:
    sys.excepthook(*sys.exc_info())
  finally:
    threading._shutdown()  # type: ignore[attr-defined]  # as at the end of any program
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _run(words: list[str]) -> int:
  """Its exit status."""
  is_module = words[0] == "-m"
  sys.argv = words[is_module:]
  sys.path[0] = os.getcwd() if is_module else str(pathlib.Path(words[0]).absolute().parent)
  try:
    if is_module:
      runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
      runpy.run_path(sys.argv[0], run_name="__main__")
  except SystemExit as end:
    if end.code is None or isinstance(end.code, int):
      return end.code or 0
    print(end.code, file=sys.stderr)
    return 1
  return 0


def _configure_jax(env: Mapping[str, str]):
  """JAX read the environment of the server when it was imported."""
  import jax

  for name, value in env.items():
    option = name.lower()
    if name.startswith("JAX_") and option in jax.config.values:
      is_text = isinstance(jax.config.values[option], str | None)
      jax.config.update(option, value if is_text else ast.literal_eval(value.capitalize()))


if __name__ == "__main__":
  _serve()
