"""A loop that is stopped and resumed records what one does that is not stopped."""

import json

import jax
import numpy as np
import pytest

from configs import base
from model import losses
from training.command import Stopped
from training.record import files
from training.record.recorder import recording

LOG_EVERY, EVAL_EVERY, STEPS = 3, 6, 9
IDS = np.array([[0, 1], [2, -1]])


def values_of(step, *, finite=True):
  values = {name: losses.Total(7.0 / step, 2.0) for name in ("mlm_loss", "gradient_norm")}
  counts = {"sequences": 3, "real_tokens": 10 + step, "finite": finite, "skipped": 0}
  return jax.tree.map(np.asarray, values | counts | {"found": values})


def record(folder, *, first_step, last_step, saved, bad_step=0):
  """Runs the steps after `first_step`; returns the state after the last one."""
  folder.mkdir(exist_ok=True)
  config = base.get_config()
  config.train.log_every = LOG_EVERY
  with recording(
    folder,
    config,
    learning_rates=np.linspace(1, 0.1, STEPS),
    rows=2,
    row_length=16,
    flops_per_step=0.0,
    peak_flops=0.0,
    first_step=first_step,
    saved=saved,
  ) as recorder:
    for step in range(first_step + 1, last_step + 1):
      recorder.start(step)
      recorder.end(step, IDS, values_of(step, finite=step != bad_step))
      if step % LOG_EVERY == 0:
        recorder.line(step, compilations=1)
      if step % EVAL_EVERY == 0:
        recorder.evaluation(step, {"loss": 1 / step, "mlm_accuracy": step / 10})
    recorder.check()
    return json.loads(json.dumps(recorder.state()))


def lines(folder, name):
  """The lines of a file without what the clock decides."""
  clock = ("second", "seconds", "share")
  return [
    {key: value for key, value in line.items() if not key.endswith(clock)}
    for line in files.read_json_lines(folder / name)
  ]


@pytest.mark.parametrize("stopped", [1, 4, 6, 8])
def test_a_resumed_run_writes_the_lines_of_one_that_is_not_stopped(tmp_path, stopped):
  record(tmp_path / "whole", first_step=0, last_step=STEPS, saved={})
  folder = tmp_path / "stopped"
  state = record(folder, first_step=0, last_step=stopped, saved={})
  record(folder, first_step=stopped, last_step=STEPS, saved=state)
  for name in ("metrics.jsonl", "eval.jsonl"):
    assert lines(folder, name) == lines(tmp_path / "whole", name)
  assert [line["step"] for line in lines(folder, "metrics.jsonl")] == [3, 6, 9]
  rates = [line["learning_rate"] for line in lines(folder, "metrics.jsonl")]
  np.testing.assert_allclose(rates, np.linspace(1, 0.1, STEPS)[2::3])
  (evaluation,) = lines(folder, "eval.jsonl")
  assert (evaluation["step"], evaluation["sequences_trained"]) == (6, 18)


def test_a_step_that_is_not_finite_stops_the_loop_at_the_next_one(tmp_path):
  with pytest.raises(Stopped, match="Step 4 is not finite"):
    record(tmp_path, first_step=0, last_step=5, saved={}, bad_step=4)
  assert json.loads((tmp_path / "bad_step.json").read_text())["sequence_ids"] == [0, 1, 2]


def test_the_last_step_is_checked_before_it_is_saved(tmp_path):
  with pytest.raises(Stopped, match="Step 5 is not finite"):
    record(tmp_path, first_step=0, last_step=5, saved={}, bad_step=5)
