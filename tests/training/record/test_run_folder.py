"""Metrics and the config of a run's folder."""

import json

import ml_collections
import numpy as np
import pytest

from configs import base
from model import weights
from tests import packs
from training import plots
from training.config import ConfigError
from training.record import files, metrics, saved_config, workdir
from training.record.parameters import parameters_digest
from training.record.report import TRAIN_NUMBERS

NUMBERS = dict.fromkeys(TRAIN_NUMBERS, 1.0)


def test_a_log_that_goes_on_drops_what_came_after_the_checkpoint(tmp_path):
  with metrics.MetricsLog(tmp_path, first_step=0) as log:
    for step in (10, 20, 30):
      log.train(step, NUMBERS | {"loss": 1.0 / step})
      log.evaluation(step, {"loss": 2.0 / step})
  with (tmp_path / "metrics.jsonl").open("a") as file:
    file.write('{"step": 40, "lo')  # cut short by a kill
  with metrics.MetricsLog(tmp_path, first_step=20) as log:
    assert log.last_train_line == NUMBERS | {"step": 20, "loss": 0.05}
    log.train(30, NUMBERS | {"loss": 0.5})
  lines = files.read_json_lines(tmp_path / "metrics.jsonl")
  assert [line["step"] for line in lines] == [10, 20, 30]
  assert lines[-1]["loss"] == 0.5
  assert [x["step"] for x in files.read_json_lines(tmp_path / "eval.jsonl")] == [10, 20]
  assert list((tmp_path / "tensorboard").glob("events*"))


@pytest.fixture
def log_of_a_run(tmp_path):
  """A run of 40 steps, saved at 30, and what its checkpoint holds of the log."""
  with metrics.MetricsLog(tmp_path, first_step=0) as log:
    for step in (10, 20, 30):
      log.train(step, NUMBERS | {"loss": 1.0 / step})
      log.evaluation(step, {"loss": 2.0 / step, "mlm_accuracy": step / 100})
    state = json.loads(json.dumps(log.get_state()))
    log.train(40, NUMBERS | {"loss": 0.5})
  return tmp_path, state


def damage(path, how):
  lines = path.read_bytes().splitlines(keepends=True)
  if how == "removed":
    path.unlink()
    return
  if how == "cut":
    lines = [*lines[:2], lines[2][:20]]
  else:
    flipped = lines[1].replace(b"loss", b"lo\xf3s").replace(b"seconds", b"sec/nds")
    lines[1] = {"zeros": bytes(len(lines[1]) - 1) + b"\n", "flipped": flipped}[how]
  path.write_bytes(b"".join(lines))


@pytest.mark.parametrize(
  ("name", "how", "missing"),
  [
    ("metrics.jsonl", "zeros", 1),
    ("metrics.jsonl", "flipped", 1),
    ("metrics.jsonl", "cut", 0),  # the last line is in the checkpoint
    ("metrics.jsonl", "removed", 2),
    ("eval.jsonl", "zeros", 0),
    ("eval.jsonl", "flipped", 0),
    ("eval.jsonl", "cut", 0),
    ("eval.jsonl", "removed", 0),
  ],
)
def test_a_damaged_log_is_mended_from_the_checkpoint_and_told(
  log_of_a_run, capsys, name, how, missing
):
  folder, state = log_of_a_run
  before = files.read_json_lines(folder / name)
  damage(folder / name, how)
  for _ in range(2):  # what is lost stays known
    with metrics.MetricsLog(folder, first_step=30, state=state) as log:
      assert log.missing == missing
      assert log.last_train_line["loss"] == 1 / 30
      assert [line["step"] for line in log.evaluations] == [10, 20, 30]
      assert log.get_state() == state
    found = files.read_json_lines(folder / name)
    assert len(found) == 3 - missing
    assert all(line in before for line in found)
  first, *again = capsys.readouterr().err.splitlines()
  assert f"WARNING: {folder / name} was damaged or cut" in first
  assert again == ([first] if missing else [])
  assert (f"but {missing} of 3 are lost" in first) == bool(missing)


def test_a_log_of_an_earlier_version_tells_what_it_lacks(log_of_a_run, capsys):
  folder, _ = log_of_a_run
  damage(folder / "metrics.jsonl", "zeros")
  assert metrics.MetricsLog(folder, first_step=30).missing == 1
  assert "1 of 3 are lost" in capsys.readouterr().err
  (folder / "metrics.jsonl").unlink()
  with pytest.raises(ConfigError, match=r"metrics\.jsonl has no line up to step 30"):
    metrics.MetricsLog(folder, first_step=30)


def test_readers_name_the_damaged_line(log_of_a_run, capsys):
  folder, _ = log_of_a_run
  weights.describe(folder, packs.small_config(), head="pretraining", vocabulary=None)
  assert workdir.choose_step(folder, "best") == 30
  path = folder / "eval.jsonl"
  path.write_text(path.read_text().replace("mlm_accuracy", "mlm_accurady", 1))
  with pytest.raises(
    ConfigError, match=r"eval\.jsonl is damaged in line 1: expected .*mlm_"
  ):
    workdir.choose_step(folder, "best")
  damage(path, "zeros")
  assert plots.main([str(folder), "--out", str(folder / "a.png")]) == 2
  told = capsys.readouterr().err
  assert f"error: {path} is damaged in line 2" in told
  assert told.count("\n") == 1


@pytest.mark.parametrize("content", [b"", b'{"train.arrow": "a', b"[]", b"\xff{}"])
def test_a_damaged_file_of_a_run_is_named(tmp_path, capsys, content):
  for name in ("dataset.json", "config.json", "summary.json"):
    (tmp_path / name).write_bytes(content)
  with pytest.raises(ConfigError, match=r"dataset\.json is damaged: .* remove it, if"):
    workdir.check_dataset(tmp_path, DATASET)
  with pytest.raises(ConfigError, match=r"config\.json is damaged: .*Restore the file"):
    workdir.check_same(tmp_path, CONFIG)
  assert workdir.read_summary(tmp_path) is None
  told = capsys.readouterr().err
  assert "summary.json is damaged" in told
  assert told.count("\n") == 1


def test_the_digest_tells_names_shapes_types_and_bytes_apart():
  trees = [
    {"a": np.zeros((2, 3), np.float32)},
    {"b": np.zeros((2, 3), np.float32)},
    {"a": np.zeros((3, 2), np.float32)},
    {"a": np.zeros((2, 3), np.int32)},
    {"a": np.full((2, 3), -0.0, np.float32)},
  ]
  digests = [parameters_digest(tree) for tree in trees]
  assert len(set(digests)) == len(trees)
  assert digests[0] == parameters_digest({"a": np.zeros((2, 3), np.float32)})


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
  files.write_json(tmp_path / "a.json", {"x": 1})
  for value in (object(), float("nan")):
    with pytest.raises((TypeError, ValueError)):
      files.write_json(tmp_path / "a.json", {"x": value})
  assert json.loads((tmp_path / "a.json").read_text()) == {"x": 1}
  assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
  (tmp_path / "plain").write_text("")
  assert (tmp_path / "a.json").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_the_config_of_a_run_is_a_config_file(tmp_path):
  config = base.get_config()
  config.train.steps = 7
  saved = config.to_dict()
  del saved["train"]["patience"]  # of an earlier version
  files.write_json(tmp_path / "config.json", saved)
  assert saved_config.get_config(str(tmp_path)).to_dict() == config.to_dict()
  wrong: dict
  for wrong in ({"trian": {}}, {"train": {"steps": "seven"}}, {"train": 3}):
    files.write_json(tmp_path / "config.json", wrong)
    with pytest.raises(
      ConfigError, match=r"config\.json is damaged, or of another version"
    ):
      saved_config.get_config(str(tmp_path))


CONFIG = ml_collections.ConfigDict({"seed": 0, "train": {"steps": 5}})
DATASET = {"train.arrow": "ab", "vocab.txt": "cd"}


def test_a_folder_belongs_to_one_config_and_one_dataset(tmp_path):
  workdir.check(tmp_path / "run", CONFIG)
  with workdir.claimed(tmp_path / "run"):
    workdir.record(tmp_path / "run", CONFIG, DATASET)
  workdir.check(tmp_path / "run", CONFIG)
  other = CONFIG.copy_and_resolve_references()
  other.train.steps = 6
  with pytest.raises(ConfigError, match=r"train\.steps is 5 there and 6 here"):
    workdir.check(tmp_path / "run", other)
  workdir.check_same(tmp_path / "run", other, groups=("seed",))
  workdir.check_same(tmp_path / "run", other, groups=("train",), ignore=("train.steps",))
  with pytest.raises(ConfigError, match=r"train\.steps is 5 there and 6 here"):
    workdir.check_same(tmp_path / "run", other, groups=("train",), ignore=("seed", "train"))
  workdir.check_dataset(tmp_path / "run", DATASET)
  with pytest.raises(ConfigError, match="a run on another dataset"):
    workdir.check_dataset(tmp_path / "run", DATASET | {"vocab.txt": "ef"})


def test_a_mistake_before_the_run_does_not_claim_the_folder(tmp_path):
  workdir.check(tmp_path / "run", CONFIG)
  other = CONFIG.copy_and_resolve_references()
  other.seed = 1
  workdir.check(tmp_path / "run", other)


def test_two_processes_do_not_train_in_one_folder(tmp_path):
  workdir.check(tmp_path, CONFIG)
  with workdir.claimed(tmp_path):
    workdir.check(tmp_path, CONFIG)  # as another process does before it claims
    with (
      pytest.raises(ConfigError, match="Another process trains in"),
      workdir.claimed(tmp_path),
    ):
      pass
  with workdir.claimed(tmp_path):
    pass


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(ConfigError, match="cannot be written"):
    workdir.check(tmp_path / "file" / "run", CONFIG)


def test_the_best_step_is_chosen_by_the_metric_of_the_head(tmp_path):
  config = packs.small_config()
  for head, metric in (("pretraining", "mlm_accuracy"), ("question_answering", "score")):
    folder = tmp_path / head
    folder.mkdir()
    weights.describe(folder, config, head=head, vocabulary=None)
    assert workdir.choose_step(folder, None) is None
    with pytest.raises(ConfigError, match=r"not been evaluated; --step=best is not known"):
      workdir.choose_step(folder, "best")
    lines = [{"step": 2, metric: 0.1}, {"step": 4, metric: 0.3}, {"step": 6, metric: 0.2}]
    (folder / "eval.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    assert workdir.choose_step(folder, "best") == 4
    assert workdir.choose_step(folder, "6") == 6
    with pytest.raises(ConfigError, match="--step is 'last'; expected a number, or best"):
      workdir.choose_step(folder, "last")


def test_a_model_that_was_imported_is_no_run(tmp_path):
  assert workdir.is_run(tmp_path / "nothing")  # meant to be one
  for number, name in enumerate(("model.json", "config.json")):
    folder = tmp_path / str(number)
    folder.mkdir()
    (folder / name).touch()
    assert not workdir.is_run(folder)
    (folder / "dataset.json").touch()
    assert workdir.is_run(folder)
