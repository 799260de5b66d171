"""What a training loop records, also where it is stopped and resumed, or a step is bad."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import base
from launch.door import settings_of
from launch.record import trackers as trackers_lib
from launch.record.flops import Cost, Peak
from launch.record.metrics import read_json_lines
from launch.record.recorder import Profile, Recorder
from model import losses
from training.errors import Stopped

LOG_EVERY, EVAL_EVERY, STEPS = 3, 6, 10
RATES = np.linspace(1, 0.1, STEPS)
IDS = np.array([[3, 0, -1], [8, -1, -1]])


def values_of(step, *, finite=True):
  loss = 7.0 / step if finite else np.nan
  values = {name: losses.Total(loss, 1.0 + step % 3) for name in ("mlm_loss", "nsp_loss")}
  counts = {"sequences": 3, "real_tokens": 10 + step, "finite": finite}
  return jax.tree.map(np.asarray, values | counts)


def record(
  folder,
  steps,
  *,
  first_step=0,
  saved=None,
  check=True,
  held_out=0.5,
  trackers="",
):
  """Records steps; x is a bad one. Returns the state after the last one."""
  folder.mkdir(exist_ok=True)
  settings = settings_of(base.get_config()).changed({"train.trackers": trackers})
  cost = Cost(2, 2 * 16, 0.0, Peak(0.0, "table"))
  place = {"first_step": first_step, "saved": saved or {}}
  with (
    trackers_lib.opened(folder, settings) as tracked,
    Recorder(
      folder, learning_rates=RATES, trackers=tracked, cost=cost, **place
    ) as recorder,
  ):
    for step, letter in enumerate(steps, first_step + 1):
      values = values_of(step, finite=letter == ".")
      recorder.end(step, np.where(IDS < 0, IDS, IDS + step - 1), values)
      if step % LOG_EVERY == 0 or step == STEPS:
        recorder.line(step, compilations=1)
      if step % EVAL_EVERY == 0:
        recorder.evaluation(step, {"loss": held_out, "mlm_accuracy": step / 10})
    if check:
      recorder.check()
    return json.loads(json.dumps(recorder.state()))


def lines(folder, name):
  """The lines of a file without what the clock decides."""
  clock = ("second", "seconds", "share")
  return [
    {key: value for key, value in line.items() if not key.endswith(clock)}
    for line in read_json_lines(folder / name)
  ]


@pytest.mark.parametrize("stopped", [3, 6, 9])
def test_a_resumed_run_writes_the_lines_of_one_that_is_not_stopped(tmp_path, stopped):
  whole, folder = tmp_path / "whole", tmp_path / "stopped"
  record(whole, "." * STEPS)
  state = record(folder, "." * stopped)
  record(folder, "." * (STEPS - stopped), first_step=stopped, saved=state)
  for name in ("metrics.jsonl", "eval.jsonl"):
    assert lines(folder, name) == lines(whole, name)
  assert [line["step"] for line in lines(folder, "metrics.jsonl")] == [3, 6, 9, 10]
  rates = [line["learning_rate"] for line in lines(folder, "metrics.jsonl")]
  np.testing.assert_allclose(rates, RATES[[2, 5, 8, 9]])
  (evaluation,) = lines(folder, "eval.jsonl")
  assert (evaluation["step"], evaluation["sequences_trained"]) == (6, 18)


@pytest.mark.parametrize(
  ("steps", "bad", "ids"),
  [("...x.", 4, [6, 3, 11]), ("...x", 4, [6, 3, 11]), ("x.", 1, [3, 0, 8])],
)
def test_a_step_that_is_not_finite_stops_the_loop_and_its_sequences_are_told(
  tmp_path, steps, bad, ids
):
  """At the next step, and the last one before it is saved."""
  told = rf"Step {bad} is not finite: mlm_loss nan, "
  with pytest.raises(Stopped, match=told):
    record(tmp_path, steps)
  found = json.loads((tmp_path / "bad_step.json").read_text())
  assert (found["step"], found["sequence_ids"]) == (bad, ids)


def test_the_device_may_still_work_at_the_newest_step(tmp_path):
  record(tmp_path, "...x", check=False)
  with pytest.raises(Stopped, match="Step 3 is not finite"):
    record(tmp_path, "..x", check=False)  # but a line waits for it
  assert lines(tmp_path, "metrics.jsonl") == []


def test_a_held_out_loss_that_is_not_finite_stops_the_run(tmp_path):
  with pytest.raises(Stopped, match="held-out loss is nan at step 6"):
    record(tmp_path, "......", held_out=np.nan)


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
