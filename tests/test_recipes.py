"""The recipes of docs/how_to_pack.md: every token once, in rows of one shape.

A recipe whose library is not installed is skipped; the extra `recipes` has them. In an
environment without JAX: pytest --noconftest tests/test_recipes.py
"""

import pathlib
import runpy

import numpy as np
import pytest

import packing

RECIPES = pathlib.Path(__file__).parents[1] / "docs" / "recipes"
ROW = 17


@pytest.fixture(scope="module")
def sequences() -> list[np.ndarray]:
  """Of all their tokens no two are equal, and none is 0."""
  lengths = np.random.default_rng(0).integers(1, ROW + 1, 61)
  return np.split(np.arange(1, lengths.sum() + 1, dtype=np.int32), np.cumsum(lengths)[:-1])


@pytest.fixture(scope="module")
def plan(sequences) -> packing.Plan:
  lengths = [len(sequence) for sequence in sequences]
  histogram = packing.Histogram.from_lengths(lengths, max_sequence_length=ROW)
  return packing.pack(histogram, max_sequences_per_pack=3)


def recipe(name: str, library: str) -> dict:
  pytest.importorskip(library, reason='pip install ".[recipes]" installs it')
  return runpy.run_path(str(RECIPES / name))


def check(batches, sequences, plan):
  """Rows as dictionaries of [B, S]: each sequence is in one place, whole."""
  fields = ("input_ids", "segment_ids", "position_ids")
  rows = {name: np.concatenate([np.asarray(b[name]) for b in batches]) for name in fields}
  assert all(field.shape == (plan.num_packs, ROW) for field in rows.values())
  assert all(np.issubdtype(field.dtype, np.integer) for field in rows.values())
  found = []
  for ids, segments, positions in zip(*rows.values(), strict=True):
    lengths = np.bincount(segments)[1:]
    assert lengths.size <= 3
    assert lengths.all()
    end = lengths.sum()
    np.testing.assert_array_equal(
      segments[:end], np.repeat(np.arange(1, lengths.size + 1), lengths)
    )
    for field in (ids, segments, positions):
      assert not field[end:].any()
    found += [x.tolist() for x in np.split(ids[:end], np.cumsum(lengths)[:-1])]
    for part in np.split(positions[:end], np.cumsum(lengths)[:-1]):
      assert part.tolist() == list(range(len(part)))
  assert sorted(found) == sorted(sequence.tolist() for sequence in sequences)


@pytest.mark.extra("torch")
def test_pytorch(sequences, plan):
  made = recipe("torch_dataloader.py", "torch")
  import torch

  loader = torch.utils.data.DataLoader(
    made["PackedRows"](sequences, plan, epoch=1), batch_size=5, shuffle=True
  )
  batches = list(loader)
  assert {batch["input_ids"].shape[0] for batch in batches[:-1]} == {5}
  check(batches, sequences, plan)


@pytest.mark.extra("tensorflow")
def test_tf_data(sequences, plan):
  made = recipe("tf_data.py", "tensorflow")
  import tensorflow as tf

  ragged = tf.ragged.constant([sequence.tolist() for sequence in sequences])
  rows = made["packed_rows"](ragged, plan, epoch=1).shuffle(100, seed=0).batch(5)
  assert rows.element_spec["input_ids"].shape.as_list() == [None, ROW]
  check(list(rows.as_numpy_iterator()), sequences, plan)


@pytest.mark.extra("datasets")
def test_hugging_face_datasets(sequences, plan, tmp_path):
  made = recipe("hugging_face_datasets.py", "datasets")
  import datasets

  ids = {"input_ids": [sequence.tolist() for sequence in sequences]}
  stored = datasets.Dataset.from_dict(ids)
  stored.save_to_disk(tmp_path)
  packed = made["packed_rows"](datasets.load_from_disk(tmp_path), plan, epoch=1)
  assert len(packed) == plan.num_packs
  rows = packed.shuffle(seed=0)
  check([rows[:7], rows[7:]], sequences, plan)
  assert len(packed[0]["input_ids"]) == ROW


def test_another_epoch_has_other_neighbours(sequences, plan):
  """What all recipes take from the plan."""
  lengths = [len(sequence) for sequence in sequences]
  one, other = (plan.assign(lengths, seed=seed).sequence_ids for seed in (0, 1))
  assert not np.array_equal(one, other)
