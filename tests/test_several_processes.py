"""train.py on several devices of one process, and as two processes that train one model."""

import json
import re
import signal

import numpy as np
import pytest

import packing
import pipeline
from pipeline.dataset import open_dataset
from tests import programs
from tests.programs import STEPS, fields, lines_of, succeed, summary_of

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


def shares_of(folder, workdir):
  """Counts what four devices get in the rows of each step, row by row."""
  config = json.loads((workdir / "config.json").read_text())
  plan = packing.load_plan(workdir / "plans" / "train.json")
  train = open_dataset(folder / "data").train
  recipe = summary_of(workdir)["recipe"]["packed"]
  options = {"batch_size": recipe["rows"], "masking": None, "seed": config["seed"]}
  loader = pipeline.PackedLoader(train, plan, **options)
  packed, unpadded, rng = [], [], np.random.default_rng(0)
  for step in range(recipe["steps"]):
    rows = [train.lengths[ids[ids >= 0]].tolist() for ids in loader[step]["sequence_ids"]]
    own = len(rows) // 4
    packed += [sum(sum(rows[d * own + i]) for i in range(own)) for d in range(4)]
    dealt = rng.permutation([length for row in rows for length in row]).tolist()
    unpadded.append([sum(dealt[device::4]) for device in range(4)])
  waiting = [1 - sum(step) / 4 / max(step) for step in unpadded]
  return {
    "devices": 4,
    "steps": recipe["steps"],
    "rows": own,
    "row_length": 128,
    "stream": "",
    "smallest": min(packed),
    "largest": max(packed),
    "unpadded": {
      "smallest": min(map(min, unpadded)),
      "largest": max(map(max, unpadded)),
      "waiting": pytest.approx(sum(waiting) / len(waiting)),
    },
  }


def test_a_run_on_several_devices_says_what_each_gets(folder):
  options = fields("packing.algorithm=none")
  printed = succeed(folder, "four", *options, JAX_NUM_CPU_DEVICES="4").stdout
  expected = shares_of(folder, folder / "four")
  assert summary_of(folder / "four")["device_shares"] == expected
  smallest, largest = (f"{expected[x]:,}" for x in ("smallest", "largest"))
  before, _, after = printed.partition("compiling ...")
  assert (
    f"Each of 4 devices computes {expected['rows']} rows of 128 tokens in a step, "
    f"{smallest} to {largest} of them real (counted in the first {expected['steps']} steps "
    "of the run)."
  ) in before
  assert f"{smallest} to {largest} a step; un-padded" in after


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
  expected = shares_of(folder, workdir)
  assert summary["device_shares"] == expected
  assert expected["smallest"] > 450  # nearly all of 4 rows of 128 tokens
  losses, ours = losses_of(whole), losses_of(workdir)
  same = [step for step in losses if abs(step - saved) > 1]  # lines of the same steps
  assert [ours[step] for step in same] == pytest.approx([losses[x] for x in same], rel=1e-3)
  ours, theirs = (lines_of(x / "eval.jsonl")[-1]["loss"] for x in (workdir, whole))
  assert ours == pytest.approx(theirs, rel=1e-3)


def test_a_mistake_ends_both_processes(pair):
  for status, _, errors in outcome(pair("mistake", "--config.data.source=stdlib:/nowhere")):
    assert status in (1, 2), errors
    assert "Traceback" not in errors
