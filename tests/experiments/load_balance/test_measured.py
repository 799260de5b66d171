"""Measured steps: what processes wait for each other, and what they are dealt."""

import numpy as np
import pytest

import packing
from experiments.load_balance import measured, together
from experiments.load_balance.cost import Coefficients
from experiments.load_balance.simulation import Lengths
from experiments.load_balance.tables import waiting

COSTS = Coefficients(step=0.7, row=0.3, token=0.02, token_pair=0.0005)
HISTOGRAM = packing.Histogram(np.array([3, 2, 4, 1, 0, 3, 2, 1, 0, 1, 0, 2]))


def test_waiting_beside_plain_numbers():
  seconds = np.array([[1.0, 3.0], [2.0, 2.0], [4.0, 1.0]])
  found = together.compare(seconds, np.array([[1, 1], [2, 1], [1, 1]]))
  assert found["measured"] == pytest.approx((1 / 3 + 0 + 3 / 8) / 3)
  assert found["quartiles"] == pytest.approx([1 / 6, (1 / 3 + 3 / 8) / 2])
  assert found["predicted"] == pytest.approx(1 / 4 / 3)
  assert found["seconds"] == pytest.approx((3 + 2 + 4) / 3)


@pytest.fixture
def small(monkeypatch):
  monkeypatch.setattr(measured, "cores", lambda: [0, 1, 2])
  monkeypatch.setattr(measured, "BATCH", 5)
  monkeypatch.setattr(measured, "MULTIPLE", 7)
  plan = packing.pack(HISTOGRAM, max_sequences_per_pack=3)
  return Lengths(HISTOGRAM), plan, COSTS


def test_devices_take_as_long_as_predicted(small, monkeypatch):
  """The costs of the batches that each device is given, in place of its seconds."""
  _, plan, costs = small

  def run_together(work, number):
    assert number == 3
    (todo,) = work.args
    rows = [x for step in todo[::2] for share in step for x in share]
    assert len(rows) == 2 * 3 * 5
    for x in rows:
      assert x["row_length"] == (7 if x["packs"][0][0] <= 7 else 12)
    packed = [share for step in todo[1::2] for share in step]
    strategies = {tuple(sorted(strategy)) for strategy in plan.strategies}
    for (x,) in packed:
      assert len(x["packs"]) == max(1, round(5 / plan.packing_factor))
      assert {tuple(sorted(pack)) for pack in x["packs"]} <= strategies
      assert x["max_sequences"] >= max(map(len, x["packs"]))
    return [
      [
        sum(len(x["packs"]) * costs.row_seconds(x["row_length"]) for x in step[device])
        for step in todo
      ]
      for device in range(number)
    ]

  monkeypatch.setattr(measured, "run_together", run_together)
  result = measured.run(*small, steps=2)
  assert result is not None
  own, packs = result["ways"].values()
  assert own["measured"] == pytest.approx(own["predicted"])
  assert own["predicted"] > 0.02
  assert packs["measured"] == packs["predicted"] == 0
  assert [*waiting(result)[1].values()][:3] == ["packing", "0.0%", "0.0% (0.0% to 0.0%)"]


def test_one_core_measures_nothing(small, monkeypatch):
  monkeypatch.setattr(measured, "cores", lambda: [0])
  assert measured.run(*small, steps=2) is None


@pytest.mark.slow
def test_a_device_times_its_shares(monkeypatch):
  batch = measured._batch([[3, 2], [4]], 7, 2)
  monkeypatch.setattr(together, "meet", lambda: None)
  monkeypatch.setattr(measured, "use_cpu", lambda: None)
  todo = [[[batch]], [[measured._batch([[3]], 5, 1)] * 2]]
  found = measured._work(todo, 0, size="tiny", longest=7)
  assert len(found) == 2
  assert min(found) > 0
