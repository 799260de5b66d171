"""Runs that are killed, stopped, broken or changed, and what becomes of them."""

import dataclasses
import functools
import json
import os
import shutil
import signal
import time

import pytest

import packing
from tests.programs import (
  AS_USERS,
  READ_ONLY_CACHE,
  SAVED_EVERY,
  STEPS,
  command,
  lines_of,
  run,
  start,
  summary_of,
  wait_for,
)

TIMINGS = ("seconds", "per_second", "share")


def without_timings(lines):
  return [
    {k: v for k, v in line.items() if not any(name in k for name in TIMINGS)}
    for line in lines
  ]


def assert_ends_as(workdir, whole):
  """The same parameters, figures and lines as a run that nobody disturbed."""
  one, other = summary_of(workdir), summary_of(whole)
  assert one["parameters_digest"] == other["parameters_digest"]
  assert one["mlm_accuracy_by_length"] == other["mlm_accuracy_by_length"]
  for name in ("metrics.jsonl", "eval.jsonl"):
    ours, expected = (without_timings(lines_of(w / name)) for w in (workdir, whole))
    assert ours == expected


def kill(process):
  process.send_signal(signal.SIGKILL)
  process.communicate()
  assert process.returncode == -signal.SIGKILL


def test_a_run_killed_while_training_ends_with_the_same_bits(folder, finished):
  whole, _ = finished
  workdir = folder / "killed"
  process = start(command(folder, "killed"), folder, **READ_ONLY_CACHE)
  wait_for(process, (workdir / "checkpoints" / str(SAVED_EVERY)).exists)
  kill(process)
  assert not (workdir / "summary.json").exists()

  result = run(folder, "killed")
  assert result.returncode == 0, result.stderr
  assert "resuming from step" in result.stdout
  assert_ends_as(workdir, whole)


@pytest.mark.slow
def test_a_run_killed_while_saving_ends_with_the_same_bits(folder, finished):
  whole, _ = finished
  workdir = folder / "saving"
  checkpoints = workdir / "checkpoints"
  process = start(command(folder, "saving"), folder, **READ_ONLY_CACHE)
  saving = "*.orbax-checkpoint-tmp*"
  wait_for(process, lambda: any(checkpoints.glob(saving)), every=0.0005)  # a save is quick
  kill(process)
  assert any(checkpoints.glob(saving)), "the save was over before the kill"

  # Compiled anew: the bits do not depend on what the first process left.
  result = run(folder, "saving", JAX_ENABLE_COMPILATION_CACHE="false")
  assert result.returncode == 0, result.stderr
  assert not any(checkpoints.glob(saving))
  assert_ends_as(workdir, whole)


@pytest.mark.slow
def test_on_sigterm_a_run_saves_and_says_so(folder, finished):
  whole, _ = finished
  workdir = folder / "terminated"
  rarely = "--config.train.checkpoint_every=1000"
  process = start(command(folder, "terminated", rarely), folder)
  saved = stop(process, workdir, process.send_signal, signal.SIGTERM)

  result = run(folder, "terminated", rarely)
  assert result.returncode == 0, result.stderr
  assert f"resuming from step {saved}" in result.stdout
  one, other = summary_of(workdir), summary_of(whole)
  assert one["parameters_digest"] == other["parameters_digest"]
  ours, expected = (
    without_timings(lines_of(w / "metrics.jsonl")) for w in (workdir, whole)
  )
  assert ours == expected


@pytest.mark.slow
def test_on_ctrl_c_too_and_its_workers_still_make_batches(folder, finished):
  """All processes of a terminal get it; the step that is under way may need a batch."""
  options = ["--config.train.loader_workers=1", "--config.train.checkpoint_every=1000"]
  words = command(folder, "interrupted", *options)
  process = start(words, folder, new_session=True)
  everyone = functools.partial(os.killpg, process.pid)
  stop(process, folder / "interrupted", everyone, signal.SIGINT)


def stop(process, workdir, send, number) -> int:
  """Sends a signal when there are metrics. Returns the step that was saved."""
  metrics = workdir / "metrics.jsonl"
  wait_for(process, lambda: metrics.exists() and metrics.stat().st_size)
  send(number)
  _, errors = process.communicate()
  assert process.returncode == 128 + number
  assert "Asked to stop: saved step" in errors
  assert "Traceback" not in errors
  (saved,) = (int(path.name) for path in (workdir / "checkpoints").glob("[0-9]*"))
  assert 2 <= saved < STEPS
  assert lines_of(metrics)[-1]["step"] == saved - saved % 2  # steps of a line are whole
  return saved


@pytest.fixture
def compiling(folder, finished, request):
  """Starts a run that compiles all that it needs, as for users."""

  def begin(workdir):
    anew = AS_USERS | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    process = start(command(folder, workdir), folder, **anew)
    request.addfinalizer(process.kill)
    return process

  return begin


@pytest.mark.slow
def test_ctrl_c_before_the_first_step_ends_in_one_true_line(compiling):
  process = compiling("before")
  wait_for(process, lambda: "compiling" in process.output.read_text())
  time.sleep(1)
  process.send_signal(signal.SIGINT)
  _, errors = process.communicate()
  assert process.returncode == 130, errors
  assert "train.py: Stopped. No checkpoint is saved yet" in errors.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_while_the_step_compiles(compiling, folder, times):
  workdir = folder / f"compiling{times}"
  process = compiling(workdir.name)
  wait_for(process, lambda: any(workdir.glob("tensorboard/events*")))
  for _ in range(times):
    time.sleep(1)
    process.send_signal(signal.SIGINT)
  _, errors = process.communicate()
  assert process.returncode == 130, errors
  steps = [path.name for path in workdir.glob("checkpoints/[0-9]*")]
  if times == 1:
    assert f"Asked to stop: saved step 1 of {STEPS}" in errors
    assert steps == ["1"]
  else:
    assert "No checkpoint is saved yet" in errors
    assert steps == []


@pytest.fixture
def copy(finished, tmp_path):
  """A run that is at its end but for the report."""
  whole, _ = finished
  shutil.copytree(whole, tmp_path / "run")
  (tmp_path / "run" / "summary.json").unlink()
  return tmp_path / "run"


def test_a_run_killed_while_it_reports_and_damaged_since_ends_the_same(
  folder, finished, copy
):
  """What it lost is made again, and each file is named."""
  plans = {path.name: path.read_bytes() for path in (copy / "plans").iterdir()}
  shutil.rmtree(copy / "plans")
  (copy / "summary.json").touch()
  text = (copy / "eval.jsonl").read_text()
  (copy / "eval.jsonl").write_text(text.replace("loss", "lo{s", 1))
  metrics = (copy / "metrics.jsonl").read_bytes()
  (copy / "metrics.jsonl").write_bytes(metrics[:-20])

  result = run(folder, copy)
  assert result.returncode == 0, result.stderr
  assert {path.name: path.read_bytes() for path in (copy / "plans").iterdir()} == plans
  for name in ("plans/train.json", "summary.json", "eval.jsonl", "metrics.jsonl"):
    (line,) = (x for x in result.stderr.splitlines() if str(copy / name) in x)
    assert line.startswith("WARNING: ")
  assert summary_of(copy)["compilations"] == 1
  assert_ends_as(copy, finished[0])


@pytest.mark.slow
def test_a_broken_checkpoint_is_passed_over(folder, finished, copy):
  newest = copy / "checkpoints" / str(STEPS)
  largest = max(newest.glob("*/d/*"), key=lambda path: path.stat().st_size)
  os.truncate(largest, largest.stat().st_size // 2)
  result = run(folder, copy)
  assert result.returncode == 0, result.stderr
  assert f"WARNING: the checkpoint of step {STEPS} is broken" in result.stderr
  assert "Traceback" not in result.stderr
  assert f"resuming from step {STEPS - SAVED_EVERY}" in result.stdout
  assert_ends_as(copy, finished[0])


@pytest.mark.slow
def test_a_finished_run_with_more_steps_is_refused_and_extended_if_told_so(
  folder, finished, tmp_path
):
  copy = tmp_path / "run"
  shutil.copytree(finished[0], copy)
  options = [f"--config.train.steps={STEPS + 2}"]
  result = run(folder, copy, *options)
  assert result.returncode == 2
  assert f"train.steps is {STEPS} there and {STEPS + 2} here" in result.stderr
  assert summary_of(copy)["steps"] == STEPS
  result = run(folder, copy, *options, "--allow_changed_config")
  assert result.returncode == 0, result.stderr
  assert f"WARNING: resuming with a changed config: train.steps is {STEPS}" in result.stderr
  assert f"resuming from step {STEPS}" in result.stdout
  assert summary_of(copy)["steps"] == STEPS + 2
  assert json.loads((copy / "config.json").read_text())["train"]["steps"] == STEPS + 2


@pytest.mark.slow
def test_a_change_that_cannot_be_is_refused_and_leaves_the_run(folder, finished, copy):
  for options, message in (
    (["--config.optimizer.name=sgd"], "of another model or optimizer"),
    (["--config.train.micro_batch_size=4"], "comes to 4 rows a step"),
    (["--config.train.steps=8"], f"comes to 8 steps; the run in {copy} has made {STEPS}"),
    (["--config.packing.max_sequences_per_pack=2"], "train.json was made with packing"),
  ):
    result = run(folder, copy, *options, "--allow_changed_config")
    assert result.returncode == 2
    assert message in result.stderr
  result = run(folder, copy, "--config.model.dropout_rate=0.5", "--allow_changed_config")
  assert result.returncode == 0, result.stderr
  assert json.loads((copy / "model.json").read_text())["config"]["dropout_rate"] == 0.5


@pytest.mark.slow
def test_another_plan_than_the_checkpoints_is_refused(folder, copy):
  path = copy / "plans" / "train.json"
  plan = packing.load_plan(path)
  other = packing.pack(
    plan.histogram, algorithm="lpfhp", max_sequences_per_pack=plan.max_sequences_per_pack
  )
  dataclasses.replace(other, algorithm=plan.algorithm).save(path)
  result = run(folder, copy)
  assert result.returncode == 2
  *_, line = result.stderr.splitlines()
  assert f"{path} is not what the checkpoint of step {STEPS} was saved with" in line


def test_a_run_on_data_prepared_anew_is_refused(folder, copy):
  """The same settings, another text: going on would not be the same run."""
  digests = json.loads((copy / "dataset.json").read_text())
  (copy / "dataset.json").write_text(json.dumps(digests | {"train.arrow": "other"}))
  for program in ("train.py", "eval.py"):
    result = run(folder, copy, program=program)
    assert result.returncode == 2
    assert "a run on another dataset" in result.stderr


@pytest.mark.slow
def test_a_run_that_diverges_says_where_and_keeps_its_checkpoints(folder, copy):
  before = STEPS - SAVED_EVERY
  (copy / "checkpoints" / str(STEPS)).rename(copy / "away")
  options = ["--config.optimizer.learning_rate=1e38", "--allow_changed_config"]
  result = run(folder, copy, *options)
  assert result.returncode == 1
  assert f"Step {before + 1} is not finite" in result.stderr
  assert "--config.train.skip_bad_steps" in result.stderr
  assert "Traceback" not in result.stderr
  bad = json.loads((copy / "bad_step.json").read_text())
  assert bad["step"] == before + 1
  assert len(bad["sequence_ids"]) == len(set(bad["sequence_ids"])) >= 8
  assert [path.name for path in (copy / "checkpoints").glob("[0-9]*")] == [str(before)]
