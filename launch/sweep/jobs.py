"""Runs commands in parallel, each on its own share of the cores.

  python -m launch.sweep.jobs PROGRAM.py ...    # ends when its standard input is closed

Finished jobs are skipped, so the same jobs can be given again after an interruption.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from launch.door import ROOT
from training import memory
from training.compiler import cores

_PATIENCE = 60  # seconds that a command has to save and exit after it is terminated
_PULSE = 60  # seconds without a line after which one says what is running


@dataclasses.dataclass(frozen=True)
class Job:
  """A command to run.

  Attributes:
    name: shown in progress and errors.
    command: the command; its standard input stays open for as long as it should run.
    log: the file for its output.
    is_finished: returns whether nothing is left to do.
    cost: how long it takes, in any unit; used to estimate the time left.
  """

  name: str
  command: Sequence[str]
  log: pathlib.Path
  is_finished: Callable[[], bool]
  cost: float = 1.0


@dataclasses.dataclass
class _Running:
  job: Job
  process: subprocess.Popen
  start: float
  log_start: int


def run_all(
  queue: Sequence[Job],
  *,
  jobs: int,
  environment: Mapping[str, str] | None = None,
  failures: dict[str, str] | None = None,
) -> dict[str, str]:
  """Runs the jobs that are not finished, in order; a failure does not stop the others.

  However this ends, no command is left running. Each command has 1 / `jobs` of the cores.

  Args:
    queue: the jobs.
    jobs: how many run at a time.
    environment: variables for the commands, in addition to those of this process.
    failures: where to note what fails, for a caller that may be interrupted.

  Returns:
    The last line that each failed command printed, by the name of its job.
  """
  waiting = [job for job in queue if not job.is_finished()]
  shares = [cores()[slot::jobs] or cores() for slot in range(jobs)]
  running: dict[int, _Running] = {}
  failures = {} if failures is None else failures
  news = _News(queue, waiting)
  try:
    while waiting or running:
      for slot in range(jobs):
        if waiting and slot not in running:
          with _undisturbed():
            running[slot] = _start(waiting.pop(0), shares[slot], environment or {})
      time.sleep(0.1)
      for slot, one in list(running.items()):
        status = one.process.poll()
        if status is None:
          continue
        _close(running.pop(slot))
        error = ""
        if status or not one.job.is_finished():
          error = _last_line(one) or f"ended with status {status} and no message"
          failures[one.job.name] = error
        news.ended(one, error)
      news.pulse(list(running.values()))
  finally:
    for one in running.values():
      one.process.terminate()
    for one in running.values():
      try:
        one.process.wait(_PATIENCE)
      except subprocess.TimeoutExpired:
        one.process.kill()
      _close(one)
  return failures


class _News:
  """Prints progress and the time left, a line for each command that ends."""

  def __init__(self, queue: Sequence[Job], waiting: Sequence[Job]):
    self._total, self._done = len(queue), len(queue) - len(waiting)
    self._left, self._cost = sum(job.cost for job in waiting), 0.0
    self._start = self._last = time.monotonic()
    if self._done:
      self._say(f"{self._done} of {self._total} runs are finished")

  def ended(self, one: _Running, error: str):
    now, cost = time.monotonic(), one.job.cost
    self._done, self._left, self._cost = (
      self._done + 1,
      self._left - cost,
      self._cost + cost,
    )
    result = f"failed: {error}" if error else f"{now - one.start:.0f} s"
    minutes = (now - self._start) * self._left / self._cost / 60
    left = f", {minutes:.0f} min left" if self._left else ""
    self._say(f"[{self._done}/{self._total}] {one.job.name}: {result}{left}")

  def pulse(self, running: Sequence[_Running]):
    """Prints what is running if no command ended for a while."""
    if time.monotonic() - self._last > _PULSE:
      names = "; ".join(f"{one.job.name} ({_last_line(one)})" for one in running)
      self._say(f"[{self._done}/{self._total}] running: {names}")

  def _say(self, line: str):
    self._last = time.monotonic()
    print(line, file=sys.stderr, flush=True)


def ends_with_parent(program: pathlib.Path) -> list[str]:
  """The command that runs a Python file until the process that started it is gone."""
  return [sys.executable, "-m", "launch.sweep.jobs", str(program)]


def end_with_parent():
  """Ends this process when its standard input is closed, since its parent is then gone."""

  def wait():
    while os.read(0, 1):
      pass
    os._exit(1)

  threading.Thread(target=wait, daemon=True).start()


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
  """Delays SIGINT and SIGTERM until the block has started and stored its process."""
  heard: list[int] = []
  handlers = {
    number: signal.signal(number, lambda number, _: heard.append(number))
    for number in (signal.SIGINT, signal.SIGTERM)
  }
  try:
    yield
  finally:
    for number, handler in handlers.items():
      signal.signal(number, handler)
  for signal_number in heard:
    signal.raise_signal(signal_number)


def _start(job: Job, share: Sequence[int], environment: Mapping[str, str]) -> _Running:
  job.log.parent.mkdir(parents=True, exist_ok=True)
  path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
  with job.log.open("ab") as log:
    log_start = log.tell()
    process = subprocess.Popen(
      job.command,
      stdin=subprocess.PIPE,
      stdout=log,
      stderr=subprocess.STDOUT,
      env=_with_threads(len(share), {**os.environ, "PYTHONPATH": path, **environment}),
      start_new_session=True,  # Ctrl-C reaches this process only, which ends the others
    )
  if hasattr(os, "sched_setaffinity"):  # at once, before the command starts any threads
    with contextlib.suppress(ProcessLookupError):  # it has ended; its log says why
      os.sched_setaffinity(process.pid, share)
  return _Running(job, process, time.monotonic(), log_start)


def _with_threads(count: int, environment: dict[str, str]) -> dict[str, str]:
  """An environment that limits libraries to `count` threads and, on CPUs, one memory pool.

  `training.memory` keeps large buffers in that pool; threads with other pools would not.
  """
  libraries = ("OMP", "OPENBLAS", "MKL")
  variables = {f"{library}_NUM_THREADS": str(count) for library in libraries}
  if memory.only_cpus(environment):
    variables["MALLOC_ARENA_MAX"] = "1"
  if count == 1:
    flags = environment.get("XLA_FLAGS", "")
    variables["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
  return environment | variables


def _close(one: _Running):
  one.process.wait()
  if one.process.stdin:
    one.process.stdin.close()


def _last_line(one: _Running) -> str:
  with one.job.log.open("rb") as log:
    log.seek(one.log_start)
    text = log.read().decode(errors="replace")
  lines = [line.rpartition("\r")[2].strip() for line in text.split("\n") if line.strip()]
  return lines[-1] if lines else ""


if __name__ == "__main__":
  end_with_parent()
  sys.argv = sys.argv[1:]
  runpy.run_path(sys.argv[0], run_name="__main__")
