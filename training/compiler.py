"""Options of XLA, its cores, and a folder of compiled programs that later starts reuse."""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile
from typing import Any

from training import memory

# By default, XLA skips some of the program's rounding to bfloat16, and then writes the
# gradients of GELU and LayerNorm to memory as float32. Without that, a step of BERT-base
# takes 3 % less time on an H200 (docs/speed.md).
_GPU_FLAGS = ("--xla_allow_excess_precision=false",)
_MOST_BYTES = 2**30  # of all programs; at each write, JAX looks at all of them


def cores() -> list[int]:
  """The cores that this process may use."""
  if hasattr(os, "sched_getaffinity"):
    return sorted(os.sched_getaffinity(0))
  return list(range(os.cpu_count() or 1))


def set_flags() -> str:
  """Adds to XLA_FLAGS what is faster on GPUs, unless the user has set it.

  Call it before importing JAX. Where JAX can only run on CPUs, it does nothing.

  Returns:
    The flags that it added; "" for none.
  """
  given = os.environ.get("XLA_FLAGS", "")
  if given and not given.lstrip().startswith("--"):
    return ""  # the name of a file with flags
  names = [word.partition("=")[0] for word in given.split()]
  added = [flag for flag in _GPU_FLAGS if flag.partition("=")[0] not in names]
  if not added or memory.only_cpus(os.environ):
    return ""
  os.environ["XLA_FLAGS"] = " ".join([*given.split(), *added])
  return " ".join(added)


def keep_programs():
  """Keeps compiled programs for later starts.

  The folder is JAX_COMPILATION_CACHE_DIR if that is set, otherwise `isopack/compiled` in
  XDG_CACHE_HOME or `~/.cache`. The least recently used are removed beyond 1 GiB, but not
  from the user's own folder. JAX_ENABLE_COMPILATION_CACHE=false keeps none.
  """
  import jax  # here, since `set_flags` comes before

  config: Any = jax.config  # whose attributes are made at run time
  if not config.jax_enable_compilation_cache:
    return
  if config.jax_compilation_cache_dir is None:
    try:  # a user without a home has no folder
      home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
      folder = pathlib.Path(home) / "isopack" / "compiled"
      _clean(folder)
    except (OSError, RuntimeError) as error:
      print(f"WARNING: compiled programs are not kept: {error}", file=sys.stderr)
      return
    config.update("jax_compilation_cache_dir", str(folder))
    config.update("jax_compilation_cache_max_size", _MOST_BYTES)
  if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
    config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _clean(folder: pathlib.Path):
  """Makes the folder, and removes entries that a killed process left half written.

  JAX writes the time of an entry after the entry itself, and fails where one is missing.
  """
  folder.mkdir(mode=0o700, parents=True, exist_ok=True)
  with tempfile.TemporaryFile(dir=folder):  # raises if the folder cannot be written
    pass
  for entry in folder.glob("*-cache"):
    if not entry.with_name(f"{entry.name.removesuffix('-cache')}-atime").exists():
      entry.unlink(missing_ok=True)
