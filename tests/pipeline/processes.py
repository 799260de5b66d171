"""Processes that should end."""

import contextlib
import pathlib
import time
from collections.abc import Iterable


def runs(pid: int) -> bool:
  """Whether a process is there and has not ended, even if its parent has not noticed."""
  with contextlib.suppress(OSError):
    status = pathlib.Path(f"/proc/{pid}/stat").read_text()
    return status.rpartition(")")[2].split()[0] != "Z"
  return False


def children_of(pid: int) -> list[int]:
  """Linux lists children by the thread that started them."""
  paths = pathlib.Path(f"/proc/{pid}/task").glob("*/children")
  return [int(child) for path in paths for child in path.read_text().split()]


def assert_they_end(pids: Iterable[int]):
  deadline = time.monotonic() + 60
  while any(map(runs, pids)):
    assert time.monotonic() < deadline
    time.sleep(0.02)
