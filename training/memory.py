"""Lets the C library keep freed memory for the next step.

On a CPU, XLA frees the buffers of each step and allocates them again. By default glibc
returns large buffers to the system, which then hands them out page by page, filled with
zeros. Results are the same either way; docs/speed.md has the cost.
"""

from __future__ import annotations

import ctypes
import platform

# Names and numbers of malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8
_KEEP = {
  _M_ARENA_MAX: 1,  # one pool, so that threads share what is freed
  _M_MMAP_MAX: 0,  # large buffers come from the pool, too
  _M_TRIM_THRESHOLD: -1,  # the pool never shrinks
  _M_TOP_PAD: 256 << 20,  # and grows by this many bytes
}


def keep() -> bool:
  """Keeps freed memory from now on; call it before JAX starts its first device.

  Returns:
    Whether it does; False where the C library is not glibc.
  """
  if platform.libc_ver()[0] != "glibc":
    return False
  library = ctypes.CDLL(None)
  return all([library.mallopt(option, value) for option, value in _KEEP.items()])
