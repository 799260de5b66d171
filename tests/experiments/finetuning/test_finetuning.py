"""Local tasks: labels are true by construction, and no sentence is in both splits."""

import collections
import json
import pathlib

import pytest

from experiments.finetuning import __main__ as finetuning
from experiments.finetuning import local_tasks
from tests import shared_data
from tests.programs import lines_of


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
  """By sentence, the module and the docstring that it is from, and its place there."""
  return {
    sentence: (name, number, place)
    for name, docstrings in local_tasks.docstrings_by_module().items()
    for number, docstring in enumerate(docstrings)
    for place, sentence in enumerate(docstring)
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
    modules[example["label"]].add(sentences[example["sentence"]][0])
  assert [len(modules[0]), len(modules[1])] == [1, 1]
  assert modules[0] != modules[1]
  for example in examples["qqp"]:
    first, second = (sentences[example[f"question{i}"]] for i in (1, 2))
    if example["label"]:
      assert first[:2] == second[:2]
      assert first[2] + 1 == second[2]
    else:
      assert first[0] != second[0]
  for example in examples["stsb"]:
    words, others = (example[f"sentence{i}"].split() for i in (1, 2))
    same = sum(a == b for a, b in zip(words, others, strict=True))
    assert example["label"] == pytest.approx(5 * same / len(words))


@pytest.mark.slow
def test_labels_are_balanced_and_splits_share_no_sentence(written):
  tasks, _ = written
  for task, (train, dev) in tasks.items():
    for name, split in (("train", train), ("dev", dev)):
      assert 300 < len(split) <= local_tasks.LARGEST[name]
      if task != "stsb":
        assert 0.3 < sum(example["label"] for example in split) / len(split) < 0.7
    if task in ("cola", "sst2"):
      assert not {e["sentence"] for e in train} & {e["sentence"] for e in dev}


@pytest.mark.extra
def test_questions_are_split_by_article(tmp_path):
  xquad = shared_data.needed("squad/xquad.en.json")
  paths = local_tasks.split_questions(xquad, tmp_path)
  parts = [json.loads(pathlib.Path(path).read_text())["data"] for path in paths]
  titles = [{article["title"] for article in part} for part in parts]
  assert not titles[0] & titles[1]
  questions = [
    sum(len(p["qas"]) for article in part for p in article["paragraphs"]) for part in parts
  ]
  assert sum(questions) == 1190
  assert 0.1 < questions[1] / 1190 < 0.3


def test_the_command_says_what_is_wrong(capsys):
  with pytest.raises(SystemExit) as left:
    finetuning.main(["--init-from", "x", "--tasks", "cola,squat"])
  assert left.value.code == 2
  error = capsys.readouterr().err
  assert "no task 'squat'; expected some of cola, sst2, qqp, stsb" in error
