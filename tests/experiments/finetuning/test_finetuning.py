"""The study of fine-tuning; and local tasks, whose labels are true by construction."""

import collections
import json
import pathlib
import shutil

import numpy as np
import pytest

import packing
from configs import glue
from experiments.finetuning import __main__ as finetuning
from experiments.finetuning import local_tasks, real_tasks
from lab import real_data, records
from lab.exhibits import Part
from lab.studies.identity import is_same_run
from lab.studies.study import identity, prepare_data
from launch.data import prepare_dataset
from launch.door import settings_of
from tests import shared_data
from tests.experiments import encoders
from tests.markdown import ROOT
from tests.programs import lines_of

pytestmark = pytest.mark.usefixtures("forked_jobs")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
  folder = tmp_path_factory.mktemp("tasks")
  paths = local_tasks.write(folder / "a")
  lines = {
    task: [lines_of(pathlib.Path(path)) for path in both] for task, both in paths.items()
  }
  return lines, folder


@pytest.fixture(scope="module")
def sentences():
  """By sentence, the module that it is from."""
  return {
    sentence: name
    for name, docstrings in local_tasks.docstrings_by_module().items()
    for docstring in docstrings
    for sentence in docstring
  }


@pytest.mark.slow
def test_the_same_seed_writes_the_same_files(written):
  _, folder = written
  local_tasks.write(folder / "b")
  for path in (folder / "a").iterdir():
    assert path.read_bytes() == (folder / "b" / path.name).read_bytes()


@pytest.mark.slow
def test_every_label_is_true(written, sentences):
  tasks, _ = written
  examples = {task: train + dev for task, (train, dev) in tasks.items()}
  for example in examples["cola"]:
    assert (example["sentence"] in sentences) == example["label"]
  modules = collections.defaultdict(set)
  for example in examples["sst2"]:
    modules[example["label"]].add(sentences[example["sentence"]])
  assert [len(modules[0]), len(modules[1])] == [1, 1]
  assert modules[0] != modules[1]


@pytest.mark.slow
def test_labels_are_balanced_and_splits_share_no_sentence(written):
  tasks, _ = written
  for train, dev in tasks.values():
    for name, split in (("train", train), ("dev", dev)):
      assert 300 < len(split) <= local_tasks.LARGEST[name]
      assert 0.3 < sum(example["label"] for example in split) / len(split) < 0.7
    assert not {e["sentence"] for e in train} & {e["sentence"] for e in dev}


@pytest.fixture(scope="module")
def real(tmp_path_factory):
  folder = tmp_path_factory.mktemp("real")
  encoders.write_real_data(folder)
  return folder


@pytest.mark.slow
def test_the_whole_study_on_real_files(real, tmp_path, monkeypatch):
  short = {arm: fields | real_tasks.QUICK for arm, fields in finetuning.ARMS.items()}
  short["packed"]["train.throughput_rounds"] = 2
  monkeypatch.setattr(finetuning, "ARMS", short)
  command = ["--data", str(real), "--tasks", "stsb_pairs,squad", "--seeds", "1"]
  command += ["--workdir", str(tmp_path / "out"), "--jobs", "2"]
  assert finetuning.main(command) == 0
  out = tmp_path / "out"
  (exhibit,) = json.loads((out / "exhibits.json").read_text())
  same = [x for x in exhibit["statements"] if "predicts the same" in x[0]]
  assert [x[1] for x in same] == ["holds", "holds"]
  assert "0 of 40 predictions differ" in same[0][2]  # both texts of 20 records
  assert "1 pair" in exhibit["statements"][0][2]
  for text in ("| stsb_pairs | spearman |", "| squad | exact match |", "| squad | score |"):
    assert text in exhibit["text"]
  (picture,) = exhibit["pictures"]
  assert (out / picture).read_bytes().startswith(b"\x89PNG")
  files = [path.read_text() for path in (out / "runs").glob("*.json")]
  assert len(files) == 6  # two tasks, three arms
  assert not any(str(tmp_path) in text for text in files)  # they can be published
  for folder in (out / "runs").glob("*/"):  # of a finished run its file is enough
    shutil.rmtree(folder)
  assert finetuning.main(command) == 0
  (again,) = json.loads((out / "exhibits.json").read_text())
  assert again["statements"] == exhibit["statements"]
  assert not list((out / "runs").glob("*/"))
  (weights_file,) = (real / "minilm-l6-h384").glob("*.safetensors")
  content = weights_file.read_bytes()
  weights_file.write_bytes(content[:-4] + b"1234")
  part = Part(out, "command", seeds=1, data=str(real))
  (made,) = finetuning.make_tasks(part, ["stsb_pairs"])
  assert made.results()["packed"] == []  # of other weights
  weights_file.write_bytes(content)
  (made,) = finetuning.make_tasks(part, ["stsb_pairs"])
  assert len(made.results()["packed"]) == 1


def test_published_runs_have_the_configs_of_today(real, tmp_path):
  part = Part(tmp_path, "command", seeds=5, data=str(real))
  (made,) = finetuning.make_tasks(part, ["cola"])
  for arm, run in made.runs:
    path = ROOT / "docs" / "finetuning" / "runs" / made.path(run).name
    assert is_same_run(records.read(path)["run"], identity(arm, run.settings))


@pytest.mark.extra
def test_published_runs_count_as_finished_with_their_data(tmp_path):
  data = shared_data.needed("minilm-l6-h384").parent
  shutil.copy(ROOT / "docs" / "finetuning" / records.PACKED, tmp_path)
  (made,) = finetuning.make_tasks(Part(tmp_path, "command", data=str(data)), ["cola"])
  prepare_data(run for _, run in made.runs)
  assert [len(runs) for runs in made.results().values()] == [finetuning.SEEDS] * 3


def test_some_examples_are_drawn(real, tmp_path):
  files = real_tasks.files("cola", real, tmp_path, at_most=20)
  drawn = pathlib.Path(files.source).read_text().splitlines()
  lines = (real / "glue" / "CoLA" / "train.tsv").read_text().splitlines()
  places = [lines.index(line) for line in drawn]
  assert len(drawn) == 20
  assert places == sorted(places)
  assert places != list(range(20))
  assert real_tasks.files("cola", real, tmp_path, at_most=90).source.endswith("train.tsv")


def test_whole_articles_are_drawn(real, tmp_path):
  files = real_tasks.files("squad", real, tmp_path, at_most=12)  # each has 5 questions
  articles = json.loads(pathlib.Path(files.source).read_text())["data"]
  assert len(articles) == 3
  assert all(len(article["paragraphs"][0]["qas"]) == 5 for article in articles)


@pytest.mark.extra
@pytest.mark.parametrize("task", ["cola", "rte", "mrpc", "stsb"])
def test_real_files_have_the_lengths_of_table_6(task, tmp_path):
  data = shared_data.needed("minilm-l6-h384").parent
  files = real_tasks.files(task, data, tmp_path)
  config = glue.get_config(task)
  config.data.source = files.source
  config.data.held_out_source = files.held_out_source
  config.data.columns = files.columns
  config.data.vocab_file = str(data / "minilm-l6-h384" / "vocab.txt")
  config.data.directory = str(tmp_path / "data")
  config.model.init_from = str(data / "minilm-l6-h384")
  dataset = prepare_dataset(settings_of(config).data)
  expected = packing.load_histogram(f"glue_{task}_128").counts
  assert np.bincount(dataset.train.lengths, minlength=129)[1:].tolist() == expected.tolist()
  assert dataset.train.lengths.max() == files.longest  # unpacked rows are this long
  assert dataset.held_out.lengths.max() <= files.longest


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--data=nowhere", "--tasks=cola"], "nowhere has no minilm-l6-h384"),
    ([], "--data is not given; expected a folder with real data"),
  ],
)
def test_the_command_says_what_is_wrong(arguments, message, tmp_path, monkeypatch, capsys):
  monkeypatch.delenv(real_data.VARIABLE, raising=False)
  assert finetuning.main([*arguments, f"--workdir={tmp_path}"]) == 2
  assert message in capsys.readouterr().err
