"""Starts processes that really run steps, and waits for what they find.

A failure of one ends all; none is left behind, however this ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import IO, Any

from experiments.load_balance.real_steps import Case
from training.command import Stopped

ROOT = pathlib.Path(__file__).parents[1]
LIMIT = 30 * 60  # seconds of a case: processes that wait for each other may do so for ever


def run(
  case: Case, *, cores: list[int] | None = None, limit: float = LIMIT
) -> list[dict[str, Any]]:
  """Runs all processes of a case.

  Args:
    case: its process and coordinator are filled in here.
    cores: if given, process p keeps to core p, and from the first again where there are
      fewer.
    limit: seconds after which all are ended.

  Returns:
    What `experiments.real_steps.run` gives in each.

  Raises:
    Stopped: one of them failed, or the time is over; with its last words.
  """
  coordinator = f"localhost:{_free_port()}" if case.processes > 1 else ""
  cases = [
    dataclasses.replace(
      case,
      process=number,
      coordinator=coordinator,
      core=cores[number % len(cores)] if cores else None,
    )
    for number in range(case.processes)
  ]
  told = f"of {case.processes} with {case.devices} devices each"
  end = time.monotonic() + limit
  with contextlib.ExitStack() as stack:
    workers = [stack.enter_context(_worker(case)) for case in cases]
    running = set(range(len(workers)))
    while running:
      for number in sorted(running):
        status = workers[number].process.poll()
        if status is not None:
          running.remove(number)
        if status:
          raise Stopped(
            f"Process {number} {told} ended with status {status}: "
            f"{workers[number].last_words()}"
          )
      if running and time.monotonic() > end:
        number = min(running)
        raise Stopped(
          f"Process {number} {told} was not done after {limit / 60:.3g} minutes: "
          f"{workers[number].last_words()}"
        )
      time.sleep(0.1)
    return [json.loads(worker.lines()[-1]) for worker in workers]


@dataclasses.dataclass
class _Worker:
  process: subprocess.Popen
  output: IO[str]
  errors: IO[str]

  def lines(self) -> list[str]:
    self.output.seek(0)
    return self.output.read().splitlines()

  def last_words(self) -> str:
    self.errors.seek(0)
    said = [line.strip() for line in self.errors.read().splitlines() if line.strip()]
    return said[-1] if said else "it said nothing"


@contextlib.contextmanager
def _worker(case: Case) -> Iterator[_Worker]:
  """A process with its case; ended at the latest when this is left."""
  with (
    tempfile.TemporaryFile("w+") as output,
    tempfile.TemporaryFile("w+") as errors,
    subprocess.Popen(
      [sys.executable, "-m", "experiments.real_steps"],
      cwd=ROOT,
      stdin=subprocess.PIPE,
      stdout=output,
      stderr=errors,
      bufsize=0,  # else what is left of the case is written again when this is left
    ) as process,
  ):
    try:
      assert process.stdin is not None
      # It stays open: that it closes is how a worker knows to end.
      with contextlib.suppress(BrokenPipeError):  # `run` tells why it is gone
        process.stdin.write(json.dumps(dataclasses.asdict(case)).encode() + b"\n")
      yield _Worker(process, output, errors)
    finally:
      process.kill()


def _free_port() -> int:
  with socket.socket() as server:
    server.bind(("localhost", 0))
    return server.getsockname()[1]
