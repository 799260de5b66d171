import jax
import pytest

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(tmp_path_factory):
  """Programs that several tests compile are compiled once."""
  folder = tmp_path_factory.mktemp("compiled")
  jax.config.update("jax_compilation_cache_dir", str(folder))
  return folder
