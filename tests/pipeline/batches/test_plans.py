"""The plans of a run: made once, kept in its folder, and read from there."""

import dataclasses
import types

import numpy as np
import pytest

import packing
import pipeline
from configs import base
from pipeline.batches import plans
from tests.pipeline.batches.test_batches import random_store


def config_for(**fields):
  config = base.get_config()
  config.data.max_sequence_length = 43
  packed = {"algorithm": "spfhp", "max_sequences_per_pack": 3}
  config.packing.update(packed | fields)
  return config


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
  """Three stores, of which each has a plan."""
  folder, rng = tmp_path_factory.mktemp("stores"), np.random.default_rng(1)
  stores = {
    name: random_store(folder / f"{name}.arrow", rng.integers(3, 41, number))[0]
    for name, number in (("train", 211), ("held_out", 53), ("mismatched", 29))
  }
  return types.SimpleNamespace(**stores)


@pytest.fixture
def run(dataset, tmp_path):
  """A folder that a run has begun in."""
  pipeline.keep_plans(config_for(), dataset, tmp_path, begun=False)
  return tmp_path


def replace(path, store, algorithm):
  """Another plan for the same sequences, which says of itself that it is the run's."""
  histogram = packing.Histogram.from_lengths(store.lengths, max_sequence_length=43)
  plan = packing.pack(histogram, algorithm=algorithm, max_sequences_per_pack=3)
  dataclasses.replace(plan, algorithm="spfhp", max_sequences_per_pack=3).save(path)


def test_plans_are_made_once_and_then_read(dataset, run, monkeypatch):
  found = pipeline.read_plans(config_for(), dataset, run)
  assert list(found) == ["train", "held_out", "mismatched"]
  stores = [dataset.train, dataset.held_out, dataset.mismatched]
  for plan, store in zip(found.values(), stores, strict=True):
    made = pipeline.make_plan(config_for(), store)
    assert pipeline.plan_sha256(plan) == pipeline.plan_sha256(made)
    assert plan.details == made.details

  # An algorithm may find another plan on another day; the run keeps its own.
  replace(run / "plans" / "train.json", dataset.train, "lpfhp")
  monkeypatch.delattr(packing, "pack")
  assert pipeline.keep_plans(config_for(), dataset, run, begun=True) == []
  other = pipeline.read_plans(config_for(), dataset, run)["train"]
  assert pipeline.plan_sha256(other) != pipeline.plan_sha256(found["train"])


def test_a_depth_that_was_chosen_is_kept(dataset, tmp_path):
  config = config_for(max_sequences_per_pack=0)
  pipeline.keep_plans(config, dataset, tmp_path, begun=False)
  assert pipeline.keep_plans(config, dataset, tmp_path, begun=True) == []
  found = pipeline.read_plans(config, dataset, tmp_path)
  assert list(found) == ["train", "held_out", "mismatched"]


def test_what_is_evaluated_is_packed_as_the_kept_plan_says(dataset, run):
  config = config_for()
  vocabulary = [f"[unused{i}]" for i in range(100)]
  vocabulary[:5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
  dataset.vocabulary = vocabulary
  replace(run / "plans" / "held_out.json", dataset.held_out, "none")
  kept = pipeline.read_plans(config, dataset, run)
  config.train.batch_size = 1
  held_out, _ = pipeline.make_held_out(config, dataset, plans=kept)
  assert held_out.num_batches == len(dataset.held_out)
  held_out, _ = pipeline.make_held_out(config, dataset)
  assert held_out.num_batches < len(dataset.held_out)


def test_a_run_of_an_earlier_version_gets_its_plans(dataset, run):
  before = {path.name: path.read_bytes() for path in (run / "plans").iterdir()}
  (run / "plans" / "train.json").unlink()
  written = pipeline.keep_plans(config_for(), dataset, run, begun=True)
  assert written == [str(run / "plans" / "train.json")]
  assert {path.name: path.read_bytes() for path in (run / "plans").iterdir()} == before


@pytest.mark.parametrize(
  "fields", [{"max_sequences_per_pack": 2}, {"algorithm": "none"}, {"algorithm": "auto"}]
)
def test_another_packing_is_refused_and_not_taken_for_the_kept_one(dataset, run, fields):
  with pytest.raises(
    packing.InputError, match=r"made with packing\.algorithm=spfhp and at m"
  ):
    pipeline.keep_plans(config_for(**fields), dataset, run, begun=True)
  assert pipeline.read_plans(config_for(**fields), dataset, run) == {}
  pipeline.keep_plans(config_for(**fields), dataset, run, begun=False)  # it had not begun
  assert len(pipeline.read_plans(config_for(**fields), dataset, run)) == 3


def test_a_plan_that_is_damaged_or_of_other_sequences_is_refused(dataset, run):
  path = run / "plans" / "held_out.json"
  whole = path.read_bytes()
  for content in (
    whole[:100],
    whole.replace(b'"repeat_counts": [', b'"repeat_counts": [1'),
  ):
    path.write_bytes(content)
    with pytest.raises(
      packing.InputError, match=r"held_out\.json.*Restore the file, or rem"
    ):
      pipeline.read_plans(config_for(), dataset, run)
  path.write_bytes((run / "plans" / "train.json").read_bytes())
  with pytest.raises(packing.InputError, match="made for another histogram"):
    pipeline.keep_plans(config_for(), dataset, run, begun=True)


def test_rows_of_text_have_a_plan_and_what_they_are_evaluated_on_has_none(dataset):
  config = config_for()
  config.data.task = "text"
  assert list(plans._stores(config, dataset)) == ["train"]
