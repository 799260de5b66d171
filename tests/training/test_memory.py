"""Freed memory is kept between steps, and results are the same."""

import json
import os
import platform
import subprocess
import sys
import textwrap

import pytest

from tests.programs import ROOT
from training import memory

PROGRAM = textwrap.dedent(
  """
  import json, resource
  import jax, jax.numpy as jnp
  from training import memory

  @jax.jit
  def step(x):
    return jnp.cos(x)

  def run():
    x = jnp.arange(12_000_000.0)  # 48 MB, more than glibc ever keeps by itself
    faults = []
    for _ in range(60):
      before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
      x = jax.block_until_ready(step(x))
      faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return sum(faults[-10:]), float(x.sum())  # the first enlarge the pool

  returned = run()
  assert memory.keep()
  print(json.dumps([returned, run()]))
  """
)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_steps_take_less_new_memory_and_give_the_same_result():
  command = [sys.executable, "-c", PROGRAM]
  environment = os.environ | {"JAX_PLATFORMS": "cpu"}
  done = subprocess.run(
    command, capture_output=True, text=True, check=True, env=environment
  )
  returned, kept = json.loads(done.stdout)
  assert kept[0] < returned[0] / 4
  assert kept[1] == returned[1]


POOLS = textwrap.dedent(
  """
  import ctypes, sys
  import {program}

  library = ctypes.CDLL(None)
  library.fopen.restype = ctypes.c_void_p
  file = ctypes.c_void_p(library.fopen(sys.argv[1].encode(), b"w"))
  library.malloc_info(0, file)
  library.fclose(file)
  """
)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
@pytest.mark.parametrize(
  ("program", "pools"),
  [
    ("train", 1),
    *(
      pytest.param(program, 1, marks=pytest.mark.slow)
      for program in ("eval", "predict", "benchmarks.training")
    ),
    ("pyarrow", 2),
  ],
)
def test_threads_of_libraries_share_one_pool(program, pools, tmp_path):
  """A thread that pyarrow starts would have one of its own."""
  path = tmp_path / "malloc.xml"
  command = [sys.executable, "-c", POOLS.replace("{program}", program), path]
  subprocess.run(command, check=True, cwd=ROOT, env=os.environ | {"JAX_PLATFORMS": "cpu"})
  assert path.read_text().count("<heap nr=") == pools


def test_another_c_library_is_left_alone(monkeypatch):
  monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
  monkeypatch.setattr(memory.ctypes, "CDLL", None)  # calling it would fail
  assert not memory.keep()


def test_threads_that_compile_for_an_accelerator_do_not_share_one_pool(monkeypatch):
  monkeypatch.setattr(memory.ctypes, "CDLL", None)  # calling it would fail
  monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
  assert not memory.one_pool()
  monkeypatch.delenv("JAX_PLATFORMS")
  monkeypatch.setattr(memory, "entry_points", lambda *, group: [f"a plugin in {group}"])
  assert not memory.one_pool()
  assert not memory.keep()
  assert memory.only_cpus({"JAX_PLATFORMS": "cpu"})
