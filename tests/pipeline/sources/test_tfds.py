"""TensorFlow Datasets, read without TensorFlow."""

import json
import pickle
import shutil
import sys

import pytest

from packing import InputError
from pipeline.preparation.prepare import prepare
from pipeline.settings import DatasetSettings
from pipeline.sources import tfds
from pipeline.sources.document import DocumentFields
from pipeline.sources.partitions import fingerprint, open_source, source_inputs
from pipeline.tasks.registry import find_task
from pipeline.tokenizer import SPECIAL_TOKENS
from tests import tfds_data
from tests.pipeline.sources.files import read


@pytest.fixture(scope="module")
def prepared_data(tmp_path_factory):
  folder = tmp_path_factory.mktemp("tfds")
  tfds_data.build_all(folder)
  other = shutil.copytree(folder / "squad" / "v1.1" / "3.0.0", folder / "tfrecord")
  info = json.loads((other / "dataset_info.json").read_text())
  (other / "dataset_info.json").write_text(json.dumps(info | {"fileFormat": "tfrecord"}))
  return folder


@pytest.fixture
def data_dir(prepared_data, monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", str(prepared_data))
  return prepared_data


def of_task(spec, task):
  task, settings = find_task(DatasetSettings(spec, 256, task=task))
  return read(spec, task.document_fields(settings))


def test_tfds_by_name_without_tensorflow(data_dir):
  for spec, task, count in (
    ("glue/cola", "glue/cola", 61),
    ("glue/cola#validation", "glue/cola", 13),
    ("glue/cola#train[:10]", "glue/cola", 10),
    ("squad", "squad", 11),
    ("wikipedia/20230601.en", "pretraining", 29),
    (data_dir / "wikipedia" / "20230601.en" / "1.0.0", "text", 29),
  ):
    found = [document.fields for document in of_task(f"tfds:{spec}", task)]
    assert len(found) == count, spec
    if task == "glue/cola":
      assert all(type(fields["sentence"]) is str for fields in found)
      assert {fields["label"] for fields in found} == {"acceptable", "unacceptable"}
    elif task == "squad":
      assert {fields["id"] for fields in found} == {f"q{i}" for i in range(11)}
      assert found[0]["answers"]["text"][0] in found[0]["context"]
      assert all(type(n) is int for n in found[0]["answers"]["answer_start"])
  assert "tensorflow" not in sys.modules


def test_partitions_of_a_tfds_split_make_the_split(data_dir, tmp_path, monkeypatch):
  fields = DocumentFields(("sentence", "label"))
  (whole,) = open_source("tfds:glue/cola", fields)
  monkeypatch.setattr(tfds, "PARTITION_EXAMPLES", 20)
  parts = open_source("tfds:glue/cola", fields)
  assert [len([*part.read()]) for part in parts] == [20, 20, 20, 1]
  inputs = [entry for part in parts for entry in part.inputs()]
  assert inputs == source_inputs("tfds:glue/cola") == whole.inputs()
  (record,) = (data_dir / "glue" / "cola").glob("*/glue-train.array_record*")
  assert fingerprint(inputs)["bytes"] == record.stat().st_size
  two = open_source("tfds:glue/cola#train+validation", fields)
  assert len([entry for part in two for entry in part.inputs()]) == 2
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))  # a worker elsewhere
  again = pickle.loads(pickle.dumps(parts))
  assert [d for part in again for d in part.read()] == list(whole.read())


def cola(tmp_path, source, held_out) -> DatasetSettings:
  (tmp_path / "vocab").write_text("\n".join([*SPECIAL_TOKENS, *tfds_data.WORDS, "."]))
  (tmp_path / "own.jsonl").write_text('{"sentence": "a", "label": 1}\n')
  names = [f"tfds:glue/cola{x and '#'}{x}" for x in (source, held_out)]
  names = [x.replace("OWN", str(tmp_path / "own.jsonl")) for x in names]
  fields = {"held_out_source": names[1], "vocab_file": str(tmp_path / "vocab")}
  return DatasetSettings(names[0], 32, task="glue/cola", **fields)


@pytest.mark.parametrize(
  ("source", "held_out", "is_refused"),
  [
    ("", "train[90%:]", True),
    ("train[:91%]", "train[90%:]", True),
    ("train+validation", "validation", True),
    ("train,OWN", "train", True),
    ("train", "train,OWN", True),
    ("train,OWN", "train,OWN", False),
    ("train[:90%]", "train[90%:]", False),
    ("", "validation", False),
    ("train[:9]", "train[:9]", False),  # all of them may be
  ],
)
def test_held_out_slices_are_not_trained_on(
  data_dir, tmp_path, source, held_out, is_refused
):
  chosen = cola(tmp_path, source, held_out)
  if not is_refused:
    assert len(prepare(tmp_path / "d", chosen, num_workers=1).held_out)
    return
  with pytest.raises(InputError, match=r"^Examples of glue-.* in the source to train on"):
    prepare(tmp_path / "d", chosen)


@pytest.mark.parametrize(
  ("one", "other"), [("", "#train"), ("#train[:60%]", "#train[50%:]")]
)
def test_slices_of_one_source_share_no_example(data_dir, one, other):
  fields = DocumentFields(("sentence", "label"))
  with pytest.raises(InputError, match=r"^Examples of glue-train.* in several of the sou"):
    open_source(f"tfds:glue/cola{one},tfds:glue/cola{other}", fields)
  halves = open_source("tfds:glue/cola#train[:50%],tfds:glue/cola#train[50%:]", fields)
  assert sum(len([*part.read()]) for part in halves) == 61


def test_a_source_that_cannot_be_compared_is_named(data_dir, tmp_path, monkeypatch, capsys):
  chosen = cola(tmp_path, "train", "validation")
  manifest = prepare(tmp_path / "d", chosen, num_workers=1).manifest
  assert prepare(tmp_path / "d", chosen).manifest == manifest
  assert "WARNING" not in capsys.readouterr().err
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  assert prepare(tmp_path / "d", chosen).manifest == manifest
  found = capsys.readouterr().err
  assert "WARNING: tfds:glue/cola#train cannot be compared with" in found


@pytest.mark.parametrize(
  ("spec", "task", "message"),
  [
    ("tfds:glue/qqp", "glue/qqp", r"holds nothing, .*tfds build glue/qqp --file_format="),
    ("tfds:no_such", "text", r"no dataset 'no_such'"),
    ("tfds:glue/zzz", "glue/cola", r"BuilderConfig zzz not found"),
    ("tfds:glue/cola#dev", "glue/cola", r"no split 'dev'; found .*train"),
    ("tfds:glue/cola", "squad", r"no 'id'; found .*sentence"),
    ("tfds:{}/tfrecord", "squad", r"holds tfrecord, .*or run with TensorFlow: tfds build"),
  ],
)
def test_tfds_that_cannot_be_read_says_what_to_do(data_dir, spec, task, message):
  with pytest.raises(InputError, match=message):
    of_task(spec.format(data_dir), task)
