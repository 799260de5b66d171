"""Lets the C library keep freed memory for the next step.

On a CPU, XLA frees the buffers of each step and allocates them again. By default glibc
returns large buffers to the operating system, which zeroes them page by page when they are
allocated again. Results are the same either way; docs/speed.md says what this costs.

Where JAX has a plugin for an accelerator, nothing is set: steps use the accelerator's
memory, and threads that compile for it would wait for each other to use the one pool.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
from collections.abc import Mapping
from importlib.metadata import entry_points

# Names and numbers of malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8
_KEEP = {
  _M_MMAP_MAX: 0,  # large buffers come from the pool, too
  _M_TRIM_THRESHOLD: -1,  # the pool never shrinks
  _M_TOP_PAD: 256 << 20,  # the pool grows by this many bytes at a time
}


def one_pool() -> bool:
  """Gives all threads one pool (arena) of memory.

  Call it before any library starts a thread, as importing pyarrow does. Otherwise some of
  XLA's threads get another pool, which returns large buffers in spite of `keep`.

  Returns:
    Whether it succeeded; False if the C library is not glibc, or JAX may find an
    accelerator.
  """
  return _set({_M_ARENA_MAX: 1})


def keep() -> bool:
  """Keeps freed memory from now on.

  Call it after `one_pool`, and before JAX starts its first device.

  Returns:
    Whether it succeeded, as for `one_pool`.
  """
  return _set(_KEEP)


def _set(options: Mapping[int, int]) -> bool:
  if platform.libc_ver()[0] != "glibc" or not only_cpus(os.environ):
    return False
  library = ctypes.CDLL(None)
  return all([library.mallopt(option, value) for option, value in options.items()])


def only_cpus(environment: Mapping[str, str]) -> bool:
  """Whether JAX can only run on CPUs, with these variables; starts no device."""
  if chosen := environment.get("JAX_PLATFORMS"):
    return chosen == "cpu"
  return not entry_points(group="jax_plugins") and not importlib.util.find_spec("libtpu")
