"""Freed memory is kept between steps, and results are the same."""

import json
import platform
import subprocess
import sys
import textwrap

import pytest

from training import memory

PROGRAM = textwrap.dedent(
  """
  import json, resource
  import jax, jax.numpy as jnp
  from training import memory

  @jax.jit
  def step(x):
    return jnp.cos(x)

  def measure(setting):
    assert setting()
    x = jnp.arange(12_000_000.0)  # 48 MB
    faults = []
    for _ in range(40):
      before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
      x = jax.block_until_ready(step(x))
      faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return sum(faults[20:]) / 20, float(x.sum())  # the first steps enlarge the pool

  settings = memory.keep, memory.give_back
  print(json.dumps([measure(setting) for setting in settings]))
  """
)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_steps_take_no_new_memory_and_give_the_same_result():
  done = subprocess.run(
    [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
  )
  kept, returned = json.loads(done.stdout)
  pages = 4 * 12_000_000 / 4096  # of one array
  assert returned[0] > pages / 4, "what is compared with: pages taken anew at each step"
  assert kept[0] < pages / 8
  assert kept[1] == returned[1]


def test_another_c_library_is_left_alone(monkeypatch):
  monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
  monkeypatch.setattr(memory.ctypes, "CDLL", None)  # calling it would fail
  assert not memory.keep()
  assert not memory.give_back()
