"""train.py as two processes that train one model."""

import re
import signal

import pytest

from tests import programs
from tests.programs import STEPS, lines_of, summary_of

pytestmark = pytest.mark.slow
GLOO = r"\[Gloo\]|peer ranks"  # of its lines


@pytest.fixture
def pair(folder, request):
  """Starts both processes of a run, with two devices each."""

  def begin(workdir, *options):
    return programs.begin_two(programs.command(folder, workdir, *options), folder, request)

  return begin


def outcome(processes):
  """Of each its status, what it printed, and its errors."""
  printed = [process.communicate() for process in processes]
  return [(p.returncode, *texts) for p, texts in zip(processes, printed, strict=True)]


def losses_of(workdir):
  """By their steps."""
  return {line["step"]: line["loss"] for line in lines_of(workdir / "metrics.jsonl")}


def test_two_processes_train_as_one_and_stop_together(folder, finished, pair):
  whole, workdir = finished[0], folder / "pair"
  options = ["--config.train.checkpoint_every=1000", "--config.train.fsdp=2"]
  both = pair("pair", *options)
  metrics = workdir / "metrics.jsonl"
  programs.wait_for(both[0], lambda: metrics.exists() and metrics.stat().st_size)
  both[1].send_signal(signal.SIGINT)
  statuses, _, errors = zip(*outcome(both), strict=True)
  assert all("Asked to stop: saved step" in text for text in errors)
  assert statuses == (128 + signal.SIGTERM, 130)  # the other one heard of it by SIGTERM
  (saved,) = (int(path.name) for path in (workdir / "checkpoints").glob("[0-9]*"))
  assert saved < STEPS
  assert lines_of(metrics)[-1]["step"] == saved

  (first, printed, errors), (second, silence, _) = outcome(pair("pair", *options))
  assert (first, second) == (0, 0), errors
  assert f"resuming from step {saved}" in printed
  # Only the first one tells. Gloo, which connects CPUs, prints to both from several threads
  # at once, so that its lines are torn.
  told = [x for x in printed.splitlines() if " " in x.strip() and not re.search(GLOO, x)]
  assert len(told) > 5
  assert not [line for line in told if line in silence]
  summary = summary_of(workdir)
  assert summary["devices"].startswith("4 x")
  assert (summary["processes"], summary["compilations"]) == (2, 1)
  losses, ours = losses_of(whole), losses_of(workdir)
  same = [step for step in losses if abs(step - saved) > 1]  # lines of the same steps
  assert [ours[step] for step in same] == pytest.approx([losses[x] for x in same], rel=1e-3)
  ours, expected = (lines_of(x / "eval.jsonl")[-1]["loss"] for x in (workdir, whole))
  assert ours == pytest.approx(expected, rel=1e-3)


def test_a_mistake_ends_both_processes(pair):
  for status, _, errors in outcome(pair("mistake", "--config.data.source=stdlib:/nowhere")):
    assert status in (1, 2), errors
    assert "Traceback" not in errors
