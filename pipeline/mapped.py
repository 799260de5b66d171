"""Files that are mapped into memory, and of which only what is used is read.

`pyarrow.memory_map` lets the system read all of a file as soon as it is opened, which is
right for files that fit into memory. Python's `mmap` keeps each file open, and a process
may have few open files. So this calls the system itself.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref

import numpy as np
import pyarrow as pa

_system = ctypes.CDLL(None, use_errno=True)
_system.mmap.restype = ctypes.c_void_p
_system.mmap.argtypes = (
  (ctypes.c_void_p, ctypes.c_size_t) + 3 * (ctypes.c_int,) + (ctypes.c_longlong,)
)
_system.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
_system.madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_FAILED = ctypes.c_void_p(-1).value


class _Mapping:
  """Owns the memory at an address, until it is deleted."""


def map_file(path: str | os.PathLike) -> pa.Buffer:
  """The bytes of a file, of which only those that are used are read.

  Raises:
    OSError: the file cannot be read, or is empty.
  """
  with open(path, "rb") as file:
    size = os.fstat(file.fileno()).st_size
    if not size:
      raise OSError(errno.EINVAL, "the file is empty", str(path))
    address = _system.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
  if address == _FAILED:
    number = ctypes.get_errno()
    why = os.strerror(number)
    if number == errno.ENOMEM:
      why += "; a process can map about 65,000 files: prepare with larger --shard-bytes"
    raise OSError(number, why, str(path))
  mapping = _Mapping()
  # Not when the process ends: a thread may still read then.
  weakref.finalize(mapping, _system.munmap, address, size).atexit = False
  return pa.foreign_buffer(address, size, mapping)


def read_soon(addresses: np.ndarray, sizes: np.ndarray):
  """Asks the system to read parts of mapped files into memory, and does not wait for it.

  Args:
    addresses: int64[n]; where each part begins.
    sizes: int[n]; bytes of each part.
  """
  pages = addresses // mmap.PAGESIZE * mmap.PAGESIZE
  sizes = addresses + sizes - pages
  for page, size in zip(pages.tolist(), sizes.tolist(), strict=True):
    _system.madvise(page, size, mmap.MADV_WILLNEED)
