"""The packs of a step: each sequence once, none above the row, equal work on devices."""

import tracemalloc

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import packing
from packing import Cost, pack_step
from packing.algorithms.highs import SolverError
from packing.algorithms.relaxation import Master
from tests.packing.reference import fewest_packs

ROW = 32_768


def long_lengths(number, seed=0):
  return np.random.default_rng(seed).integers(4_000, 14_001, number)


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(
  st.lists(st.integers(1, 50), min_size=1, max_size=40),
  st.integers(1, 9),
  st.sampled_from([Cost(), Cost(1.0, 0.1), Cost(0.0, 1.0)]),
)
def test_each_sequence_is_in_one_pack_and_no_pack_is_too_long(lengths, devices, cost):
  step = pack_step(lengths, row_length=50, devices=devices, cost=cost)
  assert len(step.devices) == devices
  assert {len(packs) for packs in step.devices} == {step.num_packs // devices}
  packs = [pack for device in step.devices for pack in device]
  assert sorted(i for pack in packs for i in pack) == list(range(len(lengths)))
  assert max(sum(lengths[i] for i in pack) for pack in packs) <= 50
  for device, reached in zip(step.devices, step.costs, strict=True):
    assert all(device) or max(map(len, device)) <= 1
    own = [lengths[i] for pack in device for i in pack]
    expected = cost.linear * sum(own) + cost.quadratic * sum(n * n for n in own)
    assert reached == pytest.approx(expected)
  assert step.costs.max() >= step.cost_bound * (1 - 1e-12)
  assert step.lower_bound <= step.num_packs


def test_many_exchanges_leave_no_pack_too_long():
  for seed in range(40):
    lengths = np.random.default_rng(seed).integers(1, 30, 60)
    step = pack_step(lengths, row_length=60, devices=8, cost=Cost(0.0, 1.0))
    packs = [pack for device in step.devices for pack in device]
    assert max(int(lengths[pack].sum()) for pack in packs) <= 60, seed


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.uint64, np.int64])
@pytest.mark.parametrize("linear", [2, np.int8(100), np.int64(10**7), 10**10])
def test_costs_of_lengths_of_any_type_are_exact(dtype, linear):
  lengths = [200, 180, 90, 60, 50, 20, 10, 5]
  step = pack_step(
    np.array(lengths, dtype), row_length=400, devices=2, cost=Cost(linear=linear)
  )
  for device, found in zip(step.devices, step.costs, strict=True):
    assert found == int(linear) * sum(lengths[i] for pack in device for i in pack)
  assert step.cost_bound == int(linear) * sum(lengths) / 2
  row = np.array(lengths[:2], dtype)
  costs = Cost(linear, np.float32(0.5)).of([row], row_length=400)
  assert costs.tolist() == [400 * int(linear) + 0.5 * (200**2 + 180**2)]


def test_memory_does_not_grow_with_pairs_of_sequences():
  lengths = np.clip(np.random.default_rng(0).lognormal(3, 1, 2500), 1, 900).astype(int)
  lengths[0] = 3000  # costs more than all others, so that many are exchanged
  tracemalloc.start()
  try:
    pack_step(lengths, row_length=4096, devices=2, cost=Cost(0.0, 1.0))
    assert tracemalloc.get_traced_memory()[1] < 30e6
  finally:
    tracemalloc.stop()


def test_few_sequences_take_the_fewest_packs():
  rng = np.random.default_rng(1)
  for _ in range(200):
    lengths = rng.integers(1, 31, rng.integers(1, 9)).tolist()
    fewest = fewest_packs(lengths, row_length=30, depth=30)
    assert pack_step(lengths, row_length=30).num_packs <= fewest + 1


@pytest.mark.parametrize("quadratic", [0.0, 1 / 4608, 1 / 500])
def test_devices_have_equal_work_in_nearly_the_fewest_packs(quadratic):
  lengths = long_lengths(512)
  assert pack_step(lengths, row_length=ROW).num_packs <= 145  # the proven minimum is 144
  step = pack_step(lengths, row_length=ROW, devices=8, cost=Cost(1.0, quadratic))
  assert step.costs.max() < 1.002 * step.cost_bound
  packs = [pack for device in step.devices for pack in device]
  assert max(int(lengths[pack].sum()) for pack in packs) <= ROW


def test_not_more_packs_than_best_fit_if_the_solver_fails(monkeypatch):
  counts = packing.load_histogram("squad_1_1_384").counts
  rng, tried = np.random.default_rng(0), []

  def fail(*_, **__):
    tried.append(True)
    raise SolverError

  monkeypatch.setattr(Master, "solve", fail)
  lengths = 1 + rng.choice(counts.size, 256, p=counts / counts.sum())
  best_fit = packing.pack(
    lengths, max_sequence_length=384, algorithm="bfd", max_sequences_per_pack=None
  )
  assert pack_step(lengths, row_length=384).num_packs <= best_fit.num_packs
  assert tried


def test_fewer_sequences_than_devices_leave_empty_packs():
  step = pack_step([5, 3], row_length=8, devices=4)
  assert sorted(len(pack) for device in step.devices for pack in device) == [0, 0, 1, 1]


@pytest.mark.parametrize(
  ("lengths", "options", "message"),
  [
    ([], {}, "lengths"),
    ([9], {"row_length": 8}, "9"),
    ([0], {}, "0"),
    ([[1, 2], [3]], {}, "lengths"),
    ([1], {"devices": 0}, "devices is 0"),
    ([1], {"row_length": 0}, "row_length is 0"),
    ([1], {"cost": 3.0}, r"cost is 3\.0; expected a packing\.Cost"),
    ([1], {"cost": 0}, r"cost is 0; expected a packing\.Cost"),
  ],
)
def test_mistakes_are_refused(lengths, options, message):
  with pytest.raises(packing.InputError, match=message):
    pack_step(lengths, **{"row_length": 8} | options)


def test_a_cost_is_a_finite_number():
  for value in (-1, float("nan"), float("inf"), 10**400, True, np.bool_(True), "1", 1j):
    for options in ({"linear": value}, {"quadratic": value}):
      with pytest.raises(packing.InputError, match="expected a number, at least 0"):
        Cost(**options)
