"""Processes that work at the same time: results, cores, and how they end."""

import functools
import multiprocessing
import os
import pathlib
import time

import pytest

from experiments.load_balance import together
from launch.sweep.jobs import cores
from training.errors import Stopped


def fail_in_process_1(process: int):
  if process == 1:
    raise OSError("lost\nin two lines")
  together.meet()


def look_for_the_other(folder: pathlib.Path, process: int) -> bool:
  """Process 0 writes late; whether the file is there when both have met."""
  if process == 0:
    time.sleep(0.3)
    (folder / "written").touch()
  together.meet()
  return (folder / "written").exists()


def own_cores(process: int) -> set[int]:
  return os.sched_getaffinity(0)


def start_late(barrier):
  """Of three processes one after the other, one of them starts at once."""
  time.sleep(multiprocessing.current_process()._identity[0] % 3)
  together._barrier = barrier


def identity(process: int) -> int:
  return os.getpid()


def test_all_meet(tmp_path):
  work = functools.partial(look_for_the_other, tmp_path)
  assert together.run_together(work, 2) == [True, True]


def test_each_has_a_core_of_its_own():
  number = min(2, len(cores()))
  found = together.run_together(own_cores, number)
  assert found == [{core} for core in cores()[:number]]


def test_each_is_a_process_of_its_own_even_if_the_work_is_short(monkeypatch):
  monkeypatch.setattr(together, "_share", start_late)
  assert len(set(together.run_together(identity, 3))) == 3


def test_a_failure_ends_all():
  with pytest.raises(Stopped, match=r"measuring process failed. OSError: lost$"):
    together.run_together(fail_in_process_1, 2)
  assert not multiprocessing.active_children()


def test_a_process_that_dies_ends_all():
  with pytest.raises(Stopped, match="BrokenProcessPool"):
    together.run_together(os._exit, 2)
