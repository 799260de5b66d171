"""Metrics and the config of a run's folder."""

import json

import ml_collections
import numpy as np
import pytest

from model import weights
from tests import packs
from training import files, metrics, workdir
from training.config import ConfigError
from training.parameters import parameters_digest


def test_a_log_that_goes_on_drops_what_came_after_the_checkpoint(tmp_path):
  with metrics.MetricsLog(tmp_path, first_step=0) as log:
    for step in (10, 20, 30):
      log.train(step, {"loss": 1.0 / step})
      log.evaluation(step, {"loss": 2.0 / step})
  with (tmp_path / "metrics.jsonl").open("a") as file:
    file.write('{"step": 40, "lo')  # cut short by a kill
  with metrics.MetricsLog(tmp_path, first_step=20) as log:
    assert log.last_train_line == {"step": 20, "loss": 0.05}
    log.train(30, {"loss": 0.5})
  lines = files.read_json_lines(tmp_path / "metrics.jsonl")
  assert [line["step"] for line in lines] == [10, 20, 30]
  assert lines[-1]["loss"] == 0.5
  assert [x["step"] for x in files.read_json_lines(tmp_path / "eval.jsonl")] == [10, 20]
  assert list((tmp_path / "tensorboard").glob("events*"))


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


CONFIG = ml_collections.ConfigDict({"seed": 0, "train": {"steps": 5}})
DATASET = {"train.arrow": "ab", "vocab.txt": "cd"}


def test_a_folder_belongs_to_one_config_and_one_dataset(tmp_path):
  workdir.check(tmp_path / "run", CONFIG)
  with workdir.claimed(tmp_path / "run", dataset=DATASET):
    workdir.record(tmp_path / "run", CONFIG, DATASET)
  workdir.check(tmp_path / "run", CONFIG)
  other = CONFIG.copy_and_resolve_references()
  other.train.steps = 6
  with pytest.raises(ConfigError, match=r"train\.steps is 5 there and 6 here"):
    workdir.check(tmp_path / "run", other)
  workdir.check_same(tmp_path / "run", other, groups=("seed",))
  workdir.check_same(tmp_path / "run", other, groups=("train",), but=("train.steps",))
  with pytest.raises(ConfigError, match=r"train\.steps is 5 there and 6 here"):
    workdir.check_same(tmp_path / "run", other, groups=("train",), but=("seed", "train"))
  with (
    pytest.raises(ConfigError, match="a run on another dataset"),
    workdir.claimed(tmp_path / "run", dataset=DATASET | {"vocab.txt": "ef"}),
  ):
    pass


def test_a_mistake_before_the_run_does_not_claim_the_folder(tmp_path):
  workdir.check(tmp_path / "run", CONFIG)
  other = CONFIG.copy_and_resolve_references()
  other.seed = 1
  workdir.check(tmp_path / "run", other)


def test_two_processes_do_not_train_in_one_folder(tmp_path):
  workdir.check(tmp_path, CONFIG)
  with workdir.claimed(tmp_path, dataset=DATASET):
    workdir.check(tmp_path, CONFIG)  # as another process does before it claims
    with (
      pytest.raises(ConfigError, match="Another process trains in"),
      workdir.claimed(tmp_path, dataset=DATASET),
    ):
      pass
  with workdir.claimed(tmp_path, dataset=DATASET):
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
