"""What Weights & Biases and MLflow hold of a run that is stopped and resumed."""

import importlib.util
import json
import platform
import struct
import sys

import pytest

from launch import door, workdir
from launch.parts import TRACKERS
from launch.record import trackers
from tests import programs
from tests.launch.record.test_recorder import STEPS as STEPS_RECORDED
from tests.launch.record.test_recorder import record
from tests.launch.test_config import check, get_config
from tests.programs import STEPS, lines_of
from training.errors import ConfigError, Stopped

WRITTEN = {"metrics.jsonl": "train", "eval.jsonl": "eval"}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
  for name, value in {
    **{"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"},
    **{"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"},
  }.items():
    monkeypatch.setenv(name, value)
  for name in ("WANDB_PROJECT", "WANDB_NAME", "MLFLOW_TRACKING_URI"):
    monkeypatch.delenv(name, raising=False)


def written(folder):
  """The numbers of all lines: (step, name, value)."""
  return {
    (line["step"], f"{tag}/{key}", value)
    for name, tag in WRITTEN.items()
    for line in lines_of(folder / name)
    for key, value in line.items()
    if key != "step" and isinstance(value, int | float)
  }


def of_wandb(folder):
  """The identifiers of the runs in the files of Weights & Biases, and their numbers."""
  import wandb
  from wandb.proto import wandb_internal_pb2

  wandb.teardown()  # its other process has written all
  runs, numbers, configs = set(), [], []
  for path in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb")):
    for data in records(path.read_bytes()):
      record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
      record.ParseFromString(data)
      if record.HasField("run"):
        runs.add((record.run.project, record.run.display_name, record.run.run_id))
      updates = [*record.config.update, *record.run.config.update]
      configs += [x.key or x.nested_key[0] for x in updates]
      items, step = record.history.item, record.history.step.num
      line = {"/".join(x.nested_key) or x.key: json.loads(x.value_json) for x in items}
      numbers += [(step, key, x) for key, x in line.items() if not key.startswith("_")]
  assert {"seed", "train", "packing"} <= {*configs}
  return runs, numbers


def records(data):
  """Those of a file in LevelDB's log format, after its header of 7 bytes."""
  at, parts, block = 7, b"", 2**15
  while at < len(data):
    if block - at % block < 7:
      at += block - at % block
      continue
    size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
    parts += data[at + 7 : at + 7 + size]
    at += 7 + size
    if kind in (1, 4):  # whole, or its last part
      yield parts
      parts = b""


def of_mlflow(folder):
  """The same of MLflow's database."""
  import mlflow

  client = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db")
  (experiment,) = (x for x in client.search_experiments() if x.name != "Default")
  found = client.search_runs([experiment.experiment_id])
  assert {run.info.status for run in found} == {"FINISHED"}
  assert {run.data.params["optimizer.name"] for run in found} == {"lamb"}
  runs = {(experiment.name, run.info.run_name, run.info.run_id) for run in found}
  (run,) = found
  numbers = [
    (point.step, name, point.value)
    for name in run.data.metrics
    for point in client.get_metric_history(run.info.run_id, name)
  ]
  return runs, numbers


HELD = {
  "wandb": pytest.param("wandb", of_wandb, marks=pytest.mark.extra(*TRACKERS["wandb"])),
  "mlflow": pytest.param("mlflow", of_mlflow, marks=pytest.mark.extra(*TRACKERS["mlflow"])),
}


@pytest.mark.parametrize(("name", "held"), HELD.values(), ids=HELD)
def test_a_resumed_run_continues_the_same_record(tmp_path, name, held):
  """Steps that a killed run trains again are there twice, with the numbers of each time."""
  folder = tmp_path / "mine"
  state = record(folder, "." * 7, trackers=name)
  before = written(folder)
  record(folder, "." * 3, first_step=7, saved=state, trackers=name)
  ((project, shown, run_id),), numbers = held(folder)
  assert (project, shown) == ("isopack", "mine")
  assert json.loads((folder / "trackers.json").read_text()) == {name: run_id}
  assert {*numbers} == before | written(folder)
  assert len(numbers) == len(written(folder))  # each line once
  assert {step for step, *_ in numbers} == {3, 6, 9, 10}

  record(folder, "." * 3, first_step=7, saved=state, trackers=name)
  ((*_, same),), again = held(folder)
  assert same == run_id
  assert len(again) == len(numbers) + len({x for x in written(folder) if x[0] > 7})


class Fake:
  """A tracker that raises `error` in the method of the name `at`."""

  def __init__(self, monkeypatch, error, at):
    self.error, self.at, self.calls = error, at, []
    monkeypatch.setattr(trackers, "_open_mlflow", self.open)

  def open(self, *_):
    self._call("open")
    return "1", (self.log, self.close)

  def _call(self, name):
    self.calls.append(name)
    if name == self.at:
      raise self.error

  def log(self, values, step):
    assert step
    assert values
    self._call("log")

  def close(self, failed):
    self._call("failed" if failed else "finished")


WARNING = "WARNING: the run continues without mlflow: {}"


@pytest.mark.parametrize(
  ("error", "told"),
  [
    (RuntimeError("at db://me:a/b@c@host/x:\n  down."), "at db://host/x: down."),
    (TimeoutError(), "TimeoutError()"),
    (ValueError("x" * 1000), "x" * 300),
  ],
)
def test_a_tracker_that_breaks_is_told_once_and_the_run_goes_on(
  tmp_path, capsys, monkeypatch, error, told
):
  fake = Fake(monkeypatch, error, "log")
  record(tmp_path / "whole", "." * STEPS_RECORDED)
  record(tmp_path / "run", "." * STEPS_RECORDED, trackers="mlflow")
  assert fake.calls == ["open", "log"]  # dropped: it is not closed, either
  (line,) = [x for x in capsys.readouterr().err.splitlines() if "WARNING" in x]
  assert line == WARNING.format(told)
  assert {(step, name) for step, name, _ in written(tmp_path / "run")} == {
    (step, name) for step, name, _ in written(tmp_path / "whole")
  }


def test_a_tracker_that_cannot_be_closed_hides_no_other_error(
  tmp_path, capsys, monkeypatch
):
  fake = Fake(monkeypatch, OSError("lost"), "failed")
  with pytest.raises(Stopped, match="Step 4 is not finite"):
    record(tmp_path, "...x.", trackers="mlflow")
  assert fake.calls == ["open", "log", "failed"]
  assert WARNING.format("lost") in capsys.readouterr().err
  fake.at = "finished"
  record(tmp_path, "...", trackers="mlflow")
  assert fake.calls[-1] == "finished"


def test_who_stops_the_run_stops_it_in_a_tracker_too(tmp_path, monkeypatch):
  fake = Fake(monkeypatch, KeyboardInterrupt, "log")
  with pytest.raises(KeyboardInterrupt):
    record(tmp_path, "...", trackers="mlflow")
  assert fake.calls == ["open", "log", "failed"]


def test_what_does_not_open_is_told_in_one_line_without_its_password(tmp_path, monkeypatch):
  Fake(monkeypatch, RuntimeError("no\nhttps://me:p@ss@host/ here"), "open")
  with pytest.raises(ConfigError) as found:
    record(tmp_path, "...", trackers="mlflow")
  assert not (tmp_path / "trackers.json").exists()
  assert str(found.value) == "mlflow cannot be opened: no https://host/ here"


@pytest.mark.extra(*TRACKERS["wandb"])
def test_only_numbers_and_the_config_go_to_wandb(tmp_path):
  record(tmp_path / "run", "...", trackers="wandb")
  of_wandb(tmp_path / "run")
  (stored,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
  data = stored.read_bytes()
  assert b"train/mlm_loss" in data
  host = platform.node()  # in the protocol, its length comes before it
  for private in (f"{chr(len(host))}{host}", sys.argv[0], "requirements.txt"):
    assert private.encode() not in data
  assert not [*stored.parent.glob("files/*.txt"), *stored.parent.glob("files/*.json")]


def test_trackers_may_change_when_a_run_resumes(tmp_path):
  config = door.flat(get_config())
  other = config | {"train.trackers": "wandb"}
  workdir.check_folder(tmp_path / "run", config)
  workdir.record(tmp_path / "run", config, {})
  assert not workdir.check_folder(tmp_path / "run", other)


def test_names_are_separated_by_commas_and_must_be_known(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
  for text, names in {"": [], "mlflow": ["mlflow"], "wandb, mlflow": [*TRACKERS]}.items():
    config = get_config(train={"trackers": text})
    assert check(config).train.tracker_names == names
  for text in ("tensorboard", "wandb mlflow", "wandb,neptune", "mlflow, mlflow"):
    with pytest.raises(ConfigError, match=r"train\.trackers is .* names from wandb, mlf"):
      check(get_config(train={"trackers": text}))


def test_a_tracker_that_is_not_installed_is_refused_with_what_to_do(monkeypatch):
  name, (*_, missing) = "mlflow", TRACKERS["mlflow"]
  monkeypatch.setattr(importlib.util, "find_spec", lambda x: None if x == missing else x)
  with pytest.raises(ConfigError, match=rf"{name} is not installed.* '\.\[{name}\]'"):
    check(get_config(train={"trackers": "wandb,mlflow"}))


@pytest.mark.slow
@pytest.mark.extra(*TRACKERS["wandb"], *TRACKERS["mlflow"])
@pytest.mark.parametrize("saved", [False, True])
def test_a_killed_run_resumes_in_the_same_records(folder, saved):
  workdir = folder / f"tracked_{saved}"
  options = programs.fields("train.trackers=wandb,mlflow")
  words = programs.command(folder, workdir.name, *options)
  if saved:
    programs.kill_once_saved(words, folder, workdir)
  else:
    process = programs.start(words, folder, **programs.READ_ONLY_CACHE)
    begun = workdir / "checkpoints"  # where the first save has hardly begun
    programs.wait_for(process, lambda: any(begun.glob("[0-9]*")))
    programs.kill(process)
  printed = programs.succeed(folder, workdir.name, *options).stdout
  _, _, told = printed.partition("resuming from step ")
  resumed = int(told.split()[0]) if told else 0
  assert resumed or not saved
  ids = json.loads((workdir / "trackers.json").read_text())
  # What Weights & Biases has not written when a process is killed is lost to it.
  for name, held, first in (("wandb", of_wandb, resumed), ("mlflow", of_mlflow, 0)):
    ((*_, run_id),), numbers = held(workdir)
    assert run_id == ids[name]
    lines = {line for line in written(workdir) if line[0] > first}
    assert lines <= {*numbers}
    logged = {step for step, *_ in numbers}
    assert {*range(first + 2, STEPS + 1, 2)} <= logged <= {*range(2, STEPS + 1, 2)}


@pytest.mark.slow
@pytest.mark.extra(*TRACKERS["mlflow"])
def test_a_tracker_that_does_not_open_ends_all_processes_before_any_work(
  folder, request, monkeypatch
):
  monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@localhost:9")
  options = programs.fields("train.trackers=mlflow")
  command = [
    x.replace(str(folder / "data"), str(folder / "none"))
    for x in programs.command(folder, "lost", *options)
  ]
  first, second = programs.begin_two(command, folder, request)
  _, told = first.communicate()
  _, other = second.communicate()
  assert (first.returncode, second.returncode) == (2, 1)
  assert len([x for x in told.splitlines() if "mlflow cannot be opened" in x]) == 1
  assert "secret" not in told
  assert "Process 0 failed; its message says why." in other
  assert not (folder / "none").exists()
