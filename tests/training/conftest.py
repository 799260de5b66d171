import jax
import pytest


@pytest.fixture(scope="package", autouse=True)
def quick_compilation():
  """Compiling takes most of these tests' time, and speed is not what they test."""
  jax.config.update("jax_disable_most_optimizations", True)
  yield
  jax.config.update("jax_disable_most_optimizations", False)
