"""A run's config names any source, or what a directory holds already."""

import numpy as np
import pytest

import pipeline
from configs import base
from packing import InputError
from pipeline.settings import Settings
from tests import tfds_data


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory):
  folder = tmp_path_factory.mktemp("tfds")
  tfds_data.build_all(folder)
  return folder


@pytest.fixture(autouse=True)
def data_dir(catalogue, monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", str(catalogue))


def config_for(directory, **data):
  config = base.get_config()
  config.data.directory = str(directory)
  config.data.max_sequence_length = 41
  config.data.vocab_size = 100
  config.train.batch_size = 3
  for name, value in data.items():
    config.data[name] = value
  return config


def test_a_config_names_any_source(tmp_path):
  config = config_for(
    tmp_path / "d", source="tfds:wikipedia/20230601.en", held_out_fraction=0.2
  )
  dataset = pipeline.prepare_dataset(config)
  assert dataset.manifest["counts"]["documents"] == 29
  loader = pipeline.make_loader(config, dataset.train, dataset.vocabulary)
  assert loader[0]["input_ids"].shape == (3, 41)
  assert len(dataset.held_out) > 3


def test_a_config_takes_what_is_prepared(tmp_path):
  made = pipeline.prepare(
    tmp_path / "d",
    Settings("tfds:wikipedia/20230601.en", 41, vocab_size=100, held_out_fraction=0.2),
  )
  config = config_for(tmp_path / "d", source="prepared")
  assert pipeline.prepare_dataset(config).manifest == made.manifest
  config.data.max_sequence_length = 43
  with pytest.raises(InputError, match="with max_sequence_length 41; expected 43"):
    pipeline.prepare_dataset(config)
  with pytest.raises(InputError, match="is no prepared dataset"):
    pipeline.prepare_dataset(config_for(tmp_path / "none", source="prepared"))


@pytest.mark.parametrize("task", ["glue/cola", "glue/mrpc"])
def test_glue_of_the_catalogue_is_prepared_with_a_split_held_out(tmp_path, task):
  held_out = "#validation" if task == "glue/cola" else "#train[30:]"
  dataset = pipeline.prepare(
    tmp_path / "d",
    Settings(
      f"tfds:{task}" + ("" if task == "glue/cola" else "#train[:30]"),
      64,
      task=task,
      vocab_size=100,
      held_out_source=f"tfds:{task}{held_out}",
    ),
  )
  assert len(dataset.train) == (61 if task == "glue/cola" else 30)
  assert len(dataset.held_out) == (13 if task == "glue/cola" else 7)
  assert set(dataset.train.sequence_labels.tolist()) == {0, 1}
  separator = dataset.vocabulary.index("[SEP]")
  separators = [
    int((dataset.train.gather(np.array([i])) == separator).sum()) for i in range(30)
  ]
  assert set(separators) == {1 if task == "glue/cola" else 2}


def test_hidden_labels_are_refused(tmp_path):
  with pytest.raises(InputError, match="Test splits hide their labels"):
    pipeline.prepare(
      tmp_path / "d",
      Settings("tfds:glue/cola#test", 64, task="glue/cola", vocab_size=100),
    )
