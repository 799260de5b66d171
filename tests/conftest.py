import signal

import jax
import pytest

from tests import programs
from tests.stdlib_corpus import make_library

# Where tests are run in the background, Ctrl-C is ignored, here and in what is started.
signal.signal(signal.SIGINT, signal.default_int_handler)

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
# Compiling takes most of the time of tests, and speed is not what they test.
jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(tmp_path_factory):
  """Programs that several tests compile are compiled once."""
  folder = tmp_path_factory.mktemp("compiled")
  jax.config.update("jax_compilation_cache_dir", str(folder))
  return folder


@pytest.fixture
def optimised():
  """Programs are compiled as users run them."""
  jax.config.update("jax_disable_most_optimizations", False)
  yield
  jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
  """With a small corpus; where programs are run."""
  path = tmp_path_factory.mktemp("programs")
  (path / "library").mkdir()
  make_library(path / "library")
  return path


@pytest.fixture(scope="session")
def finished(folder):
  """A run that nobody disturbed."""
  result = programs.run(folder, "whole")
  assert result.returncode == 0, result.stderr
  return folder / "whole", result.stdout
