"""train.py as two processes that train one model."""

import re
import signal

import pytest

from tests.programs import (
  STEPS,
  command,
  flags_of_two_processes,
  lines_of,
  run,
  start,
  summary_of,
  wait_for,
)

GLOO = r"\[Gloo\]|peer ranks"  # of its lines


@pytest.fixture
def pair(folder, request):
  """Starts both processes of a run, with two devices each."""

  def begin(workdir, *options):
    both = [
      start(command(folder, workdir, *options, *flags), folder, JAX_NUM_CPU_DEVICES="2")
      for flags in flags_of_two_processes()
    ]
    for process in both:  # if one fails, none is left to wait for it
      request.addfinalizer(process.kill)
    return both

  return begin


def outcome(processes):
  """Of each its status, what it printed, and its errors."""
  printed = [process.communicate() for process in processes]
  return [(p.returncode, *texts) for p, texts in zip(processes, printed, strict=True)]


def losses_of(workdir):
  """By their steps."""
  return {line["step"]: line["loss"] for line in lines_of(workdir / "metrics.jsonl")}


@pytest.mark.slow
def test_two_processes_train_as_one_and_stop_together(folder, finished, pair):
  whole, _ = finished
  workdir = folder / "pair"
  options = ["--config.train.checkpoint_every=1000", "--config.train.fsdp=2"]
  both = pair("pair", *options)
  metrics = workdir / "metrics.jsonl"
  wait_for(both[0], lambda: metrics.exists() and metrics.stat().st_size)
  both[1].send_signal(signal.SIGINT)
  statuses = []
  for status, _, errors in outcome(both):
    statuses.append(status)
    assert "Asked to stop: saved step" in errors
  assert statuses == [128 + signal.SIGTERM, 130]  # the other one heard of it by SIGTERM
  (saved,) = (int(path.name) for path in (workdir / "checkpoints").glob("[0-9]*"))
  assert saved < STEPS
  assert lines_of(metrics)[-1]["step"] == saved - saved % 2  # steps of a line are whole

  (first, printed, errors), (second, silence, _) = outcome(pair("pair", *options))
  assert (first, second) == (0, 0), errors
  assert f"resuming from step {saved}" in printed
  # Only the first one tells. Gloo, which connects CPUs, prints to both from several threads
  # at once, so that its lines are torn.
  told = [x for x in printed.splitlines() if " " in x.strip() and not re.search(GLOO, x)]
  assert len(told) > 5
  assert not [line for line in told if line in silence]
  summary = summary_of(workdir)
  assert summary["processes"] == 2
  assert summary["devices"].startswith("4 x")
  assert summary["compilations"] == 1
  assert losses_of(workdir) == pytest.approx(losses_of(whole), rel=1e-3)
  ours, expected = (lines_of(x / "eval.jsonl")[-1]["loss"] for x in (workdir, whole))
  assert ours == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_a_mistake_ends_both_processes(pair):
  for status, _, errors in outcome(pair("mistake", "--config.data.source=stdlib:/nowhere")):
    assert status in (1, 2), errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ("--processes=2", "expected --coordinator=HOST:PORT"),
    ("--coordinator=localhost:1", "expected both, and a process from 0"),
    ("--coordinator=localhost:1 --processes=2 --process=2", "--processes=2 --process=2"),
  ],
)
def test_flags_that_do_not_go_together_are_refused(folder, tmp_path, options, message):
  result = run(folder, tmp_path, *options.split())
  assert result.returncode == 2
  assert message in result.stderr
  assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_a_split_state_trains_as_a_whole_one(folder, finished):
  whole, _ = finished
  result = run(folder, "split", "--config.train.fsdp=4", JAX_NUM_CPU_DEVICES="8")
  assert result.returncode == 0, result.stderr
  assert summary_of(folder / "split")["devices"].startswith("8 x")
  assert losses_of(folder / "split") == pytest.approx(losses_of(whole), rel=1e-3)
