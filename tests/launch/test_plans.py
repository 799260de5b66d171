"""The plans of a run: made once, kept in its folder, and read from there."""

import dataclasses
import types

import numpy as np
import pytest

import packing
import pipeline
from configs import base
from launch import plans
from launch.data import make_held_out
from launch.plans import kept_plans, make_plan, read_plans
from pipeline.tokenizer import SPECIAL_TOKENS
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
  vocabulary = [*SPECIAL_TOKENS, *(f"[unused{i}]" for i in range(95))]
  return types.SimpleNamespace(**stores, vocabulary=vocabulary)


@pytest.fixture
def run(dataset, tmp_path):
  """A folder that a run has begun in."""
  kept_plans(config_for(), dataset, tmp_path, begun=False)
  return tmp_path


def replace(path, store, algorithm):
  """Another plan for the same sequences, which says of itself that it is the run's."""
  histogram = packing.Histogram.from_lengths(store.lengths, max_sequence_length=43)
  plan = packing.pack(histogram, algorithm=algorithm, max_sequences_per_pack=3)
  dataclasses.replace(plan, algorithm="spfhp", max_sequences_per_pack=3).save(path)


def test_plans_are_made_once_and_then_read(dataset, run, monkeypatch):
  found = read_plans(config_for(), dataset, run)
  assert list(found) == ["train", "held_out", "mismatched"]
  for name, plan in found.items():
    made = make_plan(config_for(), getattr(dataset, name))
    assert pipeline.plan_sha256(plan) == pipeline.plan_sha256(made)
    assert plan.details == made.details

  # An algorithm may find another plan on another day; the run keeps its own.
  replace(run / "plans" / "train.json", dataset.train, "lpfhp")
  monkeypatch.delattr(packing, "pack")
  kept_plans(config_for(), dataset, run, begun=True)
  other = read_plans(config_for(), dataset, run)["train"]
  assert pipeline.plan_sha256(other) != pipeline.plan_sha256(found["train"])


def test_what_is_evaluated_is_packed_as_the_kept_plan_says(dataset, run):
  config = config_for()
  config.train.batch_size = 1
  replace(run / "plans" / "held_out.json", dataset.held_out, "none")
  kept = read_plans(config, dataset, run)
  held_out, _ = make_held_out(config, dataset, plans=kept)
  assert held_out.num_batches == len(dataset.held_out)


@pytest.mark.parametrize("depth", [3, 0])
def test_a_missing_plan_is_made_again(dataset, tmp_path, depth):
  """Also if the packer chooses the depth."""
  config = config_for(max_sequences_per_pack=depth)
  kept_plans(config, dataset, tmp_path, begun=False)
  before = {path: path.read_bytes() for path in (tmp_path / "plans").iterdir()}
  path = tmp_path / "plans" / "train.json"
  path.unlink()
  kept_plans(config, dataset, tmp_path, begun=True)
  assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
  ("fields", "named"),
  [
    ({"max_sequences_per_pack": 2}, "packing.max_sequences_per_pack=3"),
    ({"algorithm": "none"}, "packing.algorithm=spfhp, packing.max_sequences_per_pack=3"),
  ],
)
def test_another_packing_is_refused_and_not_taken_for_the_kept_one(
  dataset, run, fields, named
):
  with pytest.raises(packing.InputError, match=f"made with {named}"):
    kept_plans(config_for(**fields), dataset, run, begun=True)
  assert read_plans(config_for(**fields), dataset, run) == {}
  kept_plans(config_for(**fields), dataset, run, begun=False)  # it had not begun
  assert len(read_plans(config_for(**fields), dataset, run)) == 3


def test_a_plan_that_is_damaged_or_of_other_sequences_is_refused(dataset, run):
  path = run / "plans" / "held_out.json"
  whole = path.read_bytes()
  other = (run / "plans" / "train.json").read_bytes()
  for content, message in (
    (whole[:100], r"held_out\.json.*Restore the file, or del"),
    (whole.replace(b'"repeat_counts": [', b'"repeat_counts": [1'), "Restore the file"),
    (other, "made for another histogram"),
  ):
    path.write_bytes(content)
    with pytest.raises(packing.InputError, match=message):
      kept_plans(config_for(), dataset, run, begun=True)


def test_rows_of_text_have_a_plan_and_what_they_are_evaluated_on_has_none(dataset):
  config = config_for()
  config.data.task = "text"
  assert list(plans._stores(config, dataset)) == ["train"]
