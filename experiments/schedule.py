"""Runs commands beside each other, each on cores of its own, and goes on later."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

ROOT = pathlib.Path(__file__).parents[1]
_PATIENCE = 10  # seconds that a command has to end when it is asked to
_PULSE = 60  # seconds without news after which it is told what runs


@dataclasses.dataclass(frozen=True)
class Task:
  """A command.

  Attributes:
    name: to tell of it.
    command: to run; its standard input stays open for as long as it is to run.
    log: the file for its output.
    is_finished: whether there is nothing left to do.
    cost: how long it takes, in any unit; for the time left.
  """

  name: str
  command: Sequence[str]
  log: pathlib.Path
  is_finished: Callable[[], bool]
  cost: float = 1.0


@dataclasses.dataclass
class _Running:
  task: Task
  process: subprocess.Popen
  start: float
  log_start: int


def cores() -> list[int]:
  """The cores that this process may use."""
  if hasattr(os, "sched_getaffinity"):
    return sorted(os.sched_getaffinity(0))
  return list(range(os.cpu_count() or 1))


def run_all(
  tasks: Sequence[Task], *, jobs: int, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
  """Runs the tasks that are not finished, in their order; one that fails stops no other.

  However this ends, no command is left running.

  Args:
    tasks: to run.
    jobs: how many at a time; each has its share of the cores.
    environment: variables for the commands, besides those there are.

  Returns:
    The last words of those that failed, by their names.
  """
  waiting = [task for task in tasks if not task.is_finished()]
  done, total = len(tasks) - len(waiting), len(tasks)
  told_at, left = time.monotonic(), sum(task.cost for task in waiting)
  seconds, cost = 0.0, 0.0  # of what has ended
  if done:
    say(f"{done} of {total} runs are finished")
  failures: dict[str, str] = {}
  shares = [cores()[slot::jobs] or cores() for slot in range(jobs)]
  running: dict[int, _Running] = {}
  try:
    while waiting or running:
      for slot in range(jobs):
        if waiting and slot not in running:
          running[slot] = _start(waiting.pop(0), shares[slot], environment or {})
      time.sleep(0.1)
      for slot, one in list(running.items()):
        status = one.process.poll()
        if status is None:
          continue
        _close(running.pop(slot))
        now = time.monotonic()
        done, left, cost = done + 1, left - one.task.cost, cost + one.task.cost
        seconds += now - one.start
        told = f"{now - one.start:.0f} s"
        if status or not one.task.is_finished():
          said = _last_words(one) or f"ended with status {status} and said nothing"
          failures[one.task.name] = said
          told = f"failed: {failures[one.task.name]}"
        under_way = sum(now - other.start for other in running.values())
        minutes = max(left * seconds / cost - under_way, 0) / jobs / 60
        then = f", about {minutes:.0f} min left" if done < total else ""
        say(f"[{done}/{total}] {one.task.name}: {told}{then}")
        told_at = now
      if time.monotonic() - told_at > _PULSE:
        names = (f"{x.task.name} ({_last_words(x)})" for x in running.values())
        say(f"[{done}/{total}] under way: {'; '.join(names)}")
        told_at = time.monotonic()
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


def say(line: str):
  """Tells on standard error."""
  print(line, file=sys.stderr, flush=True)


def ends_with_parent(program: pathlib.Path) -> list[str]:
  """The command of a program, with which it ends when who started it is gone.

  Args:
    program: a Python file.
  """
  return [sys.executable, "-m", "experiments.schedule", str(program)]


def end_with_parent():
  """Has this process end when its standard input is closed: who started it is gone."""

  def wait():
    while os.read(0, 1):
      pass
    os._exit(1)

  threading.Thread(target=wait, daemon=True).start()


def _start(task: Task, share: Sequence[int], environment: Mapping[str, str]) -> _Running:
  task.log.parent.mkdir(parents=True, exist_ok=True)
  with task.log.open("ab") as log:
    start = log.tell()
    process = subprocess.Popen(
      task.command,
      stdin=subprocess.PIPE,
      stdout=log,
      stderr=subprocess.STDOUT,
      env={**os.environ, **_threads(len(share)), **environment},
      start_new_session=True,  # Ctrl-C is for this process, which ends the others
    )
  if hasattr(os, "sched_setaffinity"):  # before it has started any threads
    with contextlib.suppress(ProcessLookupError):  # it has ended; its log says why
      os.sched_setaffinity(process.pid, share)
  return _Running(task, process, time.monotonic(), start)


def _threads(count: int) -> dict[str, str]:
  """Variables by which libraries start no more threads than that."""
  libraries = ("OMP", "OPENBLAS", "MKL")
  variables = {f"{library}_NUM_THREADS": str(count) for library in libraries}
  if count == 1:
    flags = os.environ.get("XLA_FLAGS", "")
    variables["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
  path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
  return variables | {"PYTHONPATH": os.pathsep.join(path)}


def _close(one: _Running):
  one.process.wait()
  if one.process.stdin:
    one.process.stdin.close()


def _last_words(one: _Running) -> str:
  with one.task.log.open("rb") as log:
    log.seek(one.log_start)
    text = log.read().decode(errors="replace")
  said = [line.rpartition("\r")[2].strip() for line in text.split("\n") if line.strip()]
  return said[-1] if said else ""


if __name__ == "__main__":
  end_with_parent()
  sys.argv = sys.argv[1:]
  runpy.run_path(sys.argv[0], run_name="__main__")
