import jax
import jax.numpy as jnp
import pytest

from training.record.profiling import Profile


def run(folder, *, first_step, last_step, steps):
  double = jax.jit(lambda x: 2 * x)
  with Profile(folder, first_step=first_step, steps=steps) as profile:
    for step in range(first_step + 1, last_step + 1):
      profile.before(step)
      double(jnp.ones(3)).block_until_ready()


@pytest.mark.parametrize(
  ("first_step", "last_step"), [pytest.param(0, 20, marks=pytest.mark.slow), (100, 112)]
)
def test_steps_are_profiled_after_the_first_ones(tmp_path, first_step, last_step):
  """Also where the run ends before all of them are."""
  run(tmp_path, first_step=first_step, last_step=last_step, steps=3)
  assert list((tmp_path / "profile").rglob("*.xplane.pb"))


@pytest.mark.parametrize(("last_step", "steps"), [(20, 0), (10, 3)])
def test_nothing_is_profiled_otherwise(tmp_path, last_step, steps):
  run(tmp_path, first_step=0, last_step=last_step, steps=steps)
  assert not (tmp_path / "profile").exists()
