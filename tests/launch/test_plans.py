"""The plan of a run: made once, kept in its folder, and read from there."""

import dataclasses

import numpy as np
import pytest

import packing
import pipeline
from configs import base
from launch.door import settings_of
from launch.plans import kept_plan, make_plan
from tests.pipeline.batches.test_batches import random_store


def rows_for(**fields):
  config = base.get_config()
  config.data.max_sequence_length = 43
  packed = {"algorithm": "spfhp", "max_sequences_per_pack": 3}
  config.packing.update(packed | fields)
  return settings_of(config).rows


@pytest.fixture(scope="module")
def store(tmp_path_factory):
  rng = np.random.default_rng(1)
  path = tmp_path_factory.mktemp("stores") / "train.arrow"
  return random_store(path, rng.integers(3, 41, 211))[0]


@pytest.fixture
def run(store, tmp_path):
  """A folder that a run has begun in."""
  kept_plan(rows_for(), store, tmp_path, seed=0, begun=False)
  return tmp_path


def replace(path, store, algorithm):
  """Another plan for the same sequences, which says of itself that it is the run's."""
  histogram = packing.Histogram.from_lengths(store.lengths, max_sequence_length=43)
  plan = packing.pack(histogram, algorithm=algorithm, max_sequences_per_pack=3)
  dataclasses.replace(plan, algorithm="spfhp", max_sequences_per_pack=3).save(path)


def test_a_plan_is_made_once_and_then_read(store, run, monkeypatch):
  found, made = (
    kept_plan(rows_for(), store, run, seed=0, begun=True),
    make_plan(rows_for(), store, seed=0),
  )
  assert pipeline.plan_sha256(found) == pipeline.plan_sha256(made)
  assert found.details == made.details

  # An algorithm may find another plan on another day; the run keeps its own.
  replace(run / "plans" / "train.json", store, "lpfhp")
  monkeypatch.delattr(packing, "pack")
  other = kept_plan(rows_for(), store, run, seed=0, begun=True)
  assert pipeline.plan_sha256(other) != pipeline.plan_sha256(found)


@pytest.mark.parametrize("depth", [3, 0])
def test_a_missing_plan_is_made_again(store, tmp_path, depth):
  """Also if the packer chooses the depth."""
  rows, path = rows_for(max_sequences_per_pack=depth), tmp_path / "plans" / "train.json"
  kept_plan(rows, store, tmp_path, seed=0, begun=False)
  before = path.read_bytes()
  path.unlink()
  kept_plan(rows, store, tmp_path, seed=0, begun=True)
  assert path.read_bytes() == before


def test_a_plan_that_is_damaged_or_of_other_sequences_is_refused(store, run):
  path = run / "plans" / "train.json"
  whole = path.read_bytes()
  few = packing.Histogram.from_lengths([3, 5], max_sequence_length=43)
  packing.pack(few, algorithm="spfhp", max_sequences_per_pack=3).save(path)
  for content, message in (
    (path.read_bytes(), "made for another histogram"),
    (whole[:100], r"train\.json.*Restore the file, or del"),
    (whole.replace(b'"repeat_counts": [', b'"repeat_counts": [1'), "Restore the file"),
  ):
    path.write_bytes(content)
    with pytest.raises(packing.InputError, match=message):
      kept_plan(rows_for(), store, run, seed=0, begun=True)
