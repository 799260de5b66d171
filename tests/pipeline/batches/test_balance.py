"""Balanced batches: devices cost the same, and every sequence still comes once an epoch."""

import json

import numpy as np
import pytest

import packing
from pipeline.batches.loader import PackedLoader
from tests.pipeline.batches.test_batches import MASKING, assert_same, joined, random_store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
  """Many short sequences and some long ones, so that packs cost differently."""
  rng = np.random.default_rng(5)
  long, short = rng.integers(30, 41, 900), np.minimum(3 + rng.poisson(9, 900), 40)
  lengths = np.where(rng.random(900) < 0.2, long, short)
  return random_store(tmp_path_factory.mktemp("store") / "s.arrow", lengths)[0]


def make_loader(store, *, batch_size=16, seed=3, **options):
  plan = packing.pack(store.lengths, max_sequence_length=40, max_sequences_per_pack=4)
  return PackedLoader(
    store, plan, batch_size=batch_size, masking=MASKING, seed=seed, **options
  )


def costs_of(store, batch):
  """The sum of squared lengths of each row."""
  ids = batch["sequence_ids"]
  return (np.where(ids >= 0, store.lengths[ids], 0) ** 2).sum(axis=1)


def batches_of(loader, first, end):
  return [loader[step] for step in range(first, end)]


def test_after_any_step_no_sequence_is_an_epoch_ahead_of_another(store):
  loader = make_loader(store, balance="devices", devices=8)
  assert loader.plan.num_packs % loader.batch_size  # steps reach across ends of epochs
  steps = int(3 * loader.batches_per_epoch)
  came = np.zeros(len(store), int)
  for step in range(steps):
    ids = loader[step]["sequence_ids"]
    came += np.bincount(ids[ids >= 0], minlength=len(store))
    epochs = (step + 1) * loader.batch_size // loader.num_rows
    assert came.min() == epochs
    assert came.max() <= epochs + 1


@pytest.mark.parametrize(("batch_size", "epoch"), [(16, 0), (8, 1)])
def test_devices_cost_the_same_in_each_epoch(store, batch_size, epoch):
  waits = {}
  for balance in ("none", "devices"):
    loader = make_loader(store, batch_size=batch_size, balance=balance, devices=8)
    assert loader.num_rows % batch_size  # the second epoch begins within a step
    first = -(-epoch * loader.num_rows // batch_size)
    costs = [costs_of(store, batch) for batch in batches_of(loader, first, first + 20)]
    waits[balance] = packing.waiting(costs, devices=8)
  assert waits["devices"] < (0.1 + 0.1 * epoch) * waits["none"]


def test_each_epoch_and_each_seed_has_an_order_of_its_own(store):
  def places(loader, epoch):
    """Of each row in an epoch."""
    number = loader.num_rows
    steps = range(-(-2 * number // loader.batch_size))
    rows = np.concatenate([loader._order(step) for step in steps])
    return np.argsort(rows[rows // number == epoch] % number)

  options = {"balance": "devices", "devices": 8}
  loader, other = (make_loader(store, seed=n, **options) for n in (3, 4))
  first = places(loader, 0)
  for second in (places(loader, 1), places(other, 0)):
    assert np.abs(first - second).mean() > loader.num_rows / 10


def test_resumes_at_the_same_step_with_other_processes(store):
  batches = make_loader(store, balance="devices", devices=4).iterate()
  expected = [next(batches) for _ in range(12)][9:]
  batches = make_loader(store, balance="devices", devices=4).iterate()
  for _ in range(9):
    next(batches)
  state = json.loads(json.dumps(batches.get_state()))
  assert (state["balance"], state["group"]) == ("devices", 4)
  for count in (1, 2):
    loader = make_loader(store, balance="devices", devices=4)
    resumed = [loader.for_process(p, count).iterate() for p in range(count)]
    for iterator in resumed:
      iterator.set_state(state)
    for batch in expected:
      assert_same(joined(next(iterator) for iterator in resumed), batch)
    for iterator in resumed:
      iterator.close()


def test_on_other_devices_a_run_resumes_with_the_same_steps(store):
  """The rows of a step are the same; only the devices have others of them."""
  batches = make_loader(store, balance="devices", devices=4).iterate()
  for _ in range(5):
    next(batches)
  state = batches.get_state()
  other = make_loader(store, balance="devices", devices=8).iterate()
  other.set_state(state)
  for _ in range(70):  # into the next epoch
    ids, again = (np.sort(b["sequence_ids"][:, 0]) for b in (next(batches), next(other)))
    np.testing.assert_array_equal(ids, again)
  assert other.get_state() == batches.get_state()


def test_what_cannot_be_balanced_is_refused(store):
  for fields, message in (
    ({"balance": "steps"}, "expected none, devices"),
    ({"balance": "devices", "devices": 3}, "multiple of devices=3 to balance, such as"),
  ):
    with pytest.raises(packing.InputError, match=message):
      make_loader(store, **fields)
  state = make_loader(store, balance="devices", devices=4).iterate().get_state()
  with pytest.raises(packing.InputError, match=r"fields .* balance, group; expected"):
    make_loader(store).iterate().set_state(state)


def test_a_step_of_few_rows_and_an_epoch_smaller_than_a_step():
  rng = np.random.default_rng(0)
  for packs, batch_size, group in ((5, 8, 2), (8, 8, 8), (9, 8, 4), (1, 4, 1)):
    at = 0
    for _ in range(4):
      costs = rng.integers(1, 9, packs)
      order = packing.balanced_order(
        costs, batch_size=batch_size, group=group, first_row=at, rng=rng
      )
      np.testing.assert_array_equal(np.sort(order), np.arange(packs))
      at += packs


def test_packs_of_equal_cost_meet_others_in_each_epoch():
  rng = np.random.default_rng(0)
  options = {"batch_size": 8, "group": 4, "first_row": 0, "rng": rng}
  groups = [
    {
      frozenset(group)
      for group in packing.balanced_order([7] * 64, **options).reshape(-1, 4)
    }
    for _ in "ab"
  ]
  assert len(groups[0] & groups[1]) < 4


def test_deal_gives_each_device_as_many_packs():
  rng = np.random.default_rng(1)
  costs = rng.lognormal(0, 1, 24)
  order = packing.deal(costs, devices=6)
  np.testing.assert_array_equal(np.sort(order), np.arange(24))
  dealt = costs[order].reshape(6, 4).sum(axis=1)
  snake = np.sort(costs)[::-1].reshape(4, 6).copy()
  snake[1::2] = snake[1::2, ::-1]
  assert dealt.max() <= snake.sum(axis=0).max()
