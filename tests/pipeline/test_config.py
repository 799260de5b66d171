"""A run's config names any source, or what a directory holds already."""

import json
import types
from typing import Any

import numpy as np
import pytest

import packing
import pipeline
from configs import base
from packing import InputError
from pipeline.__main__ import main
from pipeline.settings import DatasetSettings
from tests import tfds_data
from tests.prepared import contents, needs_beam


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


def test_a_run_without_held_out_documents_is_refused_before_any_work(tmp_path):
  source = "tfds:wikipedia/20230601.en"
  with pytest.raises(InputError, match=r"held_out_fraction is 0 and .*held_out_source is"):
    pipeline.prepare_dataset(
      config_for(tmp_path / "d", source=source, held_out_fraction=0.0)
    )
  assert not (tmp_path / "d").exists()
  pipeline.prepare(tmp_path / "d", DatasetSettings(source, 41, vocab_size=100))
  with pytest.raises(InputError, match=r"Prepare it in another folder, with --held-out-f"):
    pipeline.prepare_dataset(config_for(tmp_path / "d", source="prepared"))


def test_a_config_names_any_source(tmp_path):
  config = config_for(
    tmp_path / "d", source="tfds:wikipedia/20230601.en", held_out_fraction=0.2
  )
  dataset = pipeline.prepare_dataset(config)
  assert dataset.manifest["counts"]["documents"] == 29
  loader = pipeline.make_loader(config, dataset.train, dataset.vocabulary)
  assert loader[0]["input_ids"].shape == (3, 41)
  assert len(dataset.held_out) > 3


def test_without_a_depth_the_advised_one_is_taken(tmp_path):
  config = config_for(tmp_path / "d")
  lengths = np.random.default_rng(0).integers(3, 12, 997)
  store: Any = types.SimpleNamespace(lengths=lengths)
  plan = pipeline.make_plan(config, store)
  histogram = packing.Histogram.from_lengths(lengths, max_sequence_length=41)
  assert plan.max_sequences_per_pack == packing.choose_depth(histogram) != 3
  config.packing.max_sequences_per_pack = 2
  assert pipeline.make_plan(config, store).max_sequences_per_pack == 2


def test_a_config_takes_what_is_prepared(tmp_path):
  made = pipeline.prepare(
    tmp_path / "d",
    DatasetSettings(
      "tfds:wikipedia/20230601.en", 41, vocab_size=100, held_out_fraction=0.2
    ),
  )
  config = config_for(tmp_path / "d", source="prepared")
  assert pipeline.prepare_dataset(config).manifest == made.manifest
  config.data.max_sequence_length = 43
  with pytest.raises(InputError, match="with max_sequence_length 41; expected 43"):
    pipeline.prepare_dataset(config)
  with pytest.raises(InputError, match="is not a prepared dataset"):
    pipeline.prepare_dataset(config_for(tmp_path / "none", source="prepared"))


@pytest.mark.parametrize("task", ["glue/cola", "glue/mrpc"])
def test_glue_of_the_catalogue_is_prepared_with_a_split_held_out(tmp_path, task):
  held_out = "#validation" if task == "glue/cola" else "#train[30:]"
  dataset = pipeline.prepare(
    tmp_path / "d",
    DatasetSettings(
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
      DatasetSettings("tfds:glue/cola#test", 64, task="glue/cola", vocab_size=100),
    )


MNLI = {
  "task": "glue/mnli",
  "vocab_size": 100,
  "held_out_source": "tfds:glue/mnli#validation_matched",
}
MISMATCHED = "tfds:glue/mnli#validation_mismatched"


@pytest.fixture(scope="module")
def mnli(tmp_path_factory, catalogue):
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("TFDS_DATA_DIR", str(catalogue))
    settings = DatasetSettings("tfds:glue/mnli", 64, mismatched_source=MISMATCHED, **MNLI)
    return pipeline.prepare(tmp_path_factory.mktemp("mnli") / "d", settings)


def test_mnli_has_a_second_held_out_set(mnli):
  for split, count in (("train", 19), ("held_out", 7), ("mismatched", 11)):
    store = getattr(mnli, split)
    # TFDS has an order of its own.
    assert sorted(store.sequence_labels) == sorted(i % 3 for i in range(count))
    assert mnli.manifest["counts"][split]["sequences"] == count
    assert sum(mnli.manifest["histograms"][split]) == count
    assert mnli.manifest["shards"][split] == [f"{split}-00000-00000.arrow"]
  assert mnli.manifest["counts"]["documents"] == 37
  assert mnli.manifest["source"].keys() == {"train", "held_out", "mismatched"}


def test_without_it_a_dataset_is_what_it_was(mnli, tmp_path):
  alone = pipeline.prepare(tmp_path / "d", DatasetSettings("tfds:glue/mnli", 64, **MNLI))
  assert alone.mismatched is None
  for name in ("counts", "histograms", "shards", "source"):
    expected = {k: v for k, v in mnli.manifest[name].items() if k != "mismatched"}
    if name == "counts":
      expected |= {"documents": 26, "documents_used": 26}
    assert alone.manifest[name] == expected
  for name, digest in alone.manifest["sha256"].items():
    assert mnli.manifest["sha256"][name] == digest


@pytest.mark.parametrize("runner", [None, pytest.param("DirectRunner", marks=needs_beam)])
def test_the_command_prepares_both_held_out_sets(mnli, tmp_path, capsys, runner):
  options = [f"--{name.replace('_', '-')}={value}" for name, value in MNLI.items()]
  options += [f"--mismatched-source={MISMATCHED}", "--max-sequence-length=64"]
  options += [f"--out={tmp_path / 'd'}", *([f"--runner={runner}"] if runner else [])]
  assert main(["prepare", "--source=tfds:glue/mnli", *options]) == 0
  assert "mismatched               11 sequences" in capsys.readouterr().out
  assert contents(tmp_path / "d") == contents(mnli.directory)


def test_a_second_held_out_set_needs_the_first_and_something_in_it(tmp_path):
  with pytest.raises(InputError, match=r"without a held_out_source; expected both"):
    DatasetSettings("a.tsv", 64, mismatched_source="b.tsv")
  (tmp_path / "empty.jsonl").write_text("\n")
  empty = str(tmp_path / "empty.jsonl")
  with pytest.raises(InputError, match=r"empty.jsonl gave no .* another --held-out-source"):
    pipeline.prepare(
      tmp_path / "d",
      DatasetSettings("tfds:glue/mnli", 64, **MNLI | {"held_out_source": empty}),
    )
  settings = DatasetSettings("tfds:glue/mnli", 64, mismatched_source=empty, **MNLI)
  with pytest.raises(InputError, match=r"empty.jsonl gave no documents that can be used"):
    pipeline.prepare(tmp_path / "d", settings)


def test_a_dataset_from_before_these_settings_still_opens(tmp_path):
  settings = DatasetSettings("tfds:glue/mnli", 64, **MNLI)
  dataset = pipeline.prepare(tmp_path / "d", settings)
  manifest = dataset.manifest | {"settings": dict(dataset.manifest["settings"])}
  del manifest["settings"]["labels"], manifest["settings"]["mismatched_source"]
  (tmp_path / "d" / "manifest.json").write_text(json.dumps(manifest))
  assert pipeline.prepare(tmp_path / "d", settings).manifest == manifest


def test_a_config_names_the_task_of_what_is_prepared(mnli):
  fields = {"source": "prepared", "max_sequence_length": 64}
  config = config_for(mnli.directory, task="glue/mnli", **fields)
  assert pipeline.prepare_dataset(config).manifest == mnli.manifest
  config = config_for(mnli.directory, **fields)
  with pytest.raises(InputError, match="task 'glue/mnli'; expected 'pretraining'"):
    pipeline.prepare_dataset(config)
