"""Lets the C library keep freed memory for the next step.

On a CPU, XLA frees the buffers of each step and allocates them again. By default glibc
returns large buffers to the operating system, which zeroes them page by page when they are
allocated again. Results are the same either way; docs/speed.md says what this costs.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Mapping

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
    Whether it succeeded; False if the C library is not glibc.
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
  if platform.libc_ver()[0] != "glibc":
    return False
  library = ctypes.CDLL(None)
  return all([library.mallopt(option, value) for option, value in options.items()])
