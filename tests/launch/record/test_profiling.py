import jax
import jax.numpy as jnp
import pytest

from launch.record.recorder import Profile


@pytest.mark.parametrize(
  ("first_step", "last_step", "steps", "profiled"),
  [
    pytest.param(0, 20, 3, True, marks=pytest.mark.slow),
    pytest.param(100, 112, 3, True, id="the run ends before all of them"),
    pytest.param(0, 20, 0, False, id="none is asked for"),
    pytest.param(0, 10, 3, False, id="the first ones compile"),
  ],
)
def test_steps_are_profiled_after_the_first_ones(
  tmp_path, capsys, first_step, last_step, steps, profiled
):
  double = jax.jit(lambda x: 2 * x)
  with Profile(tmp_path, first_step=first_step, steps=steps) as profile:
    for step in range(first_step + 1, last_step + 1):
      profile.before(step)
      double(jnp.ones(3)).block_until_ready()
  assert any((tmp_path / "profile").rglob("*.xplane.pb")) == profiled
  told = capsys.readouterr().err
  assert ("No profile: the run ended before step 11" in told) == (
    steps > 0 and not profiled
  )
