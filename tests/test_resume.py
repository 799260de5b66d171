"""Runs that are killed, stopped, broken or changed, and what becomes of them."""

import dataclasses
import json
import os
import shutil
import signal
import time

import pytest

import packing
from tests import programs
from tests.programs import (
  SAVED_EVERY,
  STEPS,
  UNFINISHED,
  begin,
  fields,
  lines_of,
  succeed,
  summary_of,
)
from training.process_parts import sha256

TIMINGS = ("seconds", "per_second", "share")
CHANGED = "--allow_changed_config"


def assert_ends_as(workdir, whole, files=("metrics.jsonl", "eval.jsonl")):
  """The same parameters, figures and lines as a run that nobody disturbed."""
  one, other = summary_of(workdir), summary_of(whole)
  for name in ("parameters_digest", "mlm_accuracy_by_length"):
    assert one[name] == other[name]
  for name in files:
    lines, expected = lines_of(workdir / name), lines_of(whole / name)
    for timed in [key for key in expected[0] if key.endswith(TIMINGS)]:
      for line in lines + expected:
        del line[timed]
    assert lines == expected


@pytest.mark.parametrize(
  ("moment", "seen", "every"),
  [
    ("training", str(SAVED_EVERY), 0.02),
    pytest.param("saving", UNFINISHED, 0.0005, marks=pytest.mark.slow),  # which is quick
  ],
)
def test_a_killed_run_ends_with_the_same_bits(folder, finished, moment, seen, every):
  checkpoints = folder / moment / "checkpoints"
  for _ in range(5):
    shutil.rmtree(folder / moment, ignore_errors=True)
    process = begin(folder, moment, **programs.READ_ONLY_CACHE)
    programs.wait_for(process, lambda: any(checkpoints.glob(seen)), every)
    programs.kill(process)
    if any(checkpoints.glob(seen)):
      break  # else the save was over before the kill
  assert any(checkpoints.glob(seen))
  assert not (folder / moment / "summary.json").exists()

  # After the kill of a save, compiled anew: the bits do not depend on the first process.
  cached = str(moment == "training").lower()
  result = succeed(folder, moment, JAX_ENABLE_COMPILATION_CACHE=cached)
  assert moment == "saving" or "resuming from step" in result.stdout
  assert not any(checkpoints.glob(UNFINISHED))
  assert_ends_as(folder / moment, finished[0])


@pytest.mark.slow
def test_a_run_stopped_by_a_signal_saves_and_says_so(folder, finished):
  """SIGTERM; Ctrl-C is in the next test, and in test_several_processes.py."""
  workdir = folder / "stopped"
  options = fields("train.checkpoint_every=1000")
  process = begin(folder, workdir.name, *options, new_session=True)
  metrics = workdir / "metrics.jsonl"
  programs.wait_for(process, lambda: metrics.exists() and metrics.stat().st_size)
  os.killpg(process.pid, signal.SIGTERM)
  _, errors = process.communicate()
  assert process.returncode == 143
  assert "Asked to stop: saved step" in errors
  assert "Traceback" not in errors
  (saved,) = (int(path.name) for path in (workdir / "checkpoints").glob("[0-9]*"))
  assert 2 <= saved < STEPS
  assert lines_of(metrics)[-1]["step"] == saved

  result = succeed(folder, workdir.name, *options)
  assert f"resuming from step {saved}" in result.stdout
  assert_ends_as(workdir, finished[0], files=[])


@pytest.mark.slow
def test_ctrl_c_while_the_first_step_compiles_lets_it_end_and_saves_it(folder, request):
  anew = programs.AS_USERS | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
  process = begin(folder, "compiling", **anew)
  request.addfinalizer(process.kill)
  begun = folder / "compiling" / "metrics.jsonl"
  programs.wait_for(process, begun.exists)
  time.sleep(1)
  process.send_signal(signal.SIGINT)
  _, errors = process.communicate()
  assert process.returncode == 130, errors
  assert f"Asked to stop: saved step 1 of {STEPS}" in errors
  assert [path.name for path in folder.glob("compiling/checkpoints/[0-9]*")] == ["1"]


@pytest.fixture
def copy(finished, tmp_path):
  """A run that is at its end but for the report."""
  shutil.copytree(finished[0], tmp_path / "run")
  (tmp_path / "run" / "summary.json").unlink()
  return tmp_path / "run"


def test_a_run_killed_while_it_reports_and_damaged_since_ends_the_same(
  folder, finished, copy
):
  plans = {path.name: path.read_bytes() for path in (copy / "plans").iterdir()}
  shutil.rmtree(copy / "plans")
  text = (copy / "eval.jsonl").read_text()
  (copy / "eval.jsonl").write_text(text.replace("loss", "lo{s", 1))
  os.truncate(copy / "metrics.jsonl", (copy / "metrics.jsonl").stat().st_size - 20)

  result = succeed(folder, copy)
  assert {path.name: path.read_bytes() for path in (copy / "plans").iterdir()} == plans
  assert not result.stderr.count("are lost")  # the checkpoint has these lines
  assert summary_of(copy)["compilations"] == 1
  assert_ends_as(copy, finished[0])


@pytest.mark.parametrize("evaluated", [[STEPS // 2], []])
def test_a_run_that_is_resumed_at_its_end_is_evaluated_there(folder, copy, evaluated):
  """Fewer steps end it where it was saved, perhaps before its first evaluation."""
  step = STEPS - SAVED_EVERY
  shutil.rmtree(copy / "checkpoints" / str(STEPS))
  path = copy / "checkpoints" / str(step) / "_CHECKPOINT_METADATA"
  content = json.loads(path.read_text())
  saved = content["custom_metadata"]
  del saved["sha256"]
  log = saved["log"]["eval.jsonl"]
  assert [line["step"] for line in log["newest"]] == [STEPS // 2]
  log.update(lines=len(evaluated), newest=log["newest"][: len(evaluated)])
  saved["sha256"] = sha256(saved)
  path.write_text(json.dumps(content))

  result = succeed(folder, copy, f"--config.train.steps={step}", CHANGED)
  assert f"resuming from step {step}" in result.stdout
  lines, summary = lines_of(copy / "eval.jsonl"), summary_of(copy)
  assert [line["step"] for line in lines] == [*evaluated, step]
  assert summary["steps"] == step
  assert summary["eval_mlm_loss"] == lines[-1]["mlm_loss"]
  saved = json.loads(path.read_text())["custom_metadata"]
  assert saved["log"]["eval.jsonl"] == {"lines": len(lines), "newest": lines}


def refused(folder, workdir, message, *options, program="train.py"):
  result = programs.run(folder, workdir, *options, program=program)
  assert result.returncode == 2
  assert message in result.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_changed_config_is_refused_unless_told_so_and_possible(folder, copy):
  more = f"--config.train.steps={STEPS + 2}"
  refused(folder, copy, f"train.steps was {STEPS} and is now {STEPS + 2}", more)
  for option, message in {
    "optimizer.name=adamw": "optimizer.name was 'lamb' and is now 'adamw'",
    "train.micro_batch_size=3": "expected 0, or a divisor of train.batch_size=20",
    "train.steps=8": f"The run is at step {STEPS}; its recipe comes to ",
    "packing.max_sequences_per_pack=2": "packing.max_sequences_per_pack was ",
  }.items():
    refused(folder, copy, message, f"--config.{option}", CHANGED)
  path = copy / "plans" / "train.json"
  kept, plan = path.read_bytes(), packing.load_plan(path)
  depth = plan.max_sequences_per_pack
  other = packing.pack(plan.histogram, algorithm="lpfhp", max_sequences_per_pack=depth)
  dataclasses.replace(other, algorithm=plan.algorithm).save(path)
  refused(folder, copy, f"{path} does not fit the checkpoint of step {STEPS}")

  path.write_bytes(kept)
  result = succeed(folder, copy, more, "--config.model.dropout_rate=0.5", CHANGED)
  assert "WARNING: resuming with a changed config: " in result.stderr
  assert f"train.steps was {STEPS} " in result.stderr
  assert f"resuming from step {STEPS}" in result.stdout
  assert summary_of(copy)["steps"] == STEPS + 2
  assert json.loads((copy / "model.json").read_text())["config"]["dropout_rate"] == 0.5


@pytest.mark.parametrize("program", ["train.py", "eval.py"])
def test_a_run_on_data_prepared_anew_is_refused(folder, copy, program):
  """The same settings, another text: going on would not be the same run."""
  digests = json.loads((copy / "dataset.json").read_text())
  (copy / "dataset.json").write_text(json.dumps(digests | {"train.arrow": "other"}))
  refused(folder, copy, "a run on another dataset", program=program)


@pytest.mark.slow
def test_a_run_that_diverges_says_where_and_keeps_its_checkpoints(folder, copy):
  before = STEPS - SAVED_EVERY
  (copy / "checkpoints" / str(STEPS)).rename(copy / "away")
  rate = "--config.optimizer.learning_rate=1e38"
  result = programs.run(folder, copy, rate, CHANGED)
  assert result.returncode == 1
  assert f"Step {before + 1} is not finite" in result.stderr
  assert "Traceback" not in result.stderr
  bad = json.loads((copy / "bad_step.json").read_text())
  assert len(bad["sequence_ids"]) == len(set(bad["sequence_ids"])) >= 8
  assert [path.name for path in (copy / "checkpoints").glob("[0-9]*")] == [str(before)]
