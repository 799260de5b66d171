import numpy as np
import pytest

import packing
from pipeline.batches import Masking
from pipeline.loader import PackedLoader
from tests.pipeline.test_batches import random_store

MASKING = Masking(rate=0.15, seed=5, mask_id=4, special_ids=(0, 2, 3, 4), vocab_size=97)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
  lengths = np.random.default_rng(1).integers(3, 41, 211)
  return random_store(tmp_path_factory.mktemp("store") / "s.arrow", lengths)[0]


def make_loader(store, seed=3, depth=3, batch_size=7):
  histogram = packing.Histogram.from_lengths(store.lengths, max_sequence_length=43)
  plan = packing.pack(histogram, algorithm="spfhp", max_sequences_per_pack=depth)
  return PackedLoader(store, plan, batch_size=batch_size, masking=MASKING, seed=seed)


def assert_same(a, b):
  assert a.keys() == b.keys()
  for name in a:
    np.testing.assert_array_equal(a[name], b[name], name)


def epochs_of(loader, num_epochs):
  """The sequence numbers of each epoch, in order of use."""
  num_packs = loader.plan.num_packs
  num_batches = -(-num_epochs * num_packs // loader.batch_size)
  rows = np.concatenate([loader[t]["sequence_ids"] for t in range(num_batches)])
  return [rows[e * num_packs : (e + 1) * num_packs] for e in range(num_epochs)]


def test_each_sequence_is_used_once_an_epoch_with_other_neighbours_and_order(store):
  loader = make_loader(store)
  assert loader.plan.num_packs % loader.batch_size  # epochs meet inside a batch
  epochs = epochs_of(loader, 3)
  for rows in epochs:
    np.testing.assert_array_equal(np.sort(rows[rows >= 0]), np.arange(len(store)))
  neighbours = [{frozenset(row.tolist()) for row in rows} for rows in epochs]
  assert len(neighbours[0] & neighbours[1]) < len(neighbours[0]) / 2
  assert (epochs[0] != epochs[1]).any()


def patterns(store, rows):
  """The lengths of each pack, which tell its strategy."""
  return [tuple(sorted(store.lengths[row[row >= 0]].tolist())) for row in rows]


def share_equal(a, b) -> float:
  return sum(x == y for x, y in zip(a, b, strict=True)) / len(a)


def test_packs_of_one_strategy_do_not_follow_each_other_and_epochs_differ_in_order(store):
  loader = make_loader(store)
  plan = loader.plan
  planned = [
    tuple(sorted(strategy))
    for strategy, count in zip(plan.strategies, plan.repeat_counts, strict=True)
    for _ in range(count)
  ]
  epochs = [patterns(store, rows) for rows in epochs_of(loader, 3)]
  by_chance = sum((planned.count(p) / len(planned)) ** 2 for p in set(planned))
  assert by_chance < 0.1
  for i, epoch in enumerate(epochs):
    assert sorted(epoch) == sorted(planned)
    for other in [planned, *epochs[:i]]:
      assert share_equal(epoch, other) < by_chance + 0.15
  evaluated = np.concatenate([b["sequence_ids"] for b in loader.evaluation_batches()])
  assert patterns(store, evaluated[: plan.num_packs]) == planned


def test_batches_have_one_shape_and_repeat_with_the_seed(store):
  loader, again, other = make_loader(store), make_loader(store), make_loader(store, seed=4)
  shapes = {name: field.shape for name, field in loader[0].items()}
  assert shapes["input_ids"] == (7, 43)
  for step in (1, 29, 1000):
    batch = loader[step]
    assert {name: field.shape for name, field in batch.items()} == shapes
    assert_same(batch, again[step])
    assert (batch["input_ids"] != other[step]["input_ids"]).any()


@pytest.mark.parametrize("first_step", [0, 1, 17])
def test_iteration_starts_anywhere(store, first_step):
  loader = make_loader(store)
  batches = loader.iterate(first_step)
  for step in range(first_step, first_step + 5):
    assert_same(next(batches), loader[step])


@pytest.mark.parametrize("depth", [1, 3])
def test_evaluation_uses_each_sequence_once_and_pads_the_last_rows(store, depth):
  loader = make_loader(store, depth=depth)
  batches = list(loader.evaluation_batches())
  assert len(batches) == loader.num_evaluation_batches
  assert {b["input_ids"].shape for b in batches} == {(7, 43)}
  ids = np.concatenate([b["sequence_ids"] for b in batches])
  np.testing.assert_array_equal(np.sort(ids[ids >= 0]), np.arange(len(store)))
  assert not batches[-1]["sequence_mask"][-1].any()


def test_evaluation_masks_the_same_tokens_however_sequences_are_packed(store):
  def masked(depth):
    found = {}
    for batch in make_loader(store, depth=depth).evaluation_batches():
      for row, slot in np.argwhere(batch["sequence_mask"]):
        mine = batch["mlm_segment_ids"][row] == slot + 1
        positions = batch["mlm_positions"][row][mine] - batch["cls_positions"][row, slot]
        found[int(batch["sequence_ids"][row, slot])] = positions.tolist()
    return found

  assert masked(1) == masked(3)
