import collections
import fcntl
import gc
import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import types
from collections.abc import Callable

import pytest

from tests import forked, programs

# JAX reads these when it is imported, here and in the processes that tests start.
os.environ.update(programs.COMPILING, JAX_NUMPY_DTYPE_PROMOTION="strict")
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # to test on a GPU: JAX_PLATFORMS=cuda,cpu

import jax

from tests.stdlib_corpus import make_library

# Where tests are run in the background, Ctrl-C is ignored, here and in what is started.
signal.signal(signal.SIGINT, signal.default_int_handler)

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")

# Tracing leaves many objects; looking through them often would take a tenth of the time.
gc.freeze()
gc.set_threshold(100_000, 50, 50)


@pytest.fixture
def on_cpu():
  """Skips a test that an accelerator would change."""
  if jax.default_backend() != "cpu":
    pytest.skip("needs a machine without an accelerator")


def pytest_ignore_collect(collection_path: pathlib.Path) -> bool | None:
  """What tests share is imported for doctests only if it has some.

  It may need a library that is not installed, and would be left half imported.
  """
  if collection_path.suffix != ".py" or collection_path.name.startswith("test_"):
    return None
  return None if ">>> " in collection_path.read_text() else True


@pytest.hookimpl(trylast=True)  # after what -m leaves out
def pytest_collection_modifyitems(items: list[pytest.Item]):
  """Files with few tests come first: these take longest, so none is left to the end.

  xdist gives each worker a file at a time, in this order (`--no-loadscope-reorder`).
  """
  counts = collections.Counter(item.path for item in items)
  items.sort(key=lambda item: counts[item.path])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item):
  for mark in item.iter_markers("extra"):
    for name in mark.args:
      if not importlib.util.find_spec(name):
        pytest.skip(f"{name} is not installed; an extra of pyproject.toml may bring it")


def pytest_sessionstart(session):
  """Empties the cache of compiled programs when it has grown too large."""
  cache = pathlib.Path(programs.COMPILING["JAX_COMPILATION_CACHE_DIR"])
  others_run = os.environ.get("PYTEST_XDIST_WORKER") or session.config.option.collectonly
  if not others_run and sum(path.stat().st_size for path in cache.glob("*")) > 2**30:
    shutil.rmtree(cache, ignore_errors=True)


@pytest.fixture
def optimised():
  """With all optimisations; of what users run, only the emitters for fusions differ."""
  jax.config.update("jax_disable_most_optimizations", False)
  yield
  jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="module")
def forked_jobs():
  """`launch.sweep.jobs` starts commands in processes that have imported their libraries.

  With the same words, environment, streams and cores. tests/lab/test_study.py and
  tests/launch have processes of the usual kind.
  """
  started = types.SimpleNamespace(**vars(subprocess) | {"Popen": forked.Command})
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr("launch.sweep.jobs.subprocess", started)
    yield


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
  """With a small corpus; where programs are run. All workers of a session share it."""
  base = tmp_path_factory.getbasetemp()
  path = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "programs"
  path.mkdir(exist_ok=True)
  once(path / "library", make_library)
  return path


@pytest.fixture(scope="session")
def finished(folder):
  """A run that nobody disturbed, and what it printed."""
  path = folder / "whole.txt"
  once(path, lambda _: path.write_text(programs.succeed(folder, "whole").stdout))
  return folder / "whole", path.read_text()


def once(path: pathlib.Path, make: Callable[[pathlib.Path], object]) -> pathlib.Path:
  """Makes a file or folder in the first worker that needs it; the others wait for it."""
  with path.with_suffix(".lock").open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not path.exists():
      make(path)
  return path
