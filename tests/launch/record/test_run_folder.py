"""Metrics and the config of a run's folder."""

import json

import pytest

from configs import base
from launch import door, workdir
from launch.record import metrics, report, tensorboard
from model import weights
from packing import InputError
from packing.files import write_json
from training.errors import ConfigError

NUMBERS = {"loss": 1.0, "seconds": 1.0}
CONFIG = {"seed": 0, "train.steps": 5}
OTHER = {"seed": 0, "train.steps": 6}
DATASET = {"train.arrow": "ab", "vocab.txt": "cd"}


@pytest.fixture
def log_of_a_run(tmp_path):
  """A run of 40 steps, saved at 30, and what its checkpoint holds of the log."""
  log = metrics.MetricsLog(tmp_path)
  for step in (10, 20, 30):
    log.train(step, NUMBERS | {"loss": 1.0 / step})
    log.evaluation(step, {"loss": 2.0 / step, "mlm_accuracy": step / 100})
  state = json.loads(json.dumps(log.get_state()))
  log.train(40, NUMBERS | {"loss": 0.5})
  log.evaluation(40, {"loss": 0.5, "mlm_accuracy": 0.4})
  return tmp_path, state


def steps_of(path):
  return [line["step"] for line in metrics.read_json_lines(path)]


def test_a_log_that_goes_on_drops_what_came_after_the_checkpoint(log_of_a_run):
  folder, state = log_of_a_run
  with (folder / "metrics.jsonl").open("a") as file:
    file.write('{"step": 50, "lo')  # cut short by a kill
  log = metrics.MetricsLog(folder, state=state)
  assert log.last_train_line == NUMBERS | {"step": 30, "loss": 1 / 30}
  log.train(40, NUMBERS | {"loss": 0.25})
  assert steps_of(folder / "metrics.jsonl") == [10, 20, 30, 40]
  assert metrics.read_json_lines(folder / "metrics.jsonl")[-1]["loss"] == 0.25
  assert steps_of(folder / "eval.jsonl") == [10, 20, 30]


def test_of_several_processes_the_first_writes(log_of_a_run, monkeypatch):
  folder, state = log_of_a_run
  kept = [path for path in folder.rglob("*") if path.is_file()]
  before = [path.read_bytes() for path in kept]
  monkeypatch.setattr(metrics.jax, "process_index", lambda: 1)
  log = metrics.MetricsLog(folder, state=state)
  assert log.last_train_line["loss"] == 1 / 30
  log.train(40, NUMBERS | {"loss": 0.7})
  log.evaluation(40, {"loss": 0.7})
  assert [path for path in folder.rglob("*") if path.is_file()] == kept
  assert [path.read_bytes() for path in kept] == before


def test_a_run_outlives_its_tensorboard(tmp_path, capsys):
  folder = tmp_path / "tensorboard"
  folder.write_text("no folder")
  tracked = {"TensorBoard": tensorboard.writer(folder)}
  log = metrics.MetricsLog(tmp_path, trackers=tracked)
  for step in (1, 2):
    log.train(step, NUMBERS)
  assert steps_of(tmp_path / "metrics.jsonl") == [1, 2]
  (told,) = capsys.readouterr().err.splitlines()
  assert told.startswith("WARNING: the run continues without TensorBoard: ")


def test_a_full_disk_is_told_with_the_file_and_the_step(tmp_path):
  log = metrics.MetricsLog(tmp_path)
  path = tmp_path / "metrics.jsonl"
  path.unlink()
  path.symlink_to("/dev/full")
  told = r"Step 7 could not be written to .*metrics\.jsonl: .*No space left"
  with pytest.raises(OSError, match=told):
    log.train(7, NUMBERS)


def damage(path, how):
  lines = path.read_bytes().splitlines(keepends=True)
  if how == "removed":
    path.unlink()
    return
  lines[1] = lines[1].replace(b"loss", b"lo\xf3s")
  path.write_bytes(b"".join(lines))


@pytest.mark.parametrize(("how", "lost"), [("flipped", 1), ("removed", 2)])
def test_a_warning_counts_the_lines_that_are_lost(log_of_a_run, capsys, how, lost):
  folder, state = log_of_a_run
  for name in ("metrics.jsonl", "eval.jsonl"):
    damage(folder / name, how)
  log = metrics.MetricsLog(folder, state=state)
  assert log.last_train_line["loss"] == 1 / 30  # these lines are in the checkpoint
  assert steps_of(folder / "eval.jsonl") == [10, 20, 30]
  assert log.get_state() == state
  assert len(steps_of(folder / "metrics.jsonl")) == 3 - lost
  (told,) = capsys.readouterr().err.splitlines()
  name = folder / "metrics.jsonl"
  assert told == f"WARNING: {name} was damaged: {lost} of 3 lines are lost."


def test_a_run_that_starts_again_has_no_lines(log_of_a_run, capsys):
  """It was killed before its first checkpoint, and a line is damaged since."""
  folder, _ = log_of_a_run
  for name in ("metrics.jsonl", "eval.jsonl"):
    damage(folder / name, "flipped")
  log = metrics.MetricsLog(folder)
  assert {x["lines"] for x in log.get_state().values()} == {0}
  assert steps_of(folder / "metrics.jsonl") == []
  assert capsys.readouterr().err == ""


def test_readers_name_the_damaged_line(log_of_a_run):
  folder, _ = log_of_a_run
  path = folder / "eval.jsonl"
  damage(path, "flipped")
  with pytest.raises(ConfigError, match=f"{path} is damaged in line 2"):
    metrics.read_json_lines(path)


@pytest.mark.parametrize("content", [b'{"train.arrow": "a', b"[]"])
def test_a_damaged_file_of_a_run_is_named(tmp_path, content):
  for name in ("dataset.json", "config.json", "summary.json"):
    (tmp_path / name).write_bytes(content)
  with pytest.raises(InputError, match=r"dataset\.json .*; expected .* Restore it"):
    workdir.check_dataset(tmp_path, DATASET)
  with pytest.raises(InputError, match=r"config\.json .*; expected .*Restore it"):
    workdir.check_same(tmp_path, CONFIG)
  with pytest.raises(InputError, match=r"summary\.json .*; expected .*Delete it"):
    workdir.read_summary(tmp_path)


def test_a_summary_that_lacks_figures_is_named(tmp_path):
  (tmp_path / "summary.json").write_text("{}")
  with pytest.raises(ConfigError, match=r"summary\.json is damaged .*Delete it"):
    report.finished(tmp_path)


def test_what_json_cannot_hold_leaves_no_file(tmp_path):
  for value in (object(), float("nan")):
    with pytest.raises((TypeError, ValueError)):
      write_json(tmp_path / "a.json", {"x": value})
  assert not list(tmp_path.iterdir())


def test_the_config_of_a_run_is_a_config_file(tmp_path):
  config = base.get_config()
  config.train.steps = 7
  saved = config.to_dict()
  write_json(tmp_path / "config.json", saved)
  assert workdir.get_config(str(tmp_path)).to_dict() == config.to_dict()
  wrong: dict
  for wrong in ({"trian": {}}, {"train": {"steps": "seven"}}, {"train": 3}, {"seed": 0}):
    write_json(tmp_path / "config.json", wrong)
    with pytest.raises(ConfigError, match=r"config\.json is damaged, or has other"):
      workdir.get_config(str(tmp_path))


def test_a_run_that_is_older_than_a_field_had_its_default(tmp_path):
  config = base.get_config()
  older = config.to_dict()
  before = older["train"].pop("log_every")
  write_json(tmp_path / "config.json", older)
  assert workdir.get_config(str(tmp_path)).to_dict() == config.to_dict()
  given = door.flat(config)
  workdir.check_same(tmp_path, given)
  message = f"train.log_every was {before} and is now {before + 1}"
  with pytest.raises(ConfigError, match=message):
    workdir.check_same(tmp_path, given | {"train.log_every": before + 1})


def test_a_folder_belongs_to_one_config_and_one_dataset(tmp_path):
  folder = tmp_path / "run"
  workdir.check_folder(folder, OTHER)
  workdir.check_folder(folder, CONFIG)  # a mistake before the run does not claim the folder
  (folder / "summary.json").touch()  # of fewer steps
  with workdir.claimed(folder):
    workdir.record(folder, CONFIG, DATASET)
  assert not (folder / "summary.json").exists()
  workdir.check_folder(folder, CONFIG)
  with pytest.raises(ConfigError, match=r"train\.steps was 5 and is now 6"):
    workdir.check_folder(folder, OTHER)
  workdir.check_same(folder, OTHER, groups=("seed",))
  workdir.check_same(folder, OTHER, groups=("train.",), ignore=("train.steps",))
  with pytest.raises(ConfigError, match=r"train\.steps was 5 and is now 6"):
    workdir.check_same(folder, OTHER, groups=("train.",), ignore=("seed", "train"))
  workdir.check_dataset(folder, DATASET)
  with pytest.raises(ConfigError, match="a run on another dataset"):
    workdir.check_dataset(folder, DATASET | {"vocab.txt": "ef"})


@pytest.mark.parametrize(
  ("field", "value", "may_change"),
  [
    ("optimizer.name", "adamw", False),  # its state has the same arrays
    ("optimizer.learning_rate", 0.5, True),
    ("packing.max_sequences_per_pack", 2, False),
    ("packing.adjust", "none", True),
    ("model.global_base", 9.0, False),
    ("model.dropout_rate", 0.5, True),
  ],
)
def test_what_a_run_stands_on_cannot_change(tmp_path, field, value, may_change):
  config = door.flat(base.get_config())
  workdir.check_folder(tmp_path, config)
  workdir.record(tmp_path, config, DATASET)
  config |= {field: value}
  if may_change:
    assert workdir.check_folder(tmp_path, config, allow_changes=True)
  else:
    with pytest.raises(ConfigError, match=f"another model, packing or .*{field} was"):
      workdir.check_folder(tmp_path, config, allow_changes=True)


@pytest.mark.parametrize(
  ("field", "value", "remedy"),
  [
    ("train.steps", 9, "--allow_changed_config to accept it, or another --workdir."),
    ("data.directory", "moved", "--allow_changed_config to accept it"),
    ("train.batch_size", 4, "--config.model.init_from={} with another --workdir."),
    ("data.max_sequence_length", 64, "--config.model.init_from={} with another --workdir."),
    ("optimizer.name", "adamw", "--config.model.init_from={} with another --workdir."),
    ("model.size", "large", "Give the same ones, or give another --workdir."),
  ],
)
def test_only_remedies_that_work_are_offered(tmp_path, field, value, remedy):
  config = door.flat(base.get_config())
  workdir.check_folder(tmp_path, config)
  workdir.record(tmp_path, config, DATASET)
  config |= {field: value}
  with pytest.raises(ConfigError, match="--workdir") as raised:
    workdir.check_folder(tmp_path, config)
  assert "init_from" not in str(raised.value)  # nothing is saved yet
  (tmp_path / "checkpoints" / "10" / weights.PARAMS).mkdir(parents=True)
  (tmp_path / "checkpoints" / "10" / weights.METADATA).touch()
  with pytest.raises(ConfigError) as raised:
    workdir.check_folder(tmp_path, config)
  assert f"{field} was" in str(raised.value)
  assert remedy.format(tmp_path) in str(raised.value)
  for other in {"allow_changed", "init_from"}:
    assert (other in str(raised.value)) == (other in remedy)


def test_a_model_of_hugging_face_is_no_run_that_could_be_overwritten(tmp_path):
  write_json(tmp_path / "config.json", {"model_type": "bert", "hidden_size": 128})
  for allow_changes in (False, True):
    with pytest.raises(ConfigError, match="holds a model, not a run"):
      workdir.check_folder(tmp_path, CONFIG, allow_changes=allow_changes)


def test_two_processes_do_not_train_in_one_folder(tmp_path):
  workdir.check_folder(tmp_path, CONFIG)
  for _ in range(2):
    with workdir.claimed(tmp_path):
      workdir.check_folder(tmp_path, CONFIG)  # as another process does before it claims
      again = workdir.claimed(tmp_path)
      with pytest.raises(ConfigError, match="Another process trains in"), again:
        pass


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(ConfigError, match="cannot be written"):
    workdir.check_folder(tmp_path / "file" / "run", CONFIG)


@pytest.mark.parametrize(
  ("name", "content"),
  [("model.json", {}), ("config.json", {"architectures": ["BertModel"]})],
)
def test_no_run_begins_in_the_folder_of_a_model(tmp_path, name, content):
  """Its files would be overwritten, such as the config.json of Hugging Face."""
  (tmp_path / name).write_text(json.dumps(content))
  with pytest.raises(ConfigError, match=r"not a run. Name another folder, .*init_from="):
    workdir.check_folder(tmp_path, CONFIG, allow_changes=True)
  assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["model.json", "config.json"])
def test_a_model_that_was_imported_is_no_run(tmp_path, name):
  assert workdir.is_run(tmp_path)  # meant to be one
  (tmp_path / name).touch()
  assert not workdir.is_run(tmp_path)
  (tmp_path / "dataset.json").touch()
  assert workdir.is_run(tmp_path)
