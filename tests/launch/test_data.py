"""A run's config names any source, or what a directory holds already."""

import dataclasses
import json
import types
from typing import Any

import numpy as np
import pytest

import packing
import pipeline
from configs import base
from launch import data as launch_data
from launch.data import check_prepared, dataset_settings, shared_out
from launch.door import read_config, settings_of
from launch.parts import PackedRows
from launch.plans import make_plan
from packing import InputError
from pipeline.__main__ import main
from pipeline.settings import DatasetSettings
from tests import tfds_data
from tests.prepared import contents, needs_beam

WIKIPEDIA = "tfds:wikipedia/20230601.en"
MNLI = {
  "task": "glue/mnli",
  "vocab_size": 100,
  "held_out_source": "tfds:glue/mnli#validation_matched",
}
MISMATCHED = "tfds:glue/mnli#validation_mismatched"


@pytest.fixture(scope="module", autouse=True)
def catalogue(tmp_path_factory):
  folder = tmp_path_factory.mktemp("tfds")
  tfds_data.build_all(folder)
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("TFDS_DATA_DIR", str(folder))
    yield


def mnli_settings(**fields):
  return DatasetSettings("tfds:glue/mnli", 64, **MNLI | fields)


@pytest.fixture(scope="module")
def mnli(catalogue, tmp_path_factory):
  settings = mnli_settings(mismatched_source=MISMATCHED)
  return pipeline.prepare(tmp_path_factory.mktemp("mnli") / "d", settings)


def prepare_dataset(config):
  return launch_data.prepare_dataset(settings_of(config).data)


def config_for(directory, **data):
  config = base.get_config()
  fields = {"directory": str(directory), "max_sequence_length": 41, "vocab_size": 100}
  config.data.update(fields | data)
  config.train.batch_size = 3
  return config


def test_a_config_names_any_source_or_takes_what_is_prepared(tmp_path):
  config = config_for(tmp_path / "d", source=WIKIPEDIA, held_out_fraction=0.2)
  dataset = prepare_dataset(config)
  assert dataset.manifest["counts"]["documents"] == 29
  assert len(dataset.held_out) > 3
  loader = launch_data.make_loader(settings_of(config), dataset.train, dataset.vocabulary)
  assert loader[0]["input_ids"].shape == (3, 41)
  config = config_for(tmp_path / "d", source="prepared")
  assert prepare_dataset(config).manifest == dataset.manifest


def test_a_config_that_does_not_fit_what_is_prepared_is_refused(mnli, tmp_path):
  fields: dict = {"task": "glue/mnli", "max_sequence_length": 64, "source": "prepared"}
  for directory, changed, message in (
    (mnli.directory, {"max_sequence_length": 43}, "length of .* is 64; expected 43"),
    (mnli.directory, {"task": "pretraining"}, "is 'glue/mnli'; expected 'pretraining'"),
    (tmp_path / "none", {}, "is not a prepared dataset"),
  ):
    with pytest.raises(InputError, match=message):
      prepare_dataset(config_for(directory, **fields | changed))


def test_a_run_without_held_out_documents_is_refused_before_any_work(tmp_path):
  config = config_for(tmp_path / "d", source=WIKIPEDIA, held_out_fraction=0.0)
  with pytest.raises(InputError, match=r"held_out_fraction is 0\.0; .*held_out_source"):
    prepare_dataset(config)
  assert not (tmp_path / "d").exists()
  pipeline.prepare(tmp_path / "d", DatasetSettings(WIKIPEDIA, 41, vocab_size=100))
  with pytest.raises(InputError, match=r"Prepare it in another folder, with held_out_f"):
    prepare_dataset(config_for(tmp_path / "d", source="prepared"))


def test_without_a_depth_the_advised_one_is_taken(tmp_path):
  config = config_for(tmp_path / "d")
  lengths = np.random.default_rng(0).integers(3, 12, 997)
  histogram = packing.Histogram.from_lengths(lengths, max_sequence_length=41)
  store: Any = types.SimpleNamespace(lengths=lengths, histogram=histogram)
  rows = settings_of(config).rows
  plan = make_plan(rows, store, seed=0)
  assert plan.max_sequences_per_pack == packing.choose_depth(histogram) != 3
  assert isinstance(rows, PackedRows)
  rows = dataclasses.replace(rows, max_sequences_per_pack=2)
  assert make_plan(rows, store, seed=0).max_sequences_per_pack == 2


def test_mnli_has_a_second_held_out_set_beside_what_it_has_without_it(mnli, tmp_path):
  for split, count in (("train", 19), ("held_out", 7), ("mismatched", 11)):
    store = getattr(mnli, split)
    # TFDS has an order of its own.
    assert sorted(store.sequence_labels) == sorted(i % 3 for i in range(count))
    assert mnli.manifest["counts"][split]["sequences"] == count
    assert sum(mnli.manifest["histograms"][split]) == count
  alone = pipeline.prepare(tmp_path / "d", mnli_settings())
  assert alone.mismatched is None
  both = mnli.manifest | {"counts": dict(mnli.manifest["counts"])}
  assert both["counts"].pop("documents") == both["counts"].pop("documents_used") == 37
  for name in ("counts", "histograms", "shards", "source"):
    expected = {k: v for k, v in both[name].items() if k != "mismatched"}
    assert {k: v for k, v in alone.manifest[name].items() if k in expected} == expected
    assert "mismatched" not in alone.manifest[name]
  assert alone.manifest["sha256"].items() < mnli.manifest["sha256"].items()


@pytest.mark.parametrize("runner", [None, pytest.param("DirectRunner", marks=needs_beam)])
def test_the_command_prepares_both_held_out_sets(mnli, tmp_path, capsys, runner):
  options = [f"--{name.replace('_', '-')}={value}" for name, value in MNLI.items()]
  options += [f"--mismatched-source={MISMATCHED}", "--max-sequence-length=64"]
  options += [f"--out={tmp_path / 'd'}", *([f"--runner={runner}"] if runner else [])]
  assert main(["prepare", "--source=tfds:glue/mnli", *options]) == 0
  assert "mismatched               11 sequences" in capsys.readouterr().out
  assert contents(tmp_path / "d") == contents(mnli.directory)


def test_a_second_held_out_set_needs_the_first_and_something_in_it(tmp_path):
  with pytest.raises(InputError, match=r"needs a held_out_source"):
    DatasetSettings("a.tsv", 64, mismatched_source="b.tsv")
  (tmp_path / "empty.jsonl").write_text("\n")
  for name, message in (
    ("held_out_source", r"empty.jsonl gave no .* another held_out_source"),
    ("mismatched_source", r"empty.jsonl gave no documents that can be used"),
  ):
    settings = mnli_settings(**{name: str(tmp_path / "empty.jsonl")})
    with pytest.raises(InputError, match=message):
      pipeline.prepare(tmp_path / "d", settings)


@pytest.mark.parametrize(
  ("damage", "message"),
  [
    ({}, "settings of the dataset are damaged .*missing 2"),
    ({"source": "a", "max_sequence_length": 9, "held_out_fraction": "x"}, "are damaged"),
    ({"source": "a", "max_sequence_length": None}, "max_sequence_length is None; expected"),
  ],
)
def test_damaged_settings_are_refused(tmp_path, damage, message):
  (tmp_path / "manifest.json").write_text(json.dumps({"settings": damage}))
  data = settings_of(config_for(tmp_path, source="prepared")).data
  with pytest.raises(InputError, match=message):
    dataset_settings(data)
  with pytest.raises(InputError, match=message):
    check_prepared(data, damage)


@pytest.mark.parametrize(
  ("field", "value", "message"),
  [
    ("labels", "yes,no", r"labels of .* is ''; expected 'yes,no'"),
    ("cross_documents", True, "cross_documents of .* is False; expected True"),
  ],
)
def test_a_dataset_that_was_made_otherwise_is_refused(tmp_path, field, value, message):
  data = settings_of(config_for(tmp_path, source="prepared", **{field: value})).data
  other = {"source": "a", "max_sequence_length": data.max_sequence_length}
  with pytest.raises(InputError, match=message):
    check_prepared(data, other)


def test_a_config_that_cannot_be_read_is_refused():
  with pytest.raises(InputError, match=r"no field '--flagfile'"):
    read_config("configs/quickstart.py", ["--flagfile=nowhere"])


@pytest.mark.parametrize(
  ("shards", "parts", "said"),
  [
    (8, 4, "Each of 4 processes reads 2 of the 8 shards of hf:a. The run ends when"),
    (6, 4, "Each of 4 processes reads 1 or 2 of the 6 shards of hf:a. The run ends when"),
    (9, 8, "Each of 4 processes reads 2 or 3 of the 9 shards of hf:a. The run ends when"),
    (1, 4, "hf:a has 1 shard, so each of 4 processes reads all documents and uses one"),
    (6, 8, "hf:a has 6 shards, so each of 4 processes reads all documents and uses one"),
    (None, 4, "hf:a has no shards, so each of 4 processes reads all documents"),
  ],
)
def test_how_processes_share_a_stream_is_said(shards, parts, said):
  assert shared_out("hf:a", shards, parts=parts, count=4).startswith(said)
