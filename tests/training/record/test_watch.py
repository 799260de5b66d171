"""What is not finite stops a run, unless it may be skipped."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from model.losses import Total
from training.command import Stopped
from training.record.watch import Watch

IDS = np.array([[3, 5, -1], [8, -1, -1]])


def values(*, finite):
  loss = 1.0 if finite else np.nan
  found = {"mlm_loss": Total(jnp.float32(loss), jnp.ones(()))}
  return {"finite": jnp.bool_(finite), "found": found}


def feed(watch, pattern):
  """Steps from 1 on; x is a bad one."""
  for step, letter in enumerate(pattern, 1):
    watch.add(step, np.where(IDS < 0, IDS, IDS + step), values(finite=letter == "."))
    watch.check(except_newest=1)


def test_a_held_out_loss_that_is_not_finite_stops_the_run(tmp_path):
  watch = Watch(tmp_path, skips=3)
  watch.check_evaluation(5, 1.5)
  with pytest.raises(Stopped, match="held-out loss is nan at step 6"):
    watch.check_evaluation(6, float("nan"))


def test_good_steps_pass(tmp_path):
  watch = Watch(tmp_path, skips=0)
  feed(watch, "....")
  watch.check()
  assert not list(tmp_path.iterdir())


def test_a_bad_step_is_told_with_its_sequences(tmp_path):
  watch = Watch(tmp_path, skips=0)
  with pytest.raises(Stopped, match=r"Step 3 is not finite: mlm_loss nan\."):
    feed(watch, "..x.")
  told = json.loads((tmp_path / "bad_step.json").read_text())
  assert told["step"] == 3
  assert told["sequence_ids"] == [6, 8, 11]


def test_the_newest_step_is_looked_at_when_asked(tmp_path):
  watch = Watch(tmp_path, skips=0)
  feed(watch, "..x")  # the device may still work at it
  with pytest.raises(Stopped, match="Step 3"):
    watch.check()


def test_bad_steps_are_skipped_up_to_a_number_in_a_row(tmp_path):
  watch = Watch(tmp_path, skips=2)
  feed(watch, "xx.xx.x.")
  watch.check()
  with pytest.raises(Stopped, match=r"Step 3 .* bad step number 3 in a row") as stopped:
    feed(Watch(tmp_path, skips=2), "xxx.")
  assert "skip_bad_steps" not in str(stopped.value)  # it is set
