"""The packs of a step: each sequence once, none above the row, equal work on devices."""

import itertools
import tracemalloc
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import packing
from packing import Cost, pack_step
from packing.algorithms.highs import SolverError
from packing.algorithms.relaxation import Master
from tests.packing.reference import fewest_packs, fewest_sets

ROW = 32_768


def on(device):
  """The sequences of a device."""
  return [i for pack in device for i in pack]


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


@st.composite
def steps(draw, most=24):
  """Lengths and the keyword arguments of a step in which everything fits."""
  number = draw(st.integers(1, most))

  def of_each(values):
    return draw(st.lists(values, min_size=number, max_size=number))

  together = draw(st.sampled_from([None, "pack", "device"]))
  options = {"devices": draw(st.integers(1, 3)), "row_length": 50}
  largest = 50
  if together is not None:
    options |= {"groups": of_each(st.integers(0, 9)), "together": together}
    if together == "pack":
      largest = 50 // max(map(options["groups"].count, options["groups"]))
  if draw(st.booleans()):
    members = number if together == "pack" else 1
    options["also"] = (of_each(st.integers(0, 17)), 17 * members)
  if draw(st.booleans()):
    options["units"] = of_each(st.integers(0, 40))
  return of_each(st.integers(1, largest)), options


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(steps())
def test_limits_groups_and_sums_hold(drawn):
  lengths, options = drawn
  step = pack_step(lengths, **options)
  packs = [pack for device in step.devices for pack in device]
  assert sorted(i for pack in packs for i in pack) == list(range(len(lengths)))
  assert len({len(device) for device in step.devices}) == 1
  assert max(sum(lengths[i] for i in pack) for pack in packs) <= 50
  sizes, limit = options.get("also", ([0] * len(lengths), 1))
  assert max(sum(sizes[i] for i in pack) for pack in packs) <= limit
  places = packs if options.get("together") == "pack" else [*map(on, step.devices)]
  groups = options.get("groups", range(len(lengths)))
  for name in set(groups):
    members = {i for i, group in enumerate(groups) if group == name}
    assert any(members <= set(place) for place in places)
  of_devices = [*map(on, step.devices)]
  assert step.costs.tolist() == [sum(lengths[i] for i in own) for own in of_devices]
  assert step.costs.max() >= step.cost_bound * (1 - 1e-12)
  if "units" in options:
    units = options["units"]
    assert step.units.tolist() == [sum(units[i] for i in own) for own in of_devices]
    assert step.units.max() >= step.units_bound * (1 - 1e-12)
  else:
    assert step.units is step.units_bound is None
  assert set(step.bounds) == {"lengths", "also"} & ({"lengths"} | set(options))
  assert step.lower_bound == max(step.bounds.values()) <= step.num_packs


def fewest_of_step(lengths, row_length, devices, groups=None, together="pack", also=None):
  """The fewest packs of a step, by all ways to pack."""
  limits = [(lengths, row_length)] + ([also] if also else [])
  groups = list(range(len(lengths))) if groups is None else groups
  members = [[i for i, g in enumerate(groups) if g == name] for name in sorted(set(groups))]

  def fewest(items):
    """Of items, each of which is a list of sequences."""

    def fits(chosen):
      own = [i for item in chosen for i in items[item]]
      return all(sum(sizes[i] for i in own) <= limit for sizes, limit in limits)

    return fewest_sets(len(items), fits)

  if together == "pack":
    return -(-fewest(members) // devices) * devices
  dealt = itertools.product(range(devices), repeat=len(members))
  by_device = (
    [
      [i for own, at in zip(members, way, strict=True) if at == d for i in own]
      for d in range(devices)
    ]
    for way in dealt
  )
  return devices * min(max(fewest([[i] for i in own]) for own in way) for way in by_device)


@pytest.mark.parametrize("together", [None, "pack", "device"])
@pytest.mark.parametrize("second", [False, True])
def test_few_sequences_take_the_fewest_packs_of_all_ways(together, second):
  rng, above = np.random.default_rng(3), 0
  for _ in range(40):
    number = int(rng.integers(1, 8))
    options: dict[str, Any] = {"devices": int(rng.integers(1, 4))}
    if together is not None:
      groups = rng.integers(0, 4, number).tolist()
      options |= {"groups": groups, "together": together}
    most = 30 // max(map(groups.count, groups)) if together == "pack" else 30
    lengths = rng.integers(1, most + 1, number).tolist()
    if second:
      options["also"] = (rng.integers(0, most + 1, number).tolist(), 30)
    step = pack_step(lengths, row_length=30, **options)
    fewest = fewest_of_step(lengths, 30, **options)
    assert step.lower_bound <= fewest <= step.num_packs
    above += step.num_packs > fewest
  assert above <= (together == "device")  # 1 of 40, where groups are spread first


def test_units_are_spread_over_devices_beside_costs():
  lengths, rng = long_lengths(256), np.random.default_rng(1)
  targets = (lengths * rng.uniform(0.05, 0.95, lengths.size)).astype(int)
  plain = pack_step(lengths, row_length=ROW, devices=8)
  step = pack_step(lengths, row_length=ROW, devices=8, units=targets)
  assert step.num_packs == plain.num_packs
  assert step.costs.max() <= 1.005 * step.cost_bound
  assert step.units.max() <= 1.005 * step.units_bound
  alone = [targets[on(device)].sum() for device in plain.devices]
  assert max(alone) > 1.05 * step.units_bound


def test_groups_on_devices_have_equal_costs_and_units_in_nearly_the_fewest_packs():
  lengths, groups = long_lengths(256), [f"prompt {i // 4}" for i in range(256)]
  rng = np.random.default_rng(1)
  targets = (lengths * rng.uniform(0.05, 0.95, lengths.size)).astype(int)
  options = {"row_length": ROW, "devices": 4, "groups": groups, "together": "device"}
  step = pack_step(lengths, units=targets, **options)
  assert step.num_packs <= step.lower_bound + 4
  assert step.costs.max() <= 1.005 * step.cost_bound
  assert step.units.max() <= 1.03 * step.units_bound


def test_pairs_share_packs_as_if_each_were_one_sequence():
  lengths = long_lengths(128) // 2
  step = pack_step(lengths, row_length=ROW, groups=np.arange(128) // 2)
  assert (
    step.num_packs == pack_step(lengths.reshape(-1, 2).sum(1), row_length=ROW).num_packs
  )


def test_a_second_limit_that_never_binds_changes_no_number_of_packs():
  lengths = long_lengths(128)
  alone = pack_step(lengths, row_length=ROW)
  step = pack_step(lengths, row_length=ROW, also=(np.ones(128, int), 10**6))
  assert (step.num_packs, step.bounds) == (
    alone.num_packs,
    {"lengths": alone.lower_bound, "also": 1},
  )


def test_a_second_size_alone_is_packed_like_lengths():
  sizes = long_lengths(128)
  step = pack_step(np.ones(128, int), row_length=ROW, also=(sizes, ROW))
  assert step.num_packs == pack_step(sizes, row_length=ROW).num_packs
  assert step.bounds["also"] > step.bounds["lengths"] == 1


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
    ([1, 2], {"groups": [1]}, "groups has 1 values and lengths 2. Give one for each"),
    ([1, 2], {"groups": [[1], [2]]}, "groups have shape .* integers or strings"),
    ([1, 2], {"groups": [1.0, 2.0]}, "groups have shape .* integers or strings"),
    ([1], {"together": "row"}, 'together is \'row\'; expected "pack" or "device"'),
    ([1], {"together": "device"}, "together is 'device'; expected .* without groups"),
    ([5, 4], {"groups": "xx"}, "groups have shape"),
    ([5, 4], {"groups": ["x", "x"]}, 'Group x has 9 tokens; .* together="device"'),
    ([1, 2], {"also": [3, 4]}, r"The sizes in also have shape \(\)"),
    ([1, 2], {"also": [3, 4, 5]}, r"also is list; .* also=\(image_tokens, 4096\)"),
    ([1, 2], {"also": ([3], 9)}, "also has 1 values and lengths 2"),
    ([1, 2], {"also": ([3, 10], 9)}, "sequence 1 in also is 10; .* raise the limit"),
    ([1, 2], {"also": ([3, -1], 9)}, "sequence 1 in also is -1; expected 0 to"),
    ([1, 2], {"also": ([3, 1], 0)}, "The limit in also is 0; expected at least 1"),
    ([1, 2], {"also": ([0.5, 1], 3)}, "expected a vector of integers"),
    ([1, 2], {"also": ([5, 5], 9), "groups": [0, 0]}, "has 10 of the second .* holds 9"),
    ([1, 2], {"units": [1]}, "units has 1 values and lengths 2"),
    ([1, 2], {"units": [1, -1]}, "units hold -1"),
    ([1, 2], {"units": [1, float("nan")]}, "units hold nan"),
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
