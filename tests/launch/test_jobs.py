"""The launcher of processes: none is left behind, and finished work is kept."""

import _thread
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest

from launch.sweep import jobs
from training.compiler import cores


def sleeper(folder: pathlib.Path, name: str, seconds: float) -> jobs.Job:
  """Writes its process number, sleeps, and then writes a file with its cores."""
  code = (
    "import json, os, pathlib, sys, time\n"
    f"pathlib.Path({str(folder / (name + '.pid'))!r}).write_text(str(os.getpid()))\n"
    f"time.sleep({seconds})\n"
    f"pathlib.Path({str(folder / name)!r}).write_text(json.dumps(sorted("
    "os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else []))"
  )
  command = [sys.executable, "-c", code]
  return jobs.Job(name, command, folder / f"{name}.log", (folder / name).exists)


def test_stopped_it_leaves_no_process_and_resumes_later(tmp_path):
  queue = [sleeper(tmp_path, "short", 0), sleeper(tmp_path, "long", 60)]

  def interrupt():
    while not ((tmp_path / "short").exists() and (tmp_path / "long.pid").exists()):
      time.sleep(0.02)
    _thread.interrupt_main()

  threading.Thread(target=interrupt, daemon=True).start()
  with pytest.raises(KeyboardInterrupt):
    jobs.run_all(queue, jobs=2)
  with pytest.raises(ProcessLookupError):
    os.kill(int((tmp_path / "long.pid").read_text()), 0)
  assert not (tmp_path / "long").exists()

  first = (tmp_path / "short").stat().st_mtime_ns
  queue[1] = sleeper(tmp_path, "long", 0)
  assert jobs.run_all(queue, jobs=2) == {}
  assert (tmp_path / "long").exists()
  assert (tmp_path / "short").stat().st_mtime_ns == first


def test_a_failure_is_reported_and_stops_no_other(tmp_path, capsys):
  program = "import sys; print('reading'); sys.exit('no such file')"
  broken = jobs.Job(
    "broken", [sys.executable, "-c", program], tmp_path / "log", lambda: False
  )
  queue = [broken, sleeper(tmp_path, "fine", 0)]
  assert jobs.run_all(queue, jobs=1) == {"broken": "no such file"}
  assert (tmp_path / "fine").exists()
  log = capsys.readouterr().err.splitlines()
  assert log[0].startswith("[1/2] broken: failed: no such file, 0 min left")
  assert log[1].startswith("[2/2] fine: ")
  assert jobs.run_all(queue[1:], jobs=1) == {}
  assert capsys.readouterr().err == "1 of 1 runs are finished\n"


@pytest.mark.skipif(len(cores()) < 2, reason="needs two cores")
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs affinities")
def test_each_has_cores_of_its_own(tmp_path):
  jobs.run_all([sleeper(tmp_path, name, 0.3) for name in ("a", "b")], jobs=2)
  a, b = (set(json.loads((tmp_path / name).read_text())) for name in ("a", "b"))
  assert a | b == set(cores())
  assert not a & b


def test_a_program_ends_with_the_process_that_started_it(tmp_path):
  program = tmp_path / "program.py"
  program.write_text(
    "import sys, time; print(sys.argv[1:], __name__, flush=True); time.sleep(60)"
  )
  command = [*jobs.ends_with_parent(program), "--x=1"]
  with subprocess.Popen(
    command, cwd=jobs.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
  ) as process:
    assert process.stdout.readline() == "['--x=1'] __main__\n"
    assert process.poll() is None  # for as long as its input is open
    process.stdin.close()
    assert process.wait(timeout=30) == 1


@pytest.mark.parametrize(("platforms", "pools"), [("cpu", "1"), ("cuda,cpu", None)])
def test_runs_that_compile_for_an_accelerator_may_have_many_pools(platforms, pools):
  environment = jobs._with_threads(2, {"JAX_PLATFORMS": platforms})
  assert environment.get("MALLOC_ARENA_MAX") == pools
  assert environment["OMP_NUM_THREADS"] == "2"
